"""PyTorch → level1 through torch.export: traced, decomposed where level1 has no op, and converted node by node."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from xdsl.ir import SSAValue

from cuvil_hw.errors import CuvilError, Refusal, Unsupported

# Importing the converter modules fills the table.
from cuvil_hw.frontend import aten_custom, aten_elementwise, aten_index, aten_nn, aten_reduce, aten_shape  # noqa: F401
from cuvil_hw.frontend.aten import TABLE, Emitter, Refused, Value, type_of_tensor
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.ops.base import ShapeError
from cuvil_hw.types import TensorType

Example = torch.Tensor | np.ndarray[Any, Any]

_TORCH = str(Path(torch.__file__).parent)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def load_torch(
    module: torch.nn.Module | ExportedProgram, example_inputs: Sequence[Example] | Example | None = None, name: str = ""
) -> Program:
    """The level1 program of a PyTorch model, for inference.

    `example_inputs`: one array per argument of `forward`; they fix shapes and dtypes (an ExportedProgram has its own).
    A module is traced as if in eval mode and left as it was: training flags, parameters and buffers. Parameters are
    read by value, whatever their strides. Inputs are named as in the graph, outputs by dict key or position ("out0",
    "boxes.1"). A forward that writes into its inputs gives the same outputs; the writes are dropped.

    Raises CuvilError when torch can't trace the module (with the user's line and torch's reason) and Unsupported with
    every kind of op, dtype or use that level1 hasn't.
    """
    aten_custom.enter()
    if isinstance(module, ExportedProgram):
        exported = module
    else:
        if example_inputs is None:
            raise CuvilError(
                f"{type(module).__name__} is a torch module: example inputs are needed to trace it, "
                "e.g. cuvil.compile(model, target, example_inputs=torch.randn(1, 3, 32, 32))"
            )
        exported = _export(module, _tensors(example_inputs))
    default = "model" if isinstance(module, ExportedProgram) else type(module).__name__
    return _convert(_decompose(exported), name or default)


def _tensors(examples: Sequence[Example] | Example) -> tuple[torch.Tensor, ...]:
    if isinstance(examples, torch.Tensor | np.ndarray):
        examples = (examples,)
    result = []
    for i, example in enumerate(examples):
        if isinstance(example, np.ndarray):
            example = torch.from_numpy(example.copy())
        if not isinstance(example, torch.Tensor):
            raise CuvilError(f"example input {i} is a {type(example).__name__}; give torch tensors or NumPy arrays")
        result.append(example.detach())
    return tuple(result)


@contextmanager
def _inference(module: torch.nn.Module) -> Iterator[None]:
    """Eval mode by flag only: train() and eval() may be overridden and change weights (some adapters merge there)."""
    flags = [(m, m.training) for m in module.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused kernels have no decomposition
    try:
        for m, _ in flags:
            m.training = False
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for m, training in flags:
            m.training = training


def _export(module: torch.nn.Module, examples: tuple[torch.Tensor, ...]) -> ExportedProgram:
    with _inference(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch's own internals; the trace is checked below
        try:
            return torch.export.export(module, examples, strict=False)
        except Exception as e:  # tracing runs the user's code: anything may be raised
            at = _raised_at(e)
            raise CuvilError(
                f"torch.export can't trace {type(module).__name__}{f' at {at}' if at else ''}: {_short(e)}; "
                "the forward must run on the example inputs, and not branch on values"
            ) from e


def _raised_at(error: BaseException) -> str:
    """`model.py:12`: the innermost frame of the user's code."""
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, "<")) and file != __file__:
            place = f"{Path(file).name}:{line}"
    return place


def _short(error: BaseException) -> str:
    """The first paragraph of torch's message, on one line."""
    paragraph = str(error).strip().split("\n\n")[0]
    text = " ".join(paragraph.split())
    return (text[:300] + " …" if len(text) > 300 else text) or type(error).__name__


def _decompose(exported: ExportedProgram) -> ExportedProgram:
    """Core ATen, except that every op with a converter stays whole; nothing to do where all have one.

    (An op that writes in place has no converter, so that it gets here and is made functional.)
    """
    calls = (n for n in exported.graph.nodes if n.op == "call_function" and n.target is not operator.getitem)
    if all(str(n.target) in TABLE for n in calls):
        return exported
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decompositions = torch.export.default_decompositions()
        for op in [op for op in decompositions if str(op) in TABLE]:
            decompositions.pop(op)  # type: ignore[no-untyped-call]
        result: ExportedProgram = exported.run_decompositions(decompositions)
    return result


class _Refusals:
    """Everything that can't be imported, by op and reason, in the order met."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[str]] = {}

    def add(self, op: str, reason: str, where: str) -> None:
        self._found.setdefault((op, reason), []).append(where)

    def check(self, context: str) -> None:
        if self._found:
            raise Unsupported(
                [
                    Refusal(op, reason, len(where), tuple(dict.fromkeys(w for w in where if w)))
                    for (op, reason), where in self._found.items()
                ],
                context,
            )


def _fake(node: torch.fx.Node) -> Any:
    return node.meta.get("val")


def location(node: torch.fx.Node) -> str:
    """`model.py:12`, the innermost frame outside torch; else the module's path, such as `features.0`."""
    frames = [(f, n) for f, n in _FRAME.findall(node.meta.get("stack_trace") or "") if not f.startswith(_TORCH)]
    if frames:
        return f"{Path(frames[-1][0]).name}:{frames[-1][1]}"
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return str(paths[-1]) if paths else ""


def _convert(exported: ExportedProgram, name: str) -> Program:
    refusals = _Refusals()
    env: dict[torch.fx.Node, Any] = {}
    nodes = list(exported.graph.nodes)
    placeholders = {n.name: n for n in nodes if n.op == "placeholder"}
    inputs: list[tuple[str, TensorType, torch.fx.Node]] = []
    labels: dict[int, str] = {}
    for spec in exported.graph_signature.input_specs:
        node = placeholders[spec.arg.name]
        if spec.kind == InputKind.USER_INPUT:
            if isinstance(spec.arg, ConstantArgument):
                env[node] = spec.arg.value
                continue
            try:
                inputs.append((node.name, type_of_tensor(_fake(node)), node))
            except Refused as e:
                refusals.add(f"input {node.name}", str(e), "")
        elif isinstance(spec.arg, TensorArgument):
            tensor = _constant(exported, spec.target or "")
            env[node] = tensor
            labels[id(tensor)] = spec.target or ""
    refusals.check(name)

    builder = Builder([(n, kind) for n, kind, _ in inputs], name)
    for i, (_, _, node) in enumerate(inputs):
        env[node] = builder.input(i)
    emitter = Emitter(builder, labels=labels)
    live = _live(exported)
    for node in nodes:
        if node.op == "call_function" and node in live:
            env[node] = _node(node, env, emitter, refusals)
    outputs = _outputs(exported, env, emitter, refusals)
    refusals.check(name)
    return builder.finish(outputs)


def _constant(exported: ExportedProgram, target: str) -> torch.Tensor:
    # Non-persistent buffers are among the constants too.
    stores = (exported.state_dict, exported.constants)
    tensor = next((s[target] for s in stores if target in s), None)
    if not isinstance(tensor, torch.Tensor):
        raise CuvilError(f"the exported program has no value for {target!r}")
    if tensor.device.type == "meta":
        raise CuvilError(f"{target} is on the meta device and has no values; load the weights before compiling")
    return tensor.detach().cpu()


def _live(exported: ExportedProgram) -> set[torch.fx.Node]:
    """Nodes that an output depends on; the rest (checks, unused results) is dropped."""
    wanted = {spec.arg.name for spec in exported.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT}
    wanted |= {
        spec.arg.name for spec in exported.graph_signature.output_specs if spec.kind == OutputKind.BUFFER_MUTATION
    }
    live: set[torch.fx.Node] = set()
    for node in reversed(list(exported.graph.nodes)):
        if node.name in wanted or any(user in live for user in node.users):
            live.add(node)
    return live


_POISON = object()  # the result of a node that was refused and has no type either


def _node(node: torch.fx.Node, env: dict[torch.fx.Node, Any], e: Emitter, refusals: _Refusals) -> Any:
    """Convert one node. A refused one yields zeros of its type, so that the nodes after it are looked at too."""
    target = node.target
    if target is operator.getitem:
        return _getitem(node, env, refusals)
    label = str(target)
    args, tensors = _arguments(node, env)
    try:
        constant = not any(isinstance(t, SSAValue) for t in tensors) and _POISON not in tensors
        if constant and isinstance(target, torch._ops.OpOverload):
            return _fold(target, args)
        e.loc, e.results = location(node), _types(_fake(node))
        if label not in TABLE:
            raise Refused("no level1 form")
        if any(t is _POISON for t in tensors):
            return _placeholder(node, e)
        return TABLE[label](e, *args)
    except (Refused, ShapeError) as error:
        refusals.add(label, str(error), location(node))
        return _placeholder(node, e)


def _arguments(node: torch.fx.Node, env: dict[torch.fx.Node, Any]) -> tuple[list[Any], list[Any]]:
    """All arguments of the schema in order, with defaults; and the values among them that came from other nodes."""
    found: list[Any] = []

    def value(n: torch.fx.Node) -> Any:
        found.append(env[n])
        return env[n]

    given = [torch.fx.node.map_arg(a, value) for a in node.args]
    named = {k: torch.fx.node.map_arg(a, value) for k, a in node.kwargs.items()}
    if not isinstance(node.target, torch._ops.OpOverload):
        return given, found
    schema = node.target._schema.arguments
    rest = [named.get(a.name, a.default_value) for a in schema[len(given) :]]
    return [*given, *rest], found


def _fold(target: torch._ops.OpOverload[Any, Any], args: list[Any]) -> Any:
    """A node that depends on no input, computed by torch now."""
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise Refused("draws random numbers; pass them as an input")
    schema = target._schema.arguments
    positional = [a for a, s in zip(args, schema, strict=True) if not s.kwarg_only]
    named = {s.name: a for a, s in zip(args, schema, strict=True) if s.kwarg_only}
    with torch.no_grad():
        result = target(*positional, **named)
        # Uninitialised memory would make builds differ.
        return result.zero_() if "empty" in target._schema.name else result


def _types(fake: Any) -> tuple[TensorType, ...]:
    """Types of a node's tensor results. Raises Refused."""
    fakes = fake if isinstance(fake, list | tuple) else [fake]
    return tuple(type_of_tensor(f) for f in fakes if isinstance(f, torch.Tensor))


def _placeholder(node: torch.fx.Node, e: Emitter) -> Any:
    fake = _fake(node)

    def zeros(f: Any) -> Any:
        try:
            return e.splat(0, type_of_tensor(f)) if isinstance(f, torch.Tensor) else _POISON
        except Refused:
            return _POISON

    return [zeros(f) for f in fake] if isinstance(fake, list | tuple) else zeros(fake)


def _getitem(node: torch.fx.Node, env: dict[torch.fx.Node, Any], refusals: _Refusals) -> Any:
    source, index = node.args
    assert isinstance(source, torch.fx.Node)
    assert isinstance(index, int)
    value = env[source][index]
    if value is None:
        refusals.add(str(source.target), f"its result {index} (such as indices or statistics) is used", location(node))
        return _POISON
    return value


def _outputs(
    exported: ExportedProgram, env: dict[torch.fx.Node, Any], e: Emitter, refusals: _Refusals
) -> list[tuple[str, SSAValue]]:
    by_name = {n.name: n for n in exported.graph.nodes}
    outputs: list[tuple[str, SSAValue]] = []
    names = iter(_output_names(exported))
    for spec in exported.graph_signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            where = location(by_name[spec.arg.name])
            refusals.add(f"buffer {spec.target}", "the forward changes it; a compiled program keeps no state", where)
        if spec.kind != OutputKind.USER_OUTPUT:  # a program never writes its inputs: such results are dropped
            continue
        name = next(names)
        if isinstance(spec.arg, ConstantArgument):
            if spec.arg.value is not None:
                refusals.add(f"output {name}", f"is the Python value {spec.arg.value!r}, not a tensor", "")
            continue
        value: Value | object = env[by_name[spec.arg.name]]
        if isinstance(value, torch.Tensor | SSAValue):
            try:
                outputs.append((name, e.ssa(value)))
            except Refused as error:
                refusals.add(f"output {name}", str(error), "")
    return outputs


def _output_names(exported: ExportedProgram) -> list[str]:
    """One name per flattened output: keys and positions joined by dots."""
    from torch.utils import _pytree as pytree

    spec = exported.call_spec.out_spec
    if spec is None:
        return [f"out{i}" for i in range(len(exported.graph_signature.output_specs))]
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths = pytree.tree_flatten_with_path(tree)[0]
    return [_output_name(path) for path, _ in paths]


def _output_name(path: Sequence[Any]) -> str:
    keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", i)))) for i, k in enumerate(path)] or ["0"]
    text = ".".join(keys)
    return f"out{text}" if text[0].isdigit() else text


__all__ = ["load_torch", "location"]

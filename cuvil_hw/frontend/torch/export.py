"""PyTorch → level1 through torch.export: traced, decomposed where level1 has no op, and converted node by node."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.contract.calling import Calling, KeptState, Write
from cuvil_hw.contract.signature import FixedValue, Leaf, Scalar, Tree
from cuvil_hw.errors import CuvilError, Refusal, Unsupported
from cuvil_hw.frontend.python.modules import branching, trace_loops
from cuvil_hw.frontend.shared.refusals import Refused
from cuvil_hw.frontend.torch import control, impure, quantized  # noqa: F401  (fill the tables of converters)
from cuvil_hw.frontend.torch.aten import custom
from cuvil_hw.frontend.torch.aten.complex import COMPLEX, is_complex
from cuvil_hw.frontend.torch.aten.composite import COMPOSITE, WITHOUT
from cuvil_hw.frontend.torch.aten.emitter import PACKED, TABLE, AtenEmitter, array_of, type_of_tensor
from cuvil_hw.frontend.torch.attributes import attributes_kept, refuse_hidden_state
from cuvil_hw.frontend.torch.call import example_call, paths_of, signature_of
from cuvil_hw.frontend.torch.conversions import keep_types
from cuvil_hw.frontend.torch.errors import called, quiet, raised_at, reason
from cuvil_hw.frontend.torch.functional import functional
from cuvil_hw.frontend.torch.importer import CONTROL, POISON, Walk, fake, live
from cuvil_hw.frontend.torch.packed import Packed
from cuvil_hw.frontend.torch.positions import Positions
from cuvil_hw.frontend.torch.sequences import Sequences
from cuvil_hw.frontend.torch.twin import twin_of
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.types import TensorType


def load_torch(
    module: torch.nn.Module | ExportedProgram,
    example_inputs: Any = None,
    name: str = "",
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    max_trips: int | None = None,
) -> Program:
    """The level1 program of a PyTorch model, for inference.

    A module is traced as if in eval mode and left as it was: training flags, parameters and buffers. Parameters are
    read by value, whatever their strides. Inputs are named as in the graph, outputs by dict key or position ("out0",
    "boxes.1"). Buffers that the forward changes become state, inputs that it changes are written back
    (`Program.calling`), and so is the structure of arguments and results.

    Args:
        example_inputs: the arguments of `forward`, whose shapes, dtypes and Python values the program is compiled
            for: a tensor or array, a tuple with one entry per positional argument, or a mapping by names of
            parameters; entries may be nested. An ExportedProgram has its own; one with symbolic sizes takes them to
            fix these sizes.
        shapes: of an ExportedProgram with symbolic sizes, by name of the input, to fix them.
        max_trips: bound of loops whose end depends on values.

    Raises CuvilError when torch can't trace the module (with the user's line and torch's reason) and Unsupported
    with every kind of op, dtype or use that level1 hasn't.
    """
    custom.enter()
    forward: Callable[..., Any] | None = None
    if shapes and not isinstance(module, ExportedProgram):
        raise CuvilError(
            "shapes is for ONNX models; the shapes of a torch model are those of its example inputs, but for extents "
            "that a cuvil.Dim leaves open"
        )
    if isinstance(module, ExportedProgram):
        title, exported = "model", sized_export(module, example_inputs, shapes or {})
    elif example_inputs is None:
        raise CuvilError(
            f"{type(module).__name__} is a torch module: example inputs are needed to trace it, "
            "e.g. cuvil.compile(model, target, example_inputs=torch.randn(1, 3, 32, 32))"
        )
    else:
        title, forward = type(module).__name__, module.forward
        exported = export_module(module, *example_call(module, example_inputs))
    return to_program(decomposed(exported), name or title, forward, max_trips)


@contextmanager
def for_inference(
    module: torch.nn.Module, args: tuple[Any, ...], named: dict[str, Any], branches: Collection[type[Any]] = ()
) -> Iterator[torch.nn.Module]:
    """The module's twin in eval mode, to be traced for a call with these arguments. Raises CuvilError when the trace
    hangs on attributes that the forward changes. `branches`: classes of modules whose forward branches on values.

    Eval mode by flag only: train() and eval() may be overridden and change weights (some adapters merge there)."""
    twin: torch.nn.Module = twin_of(module)
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused kernels have no decomposition
    try:
        for m in twin.modules():
            m.training = False
            keep_types(m)
        trace_loops(list(twin.modules()), branches)
        with quiet(), attributes_kept(twin) as changed, impure.watched(twin), Positions(), Sequences(twin):
            yield twin
        refuse_hidden_state(twin, args, named, changed)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


def export_module(module: torch.nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> ExportedProgram:
    """The module traced for one call. Raises CuvilError with the user's line and torch's reason."""
    branches: set[type[Any]] = set()  # modules traced as functions are, since values decide there
    while True:
        with for_inference(module, args, named, branches) as twin, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about torch's own internals; the trace is checked below
            try:
                return torch.export.export(twin, args, named, strict=False)
            except Unsupported:
                raise
            except Exception as e:  # tracing runs the user's code: anything may be raised
                kind = branching(e, module.modules())
                if kind is None or kind in branches:
                    at = raised_at(e)
                    where = f"{type(module).__name__}{f' at {at}' if at else ''}"
                    raise CuvilError(f"torch.export can't trace {where}: {reason(e)}; {_advice(e)}") from e
        branches.add(kind)


def _advice(error: BaseException) -> str:
    """What to do about a trace that failed."""
    raised_in = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    lost = isinstance(error, TypeError) or "data-dependent" in str(error)  # batch sizes that nobody knows
    in_layer = lost and torch.nn.modules.rnn.__file__ in raised_in
    if in_layer or torch.nn.utils.rnn.__file__ in raised_in:
        return PACKED
    return (
        "the forward must run on the example inputs, and not branch on values (use torch.where or torch.cond, or "
        "compile it with @cuvil.compile)"
    )


def sized_export(exported: ExportedProgram, examples: Any, shapes: Mapping[str, Sequence[int]]) -> ExportedProgram:
    """The program with every symbolic size fixed; as it is when it has none. Raises CuvilError."""
    by_name = {n.name: fake(n) for n in exported.graph.nodes if n.op == "placeholder"}
    given = {n: v for n in exported.graph_signature.user_inputs if isinstance(v := by_name.get(n), torch.Tensor)}
    open_ends = {n: v for n, v in given.items() if any(not isinstance(size, int) for size in v.shape)}
    sizes = [by_name.get(n) for n in exported.graph_signature.user_inputs]
    if not open_ends and not any(isinstance(v, torch.SymInt) for v in sizes):
        return exported
    if examples is not None:
        args, named = example_call(exported.module(), examples)
    elif set(open_ends) <= set(shapes) and exported.call_spec.in_spec is not None:
        if unknown := set(shapes) - set(given):
            raise CuvilError(f"shapes names {', '.join(sorted(unknown))}; the inputs are {', '.join(given)}")
        fixed = [
            torch.zeros(tuple(shapes.get(n, v.shape)), dtype=v.dtype) if isinstance(v, torch.Tensor) else v
            for n, v in zip(exported.graph_signature.user_inputs, sizes, strict=True)
        ]
        args, named = torch.utils._pytree.tree_unflatten(fixed, exported.call_spec.in_spec)
    else:
        ranges = ", ".join(f"{k} in [{v.lower}, {v.upper}]" for k, v in exported.range_constraints.items())
        ends = ", ".join(f"{n} {tuple(v.shape)}" for n, v in open_ends.items()) or "numbers among the arguments"
        raise CuvilError(
            f"the exported program has symbolic sizes: {ends} ({ranges}); a compiled program has fixed ones: give "
            "example_inputs, or shapes={'name': (…)} for each of these inputs"
        )
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(exported.module(), args, named, strict=False)
    except Exception as e:  # torch checks its own guards on the sizes, by errors of any kind
        raise CuvilError(f"the exported program can't take these sizes: {reason(e)}") from e


def decomposed(exported: ExportedProgram) -> ExportedProgram:
    """Core ATen without writes in place, except that every op with a converter stays whole; nothing to do where all
    have one."""
    if not _without_form(exported)[1]:
        return exported
    plain = functional(exported)
    if plain is not None and not _without_form(plain)[1]:
        return plain
    known, missing = _without_form(exported)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decompositions = torch.export.default_decompositions()
        for op in [op for op in decompositions if str(op) in known]:
            decompositions.pop(op)  # type: ignore[no-untyped-call]
        try:
            result: ExportedProgram = exported.run_decompositions(decompositions)
        except Exception as e:  # torch's own rewriting may ask for values that only a run has
            kinds = sorted({called(n.target) for n in missing})
            why = f"torch can't express it by simpler operators: {reason(e)}"
            raise Unsupported([Refusal(", ".join(kinds), why)]) from e
    return result


def _without_form(exported: ExportedProgram) -> tuple[set[str], list[torch.fx.Node]]:
    """The ops that stay whole in this program, and its calls of others."""
    modules = [m for m in exported.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    calls = [n for m in modules for n in m.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    # Composite ops of complex numbers have no form of their own.
    plain = {*TABLE, *WITHOUT} if not any(is_complex(fake(n)) for n in calls) else {*TABLE} - COMPOSITE
    known = plain | {*COMPLEX}
    return known, [n for n in calls if str(n.target) not in known and str(n.target) not in CONTROL]


def to_program(
    exported: ExportedProgram, name: str, forward: Callable[..., Any] | None, max_trips: int | None
) -> Program:
    """The level1 program of a decomposed export. `forward`: of the model, whose signature the program's calls have.
    Raises Unsupported."""
    nodes = {n.name: n for n in exported.graph.nodes}
    changed = _changed(exported)
    env: dict[torch.fx.Node, Any] = {}
    labels: dict[int, str] = {}
    arguments: list[Tree] = []
    ports: list[tuple[str, TensorType, torch.fx.Node]] = []
    initial: dict[str, torch.Tensor] = {}
    walk = Walk(AtenEmitter(Builder([], name), labels=labels), max_trips)
    for spec in exported.graph_signature.input_specs:
        node = nodes[spec.arg.name]
        kept = spec.kind in (InputKind.BUFFER, InputKind.PARAMETER) and spec.target in changed
        if spec.kind == InputKind.USER_INPUT and not isinstance(spec.arg, TensorArgument):
            env[node], leaf = _fixed(spec.arg, walk)
            arguments.append(leaf)
        elif spec.kind == InputKind.USER_INPUT or kept:
            port = _free(spec.target or node.name, [*nodes, *(n for n, _, _ in ports)]) if kept else node.name
            try:
                ports.append((port, type_of_tensor(fake(node)), node))
            except Refused as e:
                walk.refusals.add(f"{'buffer' if kept else 'input'} {port}", str(e), "")
            if kept:
                initial[spec.target or ""] = _constant(exported, spec.target or "")
            else:
                arguments.append(Leaf(port))
        elif isinstance(spec.arg, TensorArgument):
            tensor = _constant(exported, spec.target or "")
            env[node] = tensor
            labels[id(tensor)] = spec.target or ""
    walk.refusals.check(name)

    builder = walk.emitter.builder = Builder([(n, kind) for n, kind, _ in ports], name)
    env.update({node: builder.input(i) for i, (_, _, node) in enumerate(ports)})
    results = [s for s in exported.graph_signature.output_specs if s.kind in _KEPT]
    results.sort(key=lambda s: s.kind != OutputKind.USER_OUTPUT)
    wanted = {nodes[s.arg.name] for s in results if not isinstance(s.arg, ConstantArgument)}
    walk.run(exported.graph_module, env, live(exported.graph, wanted))
    outputs, leaves, calling = _outputs(exported, results, env, nodes, {n.name: p for p, _, n in ports}, initial, walk)
    walk.refusals.check(name)
    called = signature_of(exported, forward, arguments, leaves)
    if called is not None:
        calling = Calling(calling.states, (), calling.writes, *called)
    return builder.finish(outputs, calling)


_CHANGES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
_KEPT = (OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION, *_CHANGES)


def _changed(exported: ExportedProgram) -> set[str]:
    """Buffers (and parameters) that the forward writes into."""
    specs = exported.graph_signature.output_specs
    return {s.target for s in specs if s.kind in _CHANGES and s.target is not None}


def _fixed(arg: Any, walk: Walk) -> tuple[Any, Tree]:
    """An argument that is a Python value."""
    if not isinstance(arg, ConstantArgument) or not isinstance(arg.value, Scalar):
        value = getattr(arg, "value", None)
        walk.refusals.add(f"input {arg.name}", f"is a {type(value).__name__}, not a tensor or plain Python value", "")
        return POISON, FixedValue(None)
    return arg.value, FixedValue(arg.value)


def _free(wanted: str, taken: Sequence[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        name, count = f"{wanted}_{count}", count + 1
    return name


def _constant(exported: ExportedProgram, target: str) -> torch.Tensor:
    # Non-persistent buffers are among the constants too.
    stores = (exported.state_dict, exported.constants)
    tensor = next((s[target] for s in stores if target in s), None)
    if not isinstance(tensor, torch.Tensor):
        raise CuvilError(f"the exported program has no value for {target!r}")
    if tensor.device.type == "meta":
        raise CuvilError(f"{target} is on the meta device and has no values; load the weights before compiling")
    return tensor.detach().cpu()


def _outputs(
    exported: ExportedProgram,
    specs: Sequence[Any],
    env: Mapping[torch.fx.Node, Any],
    nodes: Mapping[str, torch.fx.Node],
    ports: Mapping[str, str],
    initial: Mapping[str, torch.Tensor],
    walk: Walk,
) -> tuple[list[tuple[str, SSAValue]], list[Tree], Calling]:
    """(outputs, a leaf for each of the model's results, state and inputs written back). `ports`: of inputs, by node."""
    outputs: list[tuple[str, SSAValue]] = []
    leaves: list[Tree] = []
    states: list[KeptState] = []
    writes: list[Write] = []
    names = iter(_output_names(exported))
    holders = {s.target: s.arg.name for s in exported.graph_signature.input_specs if s.target is not None}
    store = walk.emitter.builder.constants
    for spec in specs:
        value = spec.arg.value if isinstance(spec.arg, ConstantArgument) else env[nodes[spec.arg.name]]
        user = spec.kind == OutputKind.USER_OUTPUT
        name = next(names) if user else ""
        if user and isinstance(value, Scalar):
            leaves.append(FixedValue(value))
            continue
        if spec.kind in _CHANGES:
            source = ports[holders[spec.target]]
        elif not user:
            source = ports[spec.target]
        name = name or _free(f"{source}.next", [n for n, _ in outputs])
        kind = None if isinstance(spec.arg, ConstantArgument) else getattr(fake(nodes[spec.arg.name]), "dtype", None)
        if is_complex(value):
            dtype = str(kind).removeprefix("torch.")
            reason = f"dtype {dtype} is not supported; return real and imaginary parts, with torch.view_as_real"
            walk.refusals.add(f"output {name}", reason, "")
            continue
        if not isinstance(value, torch.Tensor | SSAValue):
            if isinstance(value, Packed):
                reason = "is what a computed mask selects, of a shape known at run time only; give tensor and mask"
                walk.refusals.add(f"output {name}", reason, value.loc)
            elif value is not POISON:
                walk.refusals.add(f"output {name}", f"is the Python value {value!r}, not a tensor", "")
            continue
        try:
            outputs.append((name, walk.emitter.ssa(value)))
        except Refused as error:
            walk.refusals.add(f"output {name}", str(error), "")
            continue
        if user:
            leaves.append(Leaf(name))
        elif spec.kind in _CHANGES:
            array = array_of(initial[spec.target])
            states.append(KeptState(source, name, store.add(array, dtypes.from_numpy(array.dtype))))
        else:
            writes.append(Write(source, name))
    return outputs, leaves, Calling(tuple(states), (), tuple(writes))


def _output_names(exported: ExportedProgram) -> list[str]:
    """One name per flattened output: keys and positions joined by dots."""
    spec = exported.call_spec.out_spec
    if spec is None:
        return [f"out{i}" for i in range(len(exported.graph_signature.output_specs))]
    return [_output_name(path) for path in paths_of(spec)]


def _output_name(path: Sequence[str]) -> str:
    text = ".".join(path) or "0"
    return f"out{text}" if text[0].isdigit() else text

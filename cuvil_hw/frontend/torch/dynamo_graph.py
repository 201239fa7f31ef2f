"""One graph of Dynamo, for inputs of known shapes: what it does beside its numbers, and a module that export can trace.

Dynamo's graphs write into their inputs and return views of them. A compiled program does neither: it gets arrays and
gives fresh ones. A run on fake tensors, which hold shapes, strides and storages but no data, shows both kinds of
effect; the caller then repeats them on the real tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from cuvil_hw.errors import CuvilError, Refusal, Unsupported
from cuvil_hw.frontend.torch.aten.emitter import from_data
from cuvil_hw.frontend.torch.attention_fast_path import FUSED
from cuvil_hw.frontend.torch.checks import checked, checks
from cuvil_hw.frontend.torch.errors import line_of, reason
from cuvil_hw.frontend.torch.numbers import EXTREMES, Counted, counts, extreme

_MODE_SWITCHES = {torch._C._set_grad_enabled}  # in inference they change no number

_SELECTED = (
    "is what a computed mask selects, or as many, of a shape known at run time only; return a tensor and the mask, a "
    "bounded form (nonzero_static), or what was reduced or written back by the same mask; without fullgraph=True, "
    "PyTorch selects"
)


@dataclass(frozen=True)
class Strided:
    """Where a tensor lies in its storage; all in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, base: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(base, self.size, self.stride, self.offset)

    @property
    def apart(self) -> bool:
        """Whether it is certain that no two elements lie in one place."""
        end = 0
        for stride, size in sorted(zip(self.stride, self.size, strict=True)):
            if size > 1:
                if stride <= end:
                    return False
                end += stride * (size - 1)
        return True

    def fill(self, base: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The view of `base`, which is flat, with `value` written into it."""
        if self.apart:
            return self.of(base).copy_(value)
        base[self.of(torch.arange(len(base))).reshape(-1)] = value.reshape(-1)
        return self.of(base)


@dataclass(frozen=True)
class Given:
    """The output is a Python value."""

    value: Any


@dataclass(frozen=True)
class Alias:
    """The output lies in the memory of input `argument`; without `view` it is that input."""

    argument: int
    view: Strided | None


@dataclass(frozen=True)
class Computed:
    """The output is result `result` of the program, laid out as in eager mode.

    `elements`: of the storage; outputs with one number `storage` share it; None: its own."""

    result: int
    place: Strided
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    elements: int
    storage: int | None = None

    @property
    def plain(self) -> bool:
        return self.storage is None and self.place.stride == _contiguous(self.place.size)


Output = Given | Alias | Computed | Counted


@dataclass(frozen=True)
class Plan:
    """What a program computes of a graph.

    Attributes:
        outputs: of the graph.
        picked: which of them the program computes.
        written: inputs that the graph writes into; their new values are the program's last results.
    """

    outputs: tuple[Output, ...]
    picked: tuple[int, ...]
    written: tuple[int, ...]


class Specialized(torch.fx.Interpreter):
    """Runs the graph with Python numbers in place of scalars that Dynamo passes as tensors (argument `scalars`, by name
    of their placeholder). Errors name the user's source line."""

    def __init__(self, graph: torch.fx.GraphModule, scalars: Mapping[str, Any]) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.extra_traceback = False  # it would add the node's text to the message
        self._scalars, self._checks = scalars, checks(graph.graph)

    def run_node(self, n: torch.fx.Node) -> Any:
        source = n.args[0] if n.args else None
        if n.target == "item" and isinstance(source, torch.fx.Node) and source.name in self._scalars:
            return self._scalars[source.name]
        if n.op == "call_function" and n.target in _MODE_SWITCHES:
            return None
        try:
            if n.op == "call_function" and n.target in FUSED:
                args, kwargs = self.fetch_args_kwargs_from_env(n)
                return FUSED[n.target](*args, **kwargs)
            if n in self._checks:
                return checked(n, self.fetch_args_kwargs_from_env(n)[0])
            if n.op == "call_function" and n.target in EXTREMES:
                args, _ = self.fetch_args_kwargs_from_env(n)
                if any(isinstance(a, torch.Tensor) for a in args):
                    return extreme(n.target, args)
            if n.op == "call_function" and n.target is torch.amp.autocast_mode._enter_autocast:
                return self._autocast(n)
            return super().run_node(n)
        except CuvilError:
            raise
        except Exception as e:  # a fake run or a trace: whatever an op raises means that it can't be compiled
            raise Unsupported([Refusal(_name(n), reason(e), 1, (line_of(n),))], "torch.compile") from e

    def _autocast(self, n: torch.fx.Node) -> Any:
        """Autocast that is switched off. One that is on is refused: what it casts, nobody has written down."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        device, dtype, enabled, *_ = args
        if enabled:
            raise NotImplementedError(
                f"autocast on {device} to {dtype}; call the model without it, or with model.bfloat16() or model.half()"
            )
        return torch.amp.autocast_mode._enter_autocast(*args, **kwargs)  # type: ignore[no-untyped-call]


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def plan(
    graph: torch.fx.GraphModule,
    args: Sequence[Any],
    scalars: Mapping[str, Any],
    names: Sequence[str],
    numbers: bool = False,
) -> Plan:
    """What the graph does with `args`: tensors, and numbers where it takes symbols.

    Args:
        names: the user's name of each argument.
        numbers: whether some of the graph's numbers change from call to call.

    Raises Unsupported.
    """
    masks = ShapeEnv(allow_scalar_outputs=False)  # for sizes of what computed masks select
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=masks)
    # A tensor that comes twice is one tensor.
    fakes = {id(a): mode.from_tensor(a.detach(), static_shapes=True) for a in args if isinstance(a, torch.Tensor)}
    wants_grad = torch.is_grad_enabled()
    given = [fakes[id(a)] if isinstance(a, torch.Tensor) else a for a in args]
    before = [(_place(f), f._version) if isinstance(f, FakeTensor) else None for f in given]
    # Some ops have two meanings, and Dynamo and torch.export take the one in Python.
    with mode, enable_python_dispatcher(), torch.no_grad():
        results = Specialized(graph, scalars).run(*given)
    written = []
    for i, (fake, was) in enumerate(zip(given, before, strict=True)):
        if was is not None and fake._version != was[1]:
            written.append(i)
        if was is not None and _place(fake) != was[0]:
            raise _unsupported(names[i], "the graph changes the shape or memory of this input in place")
    owners = {_storage(f): i for i, f in reversed(list(enumerate(given))) if isinstance(f, FakeTensor)}
    outputs: list[Output] = []
    picked: list[int] = []
    nodes = _output_nodes(graph)
    for i, (value, node) in enumerate(zip(results, nodes, strict=True)):
        if any(map(from_data, value.shape if isinstance(value, torch.Tensor) else [value])):
            raise Unsupported([Refusal("result of the graph", _SELECTED, 1, (line_of(node),))], "torch.compile")
        if not isinstance(value, torch.Tensor):
            counted = numbers and isinstance(node, torch.fx.Node) and counts(node)
            outputs.append(Counted(node) if counted else Given(value))
        elif _storage(value) in owners:
            outputs.append(_alias(value, given, owners[_storage(value)], names))
        else:
            grad = wants_grad and _requires_grad(node)
            elements = value.numel() if _loose(value) else value.untyped_storage().nbytes() // value.element_size()
            place = Strided(tuple(value.shape), _contiguous(value.shape), 0) if _loose(value) else _place(value)
            outputs.append(Computed(len(picked), place, value.dtype, value.device, grad, elements))
            picked.append(i)
    return Plan(_shared(outputs, results), tuple(picked), tuple(written))


def _output_nodes(graph: torch.fx.GraphModule) -> tuple[Any, ...]:
    last = next(n for n in reversed(graph.graph.nodes) if n.op == "output")
    result = last.args[0]
    return tuple(result) if isinstance(result, list | tuple) else (result,)


def _requires_grad(node: Any) -> bool:
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return bool(getattr(value, "requires_grad", True))


def _alias(value: torch.Tensor, given: Sequence[Any], owner: int, names: Sequence[str]) -> Alias:
    same = next((i for i, f in enumerate(given) if f is value), None)
    if same is not None:
        return Alias(same, None)
    if value.dtype != given[owner].dtype:
        raise _unsupported(names[owner], f"a view of this input as {value.dtype} is returned")
    return Alias(owner, _place(value))


def _shared(outputs: Sequence[Output], values: Sequence[Any]) -> tuple[Output, ...]:
    """Numbers the storages that several computed outputs lie in. Raises Unsupported."""
    by_storage: dict[int, list[int]] = {}
    for i, output in enumerate(outputs):
        if isinstance(output, Computed) and not _loose(values[i]):
            by_storage.setdefault(_storage(values[i]), []).append(i)
    result = list(outputs)
    for number, members in enumerate(m for m in by_storage.values() if len(m) > 1):
        dtypes = {values[i].dtype for i in members}
        if len(dtypes) > 1:
            names = ", ".join(sorted(map(str, dtypes)))
            raise Unsupported([Refusal("outputs", f"views of one tensor as {names} are returned")], "torch.compile")
        for i in members:
            o = outputs[i]
            assert isinstance(o, Computed)
            result[i] = replace(o, storage=number)
    return tuple(result)


def _unsupported(name: str, reason: str) -> Unsupported:
    return Unsupported([Refusal(f"input {name}", reason)], "torch.compile")


def source_name(node: torch.fx.Node) -> str:
    """The user's name of a placeholder: `x`, or `features.0.weight`."""
    name = str(getattr(getattr(node.meta.get("grapharg"), "source", None), "name", node.name))
    parts = re.findall(r"\['?([\w.]+)'?\]|\.(?!_modules|_parameters|_buffers)(\w+)", name)
    words = [a or b for a, b in parts]
    return ".".join(words[1:] if words[:1] == ["self"] and len(words) > 1 else words) or node.name


def _storage(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _place(t: torch.Tensor) -> Strided:
    return Strided(tuple(t.shape), tuple(t.stride()), int(t.storage_offset()))


def _loose(t: torch.Tensor) -> bool:
    """Whether it lies in memory of which only a run knows the size, or where in it: it gets memory of its own."""
    return from_data(t.storage_offset()) or from_data(t.untyped_storage().nbytes())


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    stride, step = [], 1
    for extent in reversed(size):
        stride.append(step)
        step *= max(extent, 1)
    return tuple(reversed(stride))


@dataclass(frozen=True)
class _Call:
    """How arguments of the graph come about. `buffers`: names of the tensors that are weights, by position."""

    graph: torch.fx.GraphModule
    scalars: Mapping[str, Any]
    plan: Plan
    size: int
    buffers: Mapping[int, str]
    numbers: Mapping[int, Any]


class DynamoGraph(torch.nn.Module):
    """The graph as a function of its runtime inputs: weights are buffers, numbers are fixed, nothing is written.

    `fixed`: arguments that are no runtime inputs, by position. Returns the outputs that the plan picks, then the new
    values of inputs that the graph writes into."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        fixed: Mapping[int, Any],
        scalars: Mapping[str, Any],
        made: Plan,
        names: Sequence[str],
    ) -> None:
        super().__init__()
        tensors = {i: value for i, value in fixed.items() if isinstance(value, torch.Tensor)}
        numbers = {i: value for i, value in fixed.items() if i not in tensors}
        buffers = {i: f"{re.sub(r'[^0-9a-zA-Z]+', '_', names[i])}_{i}" for i in tensors}
        for i, tensor in tensors.items():
            self.register_buffer(buffers[i], tensor.detach(), persistent=False)
        for name, tensor in graph.named_buffers():
            self.register_buffer("constant_" + name.replace(".", "_"), tensor, persistent=False)
        # No attributes of their own: torch.export would trace a submodule by its generated code, which holds no source
        # lines, and copy containers.
        self._call = _Call(graph, scalars, made, len(names), buffers, numbers)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call, given = self._call, iter(tensors)
        args: list[Any] = []
        for i in range(call.size):
            if i in call.buffers:
                args.append(getattr(self, call.buffers[i]))
            elif i in call.numbers:
                args.append(call.numbers[i])
            else:
                value = next(given)
                args.append(value.clone() if i in call.plan.written else value)
        with torch.fx.traceback.preserve_node_meta():
            results = Specialized(call.graph, call.scalars).run(*args)
        outputs = call.plan.outputs
        picked = [results[i].to(o.dtype) for i in call.plan.picked if isinstance(o := outputs[i], Computed)]
        return (*picked, *(args[i] for i in call.plan.written))


__all__ = ["Alias", "Computed", "DynamoGraph", "Given", "Plan", "plan", "source_name"]

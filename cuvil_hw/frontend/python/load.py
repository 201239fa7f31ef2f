"""A Python function and example arguments → a program, the structure of its result, and what it raises."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ArrayAttr, StringAttr

from cuvil_hw.contract.calling import Calling, Guard, Write
from cuvil_hw.errors import CuvilError, Refusal, Unsupported
from cuvil_hw.frontend.python.arrays import Array, as_tensor, own_operations
from cuvil_hw.frontend.python.calls import call
from cuvil_hw.frontend.python.check import check
from cuvil_hw.frontend.python.number import Number
from cuvil_hw.frontend.python.outside import outer
from cuvil_hw.frontend.python.reads import GRADIENTS, STRIDES, Reads, watched
from cuvil_hw.frontend.python.source import Function, place
from cuvil_hw.frontend.python.trace import Trace, is_tracing, raised_at, tracing
from cuvil_hw.frontend.torch.errors import quiet, reason
from cuvil_hw.frontend.torch.export import load_torch
from cuvil_hw.ir.program import Program

MAX_TRIPS = 32


@dataclass(frozen=True)
class ResultValue:
    """One value of a result.

    `kind`: "tensor", "array", "scalar" (NumPy's) or "number" (Python's), which are output number `index` of the
    program; or "fixed": `value`. `given`: number of the array argument that the function returned unchanged.
    """

    kind: str
    index: int = 0
    given: int | None = None
    value: Any = None


@dataclass(frozen=True)
class Traced:
    """A traced function.

    Attributes:
        leaves, spec: the result.
        errors: the exception that Python would raise, by the message of its guard.
        reads: what the function read from outside.
    """

    program: Program
    leaves: tuple[ResultValue, ...]
    spec: Any
    errors: Mapping[str, type[Exception]]
    reads: Reads


@dataclass(frozen=True)
class Arguments:
    """Flattened arguments: `leaves` of the pair (positional, by name); `inputs`: positions of the arrays among them."""

    leaves: tuple[Any, ...]
    spec: Any
    inputs: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def arrays(self) -> list[Any]:
        return [self.leaves[i] for i in self.inputs]


def is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")


def arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Bind as Python does (TypeError as Python raises it), and find the arrays."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    leaves, spec = pytree.tree_flatten((tuple(bound.args), dict(bound.kwargs)))
    inputs = tuple(i for i, x in enumerate(leaves) if is_array(x))
    paths = pytree.tree_flatten_with_path(dict(bound.arguments))[0]
    labels = {id(x): _label(path) for path, x in paths}
    names: list[str] = []
    for i in inputs:
        name = labels.get(id(leaves[i]), f"in{i}")
        if why := own_operations(leaves[i]):
            raise CuvilError(f"{name} {why}")
        names.append(name if name not in names else f"{name}_{i}")
    return Arguments(tuple(leaves), spec, inputs, tuple(names))


def strides(array: Any) -> tuple[int, ...]:
    """In elements."""
    return tuple(s // array.itemsize for s in array.strides) if isinstance(array, np.ndarray) else array.stride()


def _label(path: Any) -> str:
    return ".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path)


@dataclass
class _Record:
    """What the trace found out. (torch.export forgets what is set on a module meanwhile.)"""

    leaves: list[ResultValue] = field(default_factory=list)
    spec: Any = None
    trace: Trace | None = None
    written: list[int] = field(default_factory=list)
    as_given: bool = True  # whether strides are those of the arrays that were given
    error: Exception | None = None


class _Body(torch.nn.Module):
    """What torch.export traces: the arguments as traced values, the function, its results as tensors."""

    def __init__(self, function: Any, given: Arguments, max_trips: int) -> None:
        super().__init__()
        self.function, self.given, self.max_trips = function, given, max_trips
        self.record = _Record()

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        # torch.export would dress up what the function raises.
        try:
            return self.run(inputs)
        except Exception as e:
            self.record.error = e
            raise

    def run(self, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        with tracing(Trace(self.max_trips)) as trace, watched(trace.reads):
            self.record.trace = trace
            values, tensors = list(self.given.leaves), []
            made: dict[int, tuple[torch.Tensor, Any]] = {}  # an array that is given twice is one
            for position, tensor in zip(self.given.inputs, inputs, strict=True):
                leaf = values[position]
                if id(leaf) not in made:
                    copy = tensor.clone()
                    made[id(leaf)] = copy, Array(copy) if isinstance(leaf, np.ndarray) else copy
                copy, values[position] = made[id(leaf)]
                tensors.append(copy)
                self.record.as_given &= copy.stride() == strides(leaf)
            trace.given = [stand_in for _, stand_in in made.values()]
            args, kwargs = pytree.tree_unflatten(values, self.given.spec)
            for container in _containers((args, kwargs)):
                outer(container, "an argument")
            versions = [t._version for t in tensors]
            trace.reads.function(self.function)
            result = call(self.function, *args, **kwargs)
            trace.settle()
            outputs = self.take_apart(result, tensors)
            self.record.written = [i for i, (t, v) in enumerate(zip(tensors, versions, strict=True)) if t._version != v]
            if not outputs and (self.record.written or trace.checks):
                outputs.append(torch.zeros(()))  # a program gives something
            return [*outputs, *(tensors[i].clone() for i in self.record.written), *(c.ok.clone() for c in trace.checks)]

    def take_apart(self, result: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        flat, self.record.spec = pytree.tree_flatten(result)
        outputs: list[torch.Tensor] = []
        self.record.leaves = []
        for value in flat:
            tensor = value.tensor if isinstance(value, Array | Number) else value
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                tensor, value = as_tensor(value), Array(as_tensor(value))
            if not isinstance(tensor, torch.Tensor):
                self.record.leaves.append(ResultValue("fixed", value=value))
                continue
            same = [i for i, x in enumerate(inputs) if x is tensor]
            given = same[0] if same and not (isinstance(value, Array) and value.scalar) else None
            self.record.leaves.append(ResultValue(_kind(value), len(outputs), given))
            outputs.append(tensor.clone())
        return outputs


def _kind(value: Any) -> str:
    if isinstance(value, Number):
        return "number"
    if isinstance(value, Array):
        return "scalar" if value.scalar else "array"
    return "tensor"


def _containers(value: Any) -> list[Any]:
    found = [value] if isinstance(value, list | dict | set) else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return found + [c for part in parts for c in _containers(part)]


def trace_function(function: Any, given: Arguments, max_trips: int, name: str) -> Traced:
    """Trace a function for arguments like these: with the shapes and dtypes of arrays, and the values of everything
    else.

    Raises Unsupported with everything that can't be compiled, CuvilError, and whatever the function itself raises
    regardless of its arrays' values.
    """
    plain = getattr(function, "__func__", function)
    if isinstance(plain, Function):
        check(plain)
    body = _Body(function, given, max_trips)
    tensors = tuple(as_tensor(x).detach() for x in given.arrays)
    exported = _export(body, tensors, name, plain)
    trace = body.record.trace
    assert trace is not None
    gradients = sorted(trace.reads.facts & GRADIENTS)
    if gradients and any(isinstance(x, torch.Tensor) and x.requires_grad for x in given.arrays):
        why = "of an argument that requires grad; a compiled function computes no gradients, call x.detach() first"
        raise Unsupported([Refusal(f".{n}", why) for n in gradients], f"function {name}")
    if not body.record.as_given and (others := sorted(trace.reads.facts - GRADIENTS - {STRIDES})):
        why = "depends on how an argument lies in memory, and its elements have gaps or repeat; pass a copy of it"
        raise Unsupported([Refusal(n, why) for n in others], f"function {name}")
    if altered := trace.reads.altered():
        why = "isn't the same while a function is compiled; pass its value as an argument"
        raise Unsupported([Refusal(name, why) for name in altered], f"function {name}")
    program = load_torch(exported, name=name)
    return _described(program, body, trace, given)


def _export(body: _Body, tensors: tuple[torch.Tensor, ...], name: str, plain: Any) -> torch.export.ExportedProgram:
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch's own internals
        try:
            return torch.export.export(body, tensors, strict=False)
        except Exception as e:  # tracing runs the user's code: anything may be raised
            error = body.record.error if body.record.error is not None else e
            raise _explained(error, name, plain) from None


def _explained(error: Exception, name: str, plain: Any) -> Exception:
    if isinstance(error, Unsupported):
        return Unsupported(error.refusals, f"function {name}")
    if isinstance(error, CuvilError):
        return error
    at = raised_at(error) or (place(plain) if isinstance(plain, Function) else "")
    kind = type(error).__module__.partition(".")[0]
    if kind == "torch" or isinstance(error, RecursionError | NotImplementedError):
        return CuvilError(f"{name} can't be compiled: {at}: {reason(error)}")
    error.add_note(f"raised at {at} while {name} was compiled: it doesn't depend on the values of its arrays")
    return error


def _described(program: Program, body: _Body, trace: Trace, given: Arguments) -> Traced:
    """The program with its own names, guards and writes."""
    count = sum(1 for leaf in body.record.leaves if leaf.kind != "fixed")
    if not count and (trace.checks or body.record.written):
        count = 1
    written = [f"{given.names[i]}.new" for i in body.record.written]
    checked = [f"check{i}" for i in range(len(trace.checks))]
    names = [*(f"out{i}" for i in range(count)), *written, *checked]
    old = [n for n, _ in program.outputs]
    hidden = {g.output for g in program.calling.guards}
    if program.calling.states or program.calling.writes:
        raise CuvilError(f"{program.name}: changes buffers of a module, which a compiled function can't keep")
    visible = [n for n in old if n not in hidden]
    if len(visible) != len(names):
        raise CuvilError(f"{program.name}: {len(names)} results were traced, the program has {len(visible)}")
    renamed = dict(zip(visible, names, strict=True))
    program.main.attributes["output_names"] = ArrayAttr([StringAttr(renamed.get(n, n)) for n in old])
    program.main.attributes["input_names"] = ArrayAttr([StringAttr(n) for n in given.names])
    guards = [Guard(n, c.message) for n, c in zip(checked, trace.checks, strict=True)]
    writes = [Write(given.names[i], n) for i, n in zip(body.record.written, written, strict=True)]
    calling = Calling(guards=(*guards, *program.calling.guards), writes=tuple(writes))
    errors = {c.message: c.error for c in trace.checks if c.error is not None}
    leaves = tuple(body.record.leaves)
    return Traced(replace(program, calling=calling), leaves, body.record.spec, errors, trace.reads)


__all__ = [
    "MAX_TRIPS",
    "Arguments",
    "ResultValue",
    "Traced",
    "arguments",
    "call",
    "is_array",
    "is_tracing",
    "trace_function",
]

"""A program: one `func.func @main` of level1 ops and the store of its constants; and how to build, run, print and read
one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, Builtin, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import Func, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir import Region as MlirRegion
from xdsl.parser import Parser

from cuvil_hw import dtypes
from cuvil_hw.contract.calling import PLAIN, Calling, Guard, Range
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level1, loops
from cuvil_hw.ir.callers import Region, callers_elements, whole
from cuvil_hw.ops import base
from cuvil_hw.ops.elementwise import LogicalNot
from cuvil_hw.ops.index import GatherElements, GatherND, ScatterElements, ScatterND
from cuvil_hw.ops.logic import LogicalAnd, LogicalOr, Where
from cuvil_hw.ops.shape import BroadcastTo, Gather
from cuvil_hw.types import TensorType

Array = npt.NDArray[Any]


def _ascending(taken: range) -> tuple[int, int, int]:
    """Start, count and step of the same indices, smallest first."""
    up = taken if taken.step > 0 else taken[::-1]
    return up.start, len(up), up.step


@dataclass(frozen=True)
class Program:
    """A model at level1.

    Attributes:
        module: holds one function, @main; passes change it in place.
        constants: the arrays that the module names by digest; passes only add to them.
        calling: which of its ports are state, guards and inputs written back.
    """

    module: ModuleOp
    constants: ConstantStore
    name: str = "model"
    notes: dict[str, Any] = field(default_factory=dict)
    calling: Calling = PLAIN

    @property
    def main(self) -> FuncOp:
        for op in self.module.body.block.ops:
            if isinstance(op, FuncOp) and op.sym_name.data == "main":
                return op
        raise CuvilError("the module has no function @main")

    @property
    def block(self) -> Block:
        return self.main.body.block

    def _names(self, key: str, count: int, prefix: str) -> tuple[str, ...]:
        attr = self.main.attributes.get(key)
        if isinstance(attr, ArrayAttr):
            return tuple(a.data for a in attr if isinstance(a, StringAttr))
        return tuple(f"{prefix}{i}" for i in range(count))

    @property
    def inputs(self) -> tuple[tuple[str, TensorType], ...]:
        args = self.block.args
        return tuple(zip(self._names("input_names", len(args), "in"), map(level1.type_of, args), strict=True))

    @property
    def outputs(self) -> tuple[tuple[str, TensorType], ...]:
        end = self.block.last_op
        values = list(end.operands) if end is not None else []
        return tuple(zip(self._names("output_names", len(values), "out"), map(level1.type_of, values), strict=True))

    @property
    def given(self) -> tuple[tuple[str, TensorType], ...]:
        """The inputs that a caller gives: all but state."""
        kept = self.calling.kept_inputs
        return tuple((name, kind) for name, kind in self.inputs if name not in kept)

    def ops(self) -> Iterator[Operation]:
        """Operations of @main in order, the return included, groups not entered."""
        yield from self.block.ops

    def text(self) -> str:
        """MLIR text; constants are handles."""
        return str(self.module)

    def verify(self) -> None:
        self.module.verify()
        loops.check(self.block)

    def clone(self) -> Program:
        """A copy that passes can change; the constants, which are only ever added to, are the same."""
        return Program(self.module.clone(), self.constants, self.name, dict(self.notes), self.calling)


class Builder:
    """Builds a program op by op; front ends use nothing else."""

    def __init__(self, inputs: Sequence[tuple[str, TensorType]], name: str = "model") -> None:
        """Raises CuvilError for an input that no memory holds."""
        for input_name, kind in inputs:
            if why := base.too_large(kind):
                raise CuvilError(f"{name}: input {input_name!r} would be {why}; give it a smaller shape")
        self.name = name
        self.constants = ConstantStore()
        self.block = Block(arg_types=[level1.to_mlir(t) for _, t in inputs])
        self._inputs = tuple(inputs)
        self._guards: dict[str, SSAValue] = {}
        self._ranges: dict[tuple[str, Region], tuple[int, int]] = {}
        self._active: SSAValue | None = None

    def input(self, i: int) -> SSAValue:
        return self.block.args[i]

    def const(self, array: Any, dtype: str | None = None, loc: str = "") -> SSAValue:
        """A constant; `dtype` when it is narrower than its NumPy container."""
        data = np.asarray(array)
        dtype = dtype or dtypes.from_numpy(data.dtype)
        kind = TensorType(tuple(data.shape), dtype)
        return self._put(level1.const_handle(self.constants.add(data, dtype), kind, loc))

    def op(self, op: base.Op, *inputs: SSAValue, loc: str = "") -> SSAValue:
        """Append `op` and return its only result."""
        return self.ops(op, *inputs, loc=loc)[0]

    def ops(self, op: base.Op, *inputs: SSAValue, loc: str = "") -> tuple[SSAValue, ...]:
        """Append `op` and return all its results. Raises ShapeError."""
        if self._active is not None and op.takes_indices and not self._known_inside(op, inputs):
            inputs = (inputs[0], self._harmless(inputs[1], loc), *inputs[2:])
        results = self._append(op, inputs, loc)
        if op.takes_indices:
            self._want_inside(op, level1.type_of(inputs[0]).shape, inputs[1])
        return results

    def _want_inside(self, op: base.Op, shape: Sequence[int], indices: SSAValue) -> None:
        """Ranges of the indices of one op into data of `shape`."""
        if isinstance(op, GatherND | ScatterND):  # the last dimension of the indices counts axes
            lead, first = level1.type_of(indices).shape, op.batch_dims if isinstance(op, GatherND) else 0
            for d in range(lead[-1]):
                column = (*whole(lead[:-1]), range(d, d + 1))
                self.within(indices, -shape[first + d], shape[first + d] - 1, column)
        elif isinstance(op, Gather | GatherElements | ScatterElements):
            self.within(indices, -shape[op.axis], shape[op.axis] - 1)

    def _append(self, op: base.Op, inputs: Sequence[SSAValue], loc: str) -> tuple[SSAValue, ...]:
        operation = level1.create(op, inputs, loc)
        self.block.add_op(operation)
        return tuple(operation.results)

    def _put(self, operation: Operation) -> SSAValue:
        self.block.add_op(operation)
        return operation.results[0]

    @contextmanager
    def when(self, condition: SSAValue, loc: str = "") -> Iterator[None]:
        """What is built meanwhile only counts where `condition`, a bool of shape (), is true: the branch of a condition
        that is computed anyhow, a trip of a loop that may have ended. Guards hold elsewhere, and indices, which may be
        wild there, become 0."""
        outer = self._active
        self._active = condition if outer is None else self.op(LogicalAnd(), outer, condition, loc=loc)
        try:
            yield
        finally:
            self._active = outer

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What is built meanwhile is taken back where an exception is raised."""
        last, guards, ranges = self.block.last_op, dict(self._guards), dict(self._ranges)
        try:
            yield
        except Exception:
            while (operation := self.block.last_op) is not last:
                assert operation is not None
                self.block.erase_op(operation)
            self._guards, self._ranges = guards, ranges
            raise

    @property
    def guarded(self) -> int:
        """How many guards there are so far."""
        return len(self._guards)

    def guard(self, ok: SSAValue, message: str, loc: str = "") -> None:
        """Demand that `ok`, a bool of shape (), be true: else a call raises GuardError with `message`, which says what
        happened and what to do."""
        if level1.type_of(ok) != TensorType((), "bool"):
            raise CuvilError(f"a guard is a bool of shape (), not {level1.type_of(ok)}")
        if self._active is not None:
            ok = self.op(LogicalOr(), ok, self.op(LogicalNot(), self._active, loc=loc), loc=loc)
        other = self._guards.get(message)
        self._guards[message] = ok if other is None else self.op(LogicalAnd(), other, ok, loc=loc)

    def within(self, indices: SSAValue, low: int, high: int, taken: Region | None = None) -> None:
        """Demand that the elements `taken` of `indices` (all of them for None) lie in [low, high] where they are the
        caller's own: else a call raises InputError. Computed ones are not looked at."""
        if self._active is not None:
            return
        for number, region in callers_elements(indices, self.block, taken):
            name, kind = self._inputs[number]
            if dtypes.is_int(kind.dtype):
                least, most = self._ranges.get((name, region), (low, high))
                self._ranges[name, region] = max(low, least), min(high, most)

    def _known_inside(self, op: base.Op, inputs: Sequence[SSAValue]) -> bool:
        """Whether the indices are constants inside the data."""
        owner, shape = inputs[1].owner, level1.type_of(inputs[0]).shape
        if not isinstance(owner, level1.ConstOp):
            return False
        axis = getattr(op, "axis", None)
        extent = min(shape, default=0) if axis is None else shape[axis]
        indices = constant_value(owner, self.constants)
        return bool(((indices >= -extent) & (indices < extent)).all())

    def _harmless(self, indices: SSAValue, loc: str) -> SSAValue:
        """Indices where they count, else 0."""
        kind = level1.type_of(indices)
        zeros = self._put(level1.const_splat(0, kind))
        assert self._active is not None
        chosen = self._append(BroadcastTo(kind.shape), (self._active,), loc)[0] if kind.shape else self._active
        return self._append(Where(), (chosen, indices, zeros), loc)[0]

    def finish(self, outputs: Sequence[tuple[str, SSAValue]], calling: Calling = PLAIN) -> Program:
        """Close the function and verify it. `outputs` are all of it but guards; `calling` says which of them are state
        or written back."""
        taken = {name for name, _ in outputs}
        guards: list[Guard] = []
        for message, ok in self._guards.items():
            number = len(guards)
            while (name := f"guard{number}") in taken:
                number += 1
            taken.add(name)
            guards.append(Guard(name, message))
            outputs = [*outputs, (name, ok)]
        self.block.add_op(ReturnOp(*[v for _, v in outputs]))
        kind = FunctionType.from_lists([a.type for a in self.block.args], [v.type for _, v in outputs])
        main = FuncOp("main", kind, MlirRegion(self.block))
        main.attributes["input_names"] = ArrayAttr([StringAttr(n) for n, _ in self._inputs])
        main.attributes["output_names"] = ArrayAttr([StringAttr(n) for n, _ in outputs])
        shapes = {name: kind.shape for name, kind in self._inputs}
        ranges = tuple(
            Range(name, low, high, () if region == whole(shapes[name]) else tuple(map(_ascending, region)))
            for (name, region), (low, high) in self._ranges.items()
            if name not in calling.kept_inputs
        )
        calling = replace(calling, guards=(*calling.guards, *guards), ranges=(*calling.ranges, *ranges))
        program = Program(ModuleOp([main]), self.constants, self.name, calling=calling)
        program.verify()
        return program


def context() -> Context:
    """A context that can parse level1 text."""
    ctx = Context()
    for d in (Builtin, Func, level1.dialect()):
        ctx.load_dialect(d)
    return ctx


def parse(text: str, constants: ConstantStore | None = None, name: str = "model") -> Program:
    """A program from MLIR text. Raises CuvilError with line, column and reason."""
    from xdsl.utils.exceptions import ParseError, VerifyException

    try:
        module = Parser(context(), text).parse_module()
        module.verify()
    except (ParseError, VerifyException) as e:
        raise CuvilError("\n".join(["level1 text is not valid", str(e), *getattr(e, "__notes__", [])])) from e
    return Program(module, constants or ConstantStore(), name)


def evaluate(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """Run a program by the NumPy meaning of its ops. `inputs`: one array per input, exact shapes."""
    args = program.block.args
    if len(inputs) != len(args):
        raise CuvilError(f"{program.name} takes {len(args)} inputs, {len(inputs)} given")
    values: dict[SSAValue, Array] = {}
    for arg, array, (name, kind) in zip(args, inputs, program.inputs, strict=True):
        if tuple(array.shape) != kind.shape:
            raise CuvilError(f"input {name}: shape {tuple(array.shape)}, expected {kind.shape}")
        values[arg] = dtypes.convert(array, kind.dtype)
    return _run(program.block, values, program.constants)


def _run(block: Block, values: dict[SSAValue, Array], constants: Mapping[str, Array]) -> list[Array]:
    results: list[list[Array]] = []

    def apply(operation: Operation) -> None:
        operands = [values[v] for v in operation.operands]
        match operation:
            case level1.ConstOp():
                values[operation.results[0]] = constant_value(operation, constants)
            case level1.GroupOp():
                inner: dict[SSAValue, Array] = dict(zip(operation.body.block.args, operands, strict=True))
                for result, array in zip(operation.results, _run(operation.body.block, inner, constants), strict=True):
                    values[result] = array
            case level1.TensorOp():
                for result, array in zip(operation.results, base.evaluate(operation.op, operands), strict=True):
                    values[result] = array
            case _:  # return or yield
                results.append(operands)

    loops.run(loops.arranged(block), values, apply)
    if not results:
        raise CuvilError("a block ends without return or yield")
    return results[0]


def constant_value(operation: level1.ConstOp, constants: Mapping[str, Array]) -> Array:
    """The array of a const operation."""
    kind = level1.type_of(operation.results[0])
    if operation.handle is not None:
        return constants[operation.handle.data].reshape(kind.shape)
    value = level1.splat_value(operation)
    return np.full(kind.shape, dtypes.convert(value, "bf16") if kind.dtype == "bf16" else value, to_numpy(kind.dtype))

"""Channels are padded where their number has no divisors to fold by: filters of zeros make more of them, weights of
zeros drop them again.

before: %1 = conv %x {61 filters}; %2 = rescale %1; %3 = linear %2 {61 inputs}
after:  %1 = conv %x {64 filters, 3 of zeros}; %2 = rescale %1; %3 = linear %2 {64 inputs, weights of zeros for 3}

A group of values that have their channels in common (what lies between layers) is padded as a whole, or not where an op
looks at its channels otherwise. At inputs and outputs of the program a kernel of its own adds or drops channels. What
padded channels hold is never read by more than weights of zeros, so no result changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.integer import Lut, Rescale
from cuvil_hw.ops.nn import Conv, Linear
from cuvil_hw.ops.pool import MaxPool, SumPool
from cuvil_hw.ops.reduce import ReduceMax, ReduceMin, ReduceSum
from cuvil_hw.ops.shape import BroadcastTo, Pad, Reshape, Slice
from cuvil_hw.passes.edit import Inserter, const_array, insert, is_const, owner, users, walk
from cuvil_hw.passes.edit import replace as replace_op


@dataclass(eq=False)
class _Channels:
    """Of values that are padded together: how many, whether something forbids it, which layers make or read them."""

    count: int
    fixed: bool = False
    layers: list[str] = field(default_factory=list)
    joined: _Channels | None = None

    @property
    def root(self) -> _Channels:
        return self if self.joined is None else self.joined.root


@dataclass(frozen=True)
class _Place:
    """Where a value has its channels: dimension `axis` has `each` elements for each of them, one channel after
    another."""

    of: _Channels
    axis: int
    each: int = 1


def run(program: Program, extent: Callable[[int], int]) -> None:
    """`extent`: to how many a number of channels is padded. A note in `program` names what was."""
    places = _Places(program, extent)
    padded = {p.of.root: extent(p.of.root.count) for p in places.of.values() if not p.of.root.fixed}
    padded = {c: n for c, n in padded.items() if n > c.count and c.layers}
    if not padded:
        return
    _Rewrite(program, places.of, padded).run()
    said = [f"{' and '.join(dict.fromkeys(c.layers))} {c.count} → {n}" for c, n in padded.items()]
    program.notes["channels"] = (
        f"channels are padded by weights of zeros, so that a number of them can be computed at once: {', '.join(said)}",
    )


class _Places:
    """The channels of every value whose ops are known to keep them apart."""

    def __init__(self, program: Program, extent: Callable[[int], int]) -> None:
        self.program, self.extent = program, extent
        self.of: dict[SSAValue, _Place] = {}
        for argument in program.block.args:
            self._argument(argument)
        for operation in program.block.ops:
            if isinstance(operation, level1.TensorOp):
                place = self._result(operation)
                if place is None:
                    self._fix(*operation.operands)
                elif len(operation.results) == 1 and _integer(operation.results[0]):
                    self.of[operation.results[0]] = place
                else:
                    self._fix(*operation.operands)
                    place.of.root.fixed = True
            elif not isinstance(operation, ReturnOp):
                self._fix(*operation.operands)

    def _argument(self, value: SSAValue) -> None:
        """Inputs are padded where layers alone read them."""
        layers = [o for o in users(value) if isinstance(o, level1.TensorOp) and value not in list(o.operands)[1:]]
        axes = {_axis(o) for o in layers}
        if _integer(value) and layers == users(value) and len(axes) == 1 and (axis := axes.pop()) is not None:
            self.of[value] = _Place(_Channels(level1.type_of(value).shape[axis]), axis)

    def _fix(self, *values: SSAValue) -> None:
        for value in values:
            if value in self.of:
                self.of[value].of.root.fixed = True

    def _result(self, operation: level1.TensorOp) -> _Place | None:
        """Where the result has its channels; None where the op isn't known to leave padding alone."""
        op, x = operation.op, operation.operands[0]
        at, loc = self.of.get(x), level1.loc_of(operation)
        axis = _axis(operation)
        if axis is not None:
            if not all(is_const(v) for v in operation.operands[1:]) or not _integer(operation.results[0]):
                return None
            if at is not None and (at.axis != axis or (at.each > 1 and isinstance(op, Conv))):
                return None
            if at is not None:
                at.of.root.layers.append(loc)
            made = level1.type_of(operation.results[0])
            return _Place(_Channels(made.shape[axis], layers=[loc]), axis)
        if at is None:
            return None
        shape = level1.type_of(operation.results[0]).shape
        match op:
            case Conv():
                by_channel = op.groups == level1.type_of(x).shape[1] == shape[1]
                constant = all(is_const(v) for v in operation.operands[1:])
                return at if by_channel and constant and (at.axis, at.each) == (1, 1) else None
            case MaxPool() | SumPool():
                return at if at.axis == 1 else None
            case Lut():
                return at
            case Rescale():
                return at if op.axis == at.axis or len(op.channels) == 1 else None
            case ReduceSum() | ReduceMax() | ReduceMin() if at.axis not in op.axes:
                gone = 0 if op.keepdims else sum(a < at.axis for a in op.axes)
                return replace(at, axis=at.axis - gone)
            case Pad(mode="constant") if not op.pads[at.axis] and not op.pads[len(shape) + at.axis]:
                return at
            case Slice() if shape[at.axis] == level1.type_of(x).shape[at.axis] and op.steps[at.axis] == 1:
                return at
            case Reshape():
                return _reshaped(at, level1.type_of(x).shape, shape)
        if op.pointwise and not op.composite:
            return self._together(operation)
        return None

    def _together(self, operation: level1.TensorOp) -> _Place | None:
        """Elementwise, of values padded alike and constants."""
        found = [self.of.get(v) for v in operation.operands if not is_const(v) and _spread(v) is None]
        first, shape = found[0], level1.type_of(operation.results[0]).shape
        if first is None or any(level1.type_of(v).shape != shape for v in operation.operands):
            return None
        for other in found[1:]:
            if other is None or (other.axis, other.each) != (first.axis, first.each):
                return None
            a, b = first.of.root, other.of.root
            if a is not b:
                b.joined, a.fixed = a, a.fixed or b.fixed
                a.layers += b.layers
        return first


def _integer(value: SSAValue) -> bool:
    return dtypes.is_int(level1.type_of(value).dtype)


def _axis(operation: level1.TensorOp) -> int | None:
    """The dimension of channels on both sides of a layer whose outputs each read all of them; None for other ops."""
    match operation.op:
        case Conv(groups=1):
            return 1
        case Linear():
            return level1.type_of(operation.operands[0]).rank - 1
    return None


def _spread(value: SSAValue) -> level1.TensorOp | None:
    """The broadcast of a constant behind a value."""
    operation = owner(value)
    known = isinstance(operation, level1.TensorOp) and isinstance(operation.op, BroadcastTo)
    return operation if known and isinstance(operation, level1.TensorOp) and is_const(operation.operands[0]) else None


def _reshaped(at: _Place, before: Sequence[int], after: Sequence[int]) -> _Place | None:
    """Dimensions behind the channels may join theirs."""
    for axis, extent in enumerate(after):
        if prod(after[:axis]) == prod(before[: at.axis]) and extent > 1:
            ratio, rest = divmod(extent, before[at.axis])
            return _Place(at.of, axis, at.each * ratio) if ratio and not rest else None
    return None


class _Rewrite:
    def __init__(self, program: Program, places: dict[SSAValue, _Place], padded: dict[_Channels, int]) -> None:
        self.program, self.padded = program, padded
        self.wanted: dict[SSAValue, tuple[int, int]] = {}  # axis and new extent of a value
        for value, place in places.items():
            count = padded.get(place.of.root)
            if count is not None:
                self.wanted[value] = (place.axis, count * place.each)

    def run(self) -> None:
        block = self.program.block
        end = block.last_op
        assert end is not None
        for n, value in enumerate(end.operands):
            if value in self.wanted:
                kind = level1.type_of(value)
                cut = Slice((0,) * kind.rank, kind.shape, (1,) * kind.rank)
                axis, extent = self.wanted[value]
                # What it reads is padded below.
                wide = kind.with_shape((*kind.shape[:axis], extent, *kind.shape[axis + 1 :]))
                end.operands[n] = self._alone(f"narrow_{n}", cut, value, end, wide)
        for n, argument in enumerate(block.args):
            if argument in self.wanted:
                self._widen(n, argument)
        for operation in walk(block):
            if any(v in self.wanted for v in (*operation.operands, *operation.results)):
                self._padded(operation)

    def _alone(self, label: str, op: Op, value: SSAValue, anchor: Operation, kind: Any) -> SSAValue:
        """A kernel of its own, which joins no other. `kind`: of what it will read."""
        inner = Block(arg_types=[level1.to_mlir(kind)])
        made = level1.create(op, [inner.args[0]], "")
        inner.add_op(made)
        inner.add_op(level1.YieldOp(operands=[[made.results[0]]]))
        group = level1.group(label, [value], [level1.type_of(made.results[0])], Region(inner))
        block = anchor.parent
        assert block is not None
        block.insert_op_before(group, anchor)
        return group.results[0]

    def _widen(self, n: int, argument: SSAValue) -> None:
        kind, (axis, extent) = level1.type_of(argument), self.wanted.pop(argument)
        more = tuple(extent - kind.shape[d] if d == axis else 0 for d in range(kind.rank))
        readers = [(use.operation, use.index) for use in argument.uses]
        first = self.program.block.first_op
        assert first is not None
        wide = self._alone(f"widen_{n}", Pad((0,) * kind.rank + more), argument, first, kind)
        for operation, index in readers:
            operation.operands[index] = wide
        self.wanted[wide] = (axis, extent)

    def _padded(self, operation: level1.TensorOp) -> None:
        put, op, operands = insert(self.program, operation), operation.op, list(operation.operands)
        source = self.wanted.get(operands[0])
        result = self.wanted.get(operation.results[0])
        if _axis(operation) is not None or isinstance(op, Conv):
            op, operands = self._layer(put, operation)
        elif result is not None:
            axis, extent = result
            match op:
                case Rescale():
                    if op.axis == axis:
                        m, s = _longer(op.multiplier, extent), _longer(op.shift, extent)
                        op = replace(op, multiplier=m, shift=s, offset=_longer(op.offset, extent, 0))
                case Reshape(shape=shape):
                    op = Reshape((*shape[:axis], extent, *shape[axis + 1 :]))
                case Slice(sizes=sizes):
                    assert source is not None
                    op = replace(op, sizes=(*sizes[:axis], extent, *sizes[axis + 1 :]))
            operands = [v if v in self.wanted else self._constant(put, v, axis, extent) for v in operands]
        new = put.op(op, *operands)
        if result is not None:
            self.wanted[new] = result
        replace_op(operation, new)

    def _layer(self, put: Inserter, operation: level1.TensorOp) -> tuple[Op, list[SSAValue]]:
        """With filters and weights that add nothing: of the weights' zero points."""
        op, (x, *constants) = operation.op, operation.operands
        assert isinstance(op, Conv | Linear)
        source, result = self.wanted.get(x), self.wanted.get(operation.results[0])
        w, *bias = (const_array(self.program, v) for v in constants)
        assert w is not None
        outputs = result[1] if result is not None else w.shape[0]
        zero = op.w_zp if len(op.w_zp) == 1 else op.w_zp + (0,) * (outputs - w.shape[0])
        by_channel = isinstance(op, Conv) and op.groups > 1
        inputs = source[1] if source is not None and not by_channel else w.shape[1]
        wide = np.empty((outputs, inputs, *w.shape[2:]), w.dtype)
        wide[:] = np.asarray(zero, w.dtype).reshape(-1, *[1] * (w.ndim - 1))
        wide[: w.shape[0], : w.shape[1]] = w
        made = [put.const(wide, level1.type_of(constants[0]).dtype)]
        for value, b in zip(constants[1:], bias, strict=True):
            assert b is not None
            made.append(put.const(np.pad(b, (0, outputs - len(b))), level1.type_of(value).dtype))
        changed: dict[str, Any] = {"w_zp": zero} | ({"groups": outputs} if by_channel else {})
        return replace(op, **changed), [x, *made]

    def _constant(self, put: Inserter, value: SSAValue, axis: int, extent: int) -> SSAValue:
        """A constant, or one that is broadcast, with its last element along `axis` repeated."""
        shape, spread = level1.type_of(value).shape, _spread(value)
        source = value if spread is None else spread.operands[0]
        small = level1.type_of(source)
        at = axis - (len(shape) - small.rank)
        if at >= 0 and small.shape[at] > 1:
            array = const_array(self.program, source)
            assert array is not None
            more = [(0, extent - n if d == at else 0) for d, n in enumerate(array.shape)]
            source = put.const(np.pad(array, more, mode="edge"), small.dtype)
        whole = (*shape[:axis], extent, *shape[axis + 1 :])
        return source if level1.type_of(source).shape == whole else put.op(BroadcastTo(whole), source)


def _longer(values: tuple[int, ...], extent: int, more: int | None = None) -> tuple[int, ...]:
    """Parameters by channel and as many of `more`, or of the last one, as are missing."""
    last = values[-1] if more is None else more
    return values + (last,) * (extent - len(values)) if len(values) > 1 else values

"""Selected rows moved to the front, in their order: for what depends on which of them is the n-th, such as slices, and
for what combines rows that several masks select.

`rows` that lie in front are the first of `full`, and the mask says how many count. What PyTorch demands of their
number becomes a guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from xdsl.ir import SSAValue

from cuvil_hw import ops
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axis_of, dtype_name
from cuvil_hw.frontend.torch.aten.shape import joined, part
from cuvil_hw.frontend.torch.packed import SCALAR, Packed, count, data_axis, filled, packed_in, same, unpacked
from cuvil_hw.ops.shape import Gather
from cuvil_hw.types import TensorType

Number = int | SSAValue  # of a slice's end, or of rows: known, or i64 of shape ()
SLICES = ("aten.slice.Tensor", "aten.slice_copy.Tensor")
SPLITS = ("aten.split_with_sizes.default", "aten.split_with_sizes_copy.default")
SLICE_WRITES = ("aten.slice_scatter.default",)
ARANGES = ("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
PADS = ("aten.pad.default", "aten.constant_pad_nd.default")
MOST_ROWS = 2**24
_END = 2**62  # no axis is longer


def in_front(e: AtenEmitter, rows: Packed) -> Packed:
    """The same rows, those that count first."""
    if rows.front:
        return rows
    n = e.shape(rows.full)[rows.axis]
    line = TensorType((n,), "i64")
    ahead = e.op(ops.CumSum(0, exclusive=True), e.cast(rows.mask, "i64"))
    order = e.op(ops.PositionOf(0, n), e.op(ops.Where(), rows.mask, ahead, e.splat(n, line)))
    full = e.op(Gather(rows.axis), rows.full, order)
    return replace(rows, full=full, mask=first(e, n, count(e, rows.mask)), front=True)


def first(e: AtenEmitter, n: int, how_many: SSAValue) -> SSAValue:
    """bool (n,): true for as many."""
    return e.op(ops.Less(), torch.arange(n), e.broadcast(how_many, (n,)))


def agreeing(e: AtenEmitter, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments, with rows of one mask alone: what several select lies in front, and is demanded to be as many."""
    found = packed_in(args)
    if all(same(p.mask, found[0].mask) for p in found):
        return args
    n = min(e.shape(p.full)[p.axis] for p in found)
    how_many = count(e, found[0].mask)
    for other in found[1:]:
        equal = e.op(ops.Equal(), how_many, count(e, other.mask))
        e.builder.guard(equal, f"{e.loc}: combines what two masks select, which are different numbers of rows", e.loc)
    mask = first(e, n, how_many)

    def cut(p: Packed) -> Packed:
        return replace(p, full=part(e, in_front(e, p).full, p.axis, 0, n), mask=mask, front=True)

    return unpacked(args, cut)  # type: ignore[no-any-return]


def settled(e: AtenEmitter, result: Any, made: Any) -> Any:
    """A node's result; rows whose number the model fixes, by a check or a shape that they must fit, are a tensor."""
    if isinstance(result, list | tuple):
        return [settled(e, r, f) for r, f in zip(result, made, strict=False)]
    if not isinstance(result, Packed) or data_axis(e, made) is not None:
        return result
    return dense(e, result, int(made.shape[result.axis]))


def dense(e: AtenEmitter, rows: Packed, size: int) -> Value:
    """The rows as a tensor; a call in which their number isn't `size` raises."""
    equal = e.op(ops.Equal(), count(e, rows.mask), e.splat(size, SCALAR))
    e.builder.guard(equal, f"{e.loc}: a mask selects another number of rows than {size}, which the model takes", e.loc)
    return resized(e, in_front(e, rows).full, rows.axis, size)


def resized(e: AtenEmitter, x: Value, axis: int, size: int, value: float | int | bool = 0) -> Value:
    """The first `size` of an axis, `value` behind."""
    kind = e.type(x)
    n = kind.shape[axis]
    if size <= n:
        return part(e, x, axis, 0, size)
    behind = e.splat(value, kind.with_shape((*kind.shape[:axis], size - n, *kind.shape[axis + 1 :])))
    return joined(e, [x, behind], axis)


def all_of(e: AtenEmitter, x: Value, axis: int) -> Packed:
    """A tensor's rows, all of which count."""
    return Packed(x, e.ssa(torch.ones(e.shape(x)[axis], dtype=torch.bool)), e.loc, axis, front=True)


def number(e: AtenEmitter, value: Number) -> SSAValue:
    return e.splat(value, SCALAR) if isinstance(value, int) else value


def clamped(e: AtenEmitter, value: SSAValue, low: Number, high: Number) -> SSAValue:
    return e.op(ops.Minimum(), e.op(ops.Maximum(), value, number(e, low)), number(e, high))


def ends(e: AtenEmitter, start: Any, end: Any, extent: Number) -> tuple[SSAValue, SSAValue]:
    """From where to where a slice goes, as Python counts: from behind where negative, and inside the extent."""

    def inside(value: Any, default: Number) -> SSAValue:
        if value is None or (isinstance(value, int) and value >= _END):
            return number(e, default)
        if not isinstance(value, int | SSAValue):
            e.refuse("slices where neither numbers nor counts say")
        at = number(e, value)
        below = e.op(ops.Less(), at, number(e, 0))
        at = e.op(ops.Where(), below, e.op(ops.Add(), at, number(e, extent)), at)
        return clamped(e, at, 0, extent)

    return inside(start, 0), inside(end, extent)


def sliced(e: AtenEmitter, x: Value | Packed, dim: int, start: Any, end: Any, step: int) -> Packed:
    """A slice of selected rows, or one of a tensor that ends where a count says."""
    if isinstance(x, Packed):
        rows = in_front(e, x)
        how_many: Number = count(e, rows.mask)
    else:
        shape = e.shape(x)
        axis = axis_of(dim, len(shape))
        rows, how_many = all_of(e, x, axis), shape[axis]
    low, high = ends(e, start, end, how_many)
    n = e.shape(rows.full)[rows.axis]
    if step != 1:
        high = e.op(ops.Add(), high, number(e, step - 1))
    length = e.op(ops.Maximum(), e.op(ops.Sub(), high, low), number(e, 0))
    if step != 1:
        length = e.op(ops.Div(), length, number(e, step))
    full = rows.full
    if not (start in (None, 0) and step == 1):
        steps = e.op(ops.Add(), torch.arange(n) * step, e.broadcast(low, (n,)))
        line = TensorType((n,), "i64")
        full = e.op(Gather(rows.axis), full, e.op(ops.Minimum(), steps, e.splat(max(n - 1, 0), line)))
    return replace(rows, full=full, mask=first(e, n, length), front=True)


def split(e: AtenEmitter, x: Value, sizes: Sequence[Number], dim: int) -> list[Packed]:
    """Parts one behind the other whose sizes values say; a call in which they don't make up the whole raises."""
    n = e.shape(x)[axis_of(dim, len(e.shape(x)))]
    start, parts = number(e, 0), []
    for size in sizes:
        end = e.op(ops.Add(), start, e.op(ops.Maximum(), number(e, size), number(e, 0)))
        parts.append(sliced(e, x, dim, start, end, 1))
        start = end
    ok = e.op(ops.Equal(), start, number(e, n))
    e.builder.guard(ok, f"{e.loc}: splits {n} elements into parts that are another number", e.loc)
    return parts


def slice_written(e: AtenEmitter, x: Value, rows: Any, dim: int, start: Any, end: Any, step: int) -> Value:
    """x[…, start:end] = rows, where counts say where it ends."""
    shape = e.shape(x)
    axis = axis_of(dim, len(shape))
    if step != 1 or not isinstance(rows, Packed) or rows.axis != axis:
        e.refuse("writes rows to a slice that a count ends, in another way than one by one; use a mask")
    low, high = ends(e, start, end, shape[axis])
    wanted = e.op(ops.Maximum(), e.op(ops.Sub(), high, low), number(e, 0))
    equal = e.op(ops.Equal(), count(e, rows.mask), wanted)
    e.builder.guard(equal, f"{e.loc}: writes another number of rows than the slice has", e.loc)
    n = shape[axis]
    back = e.op(ops.Sub(), torch.arange(n), e.broadcast(low, (n,)))
    inside = e.op(ops.LogicalAnd(), e.op(ops.GreaterEqual(), back, e.splat(0, e.type(back))),
                  e.op(ops.Less(), back, e.broadcast(wanted, (n,))))  # fmt: skip
    return put_in_order(e, x, inside, back, rows)


def put_in_order(e: AtenEmitter, x: Value, chosen: Value, order: Value, rows: Packed) -> Value:
    """x with the row of number `order` (n,) where `chosen` (n,), along the axis of the rows."""
    shape, axis = e.shape(x), rows.axis
    wide = e.broadcast(e.reshape(chosen, [n if d == axis else 1 for d, n in enumerate(shape)]), shape)
    return e.op(ops.Where(), wide, e.cast(by_number(e, rows, order), e.type(x).dtype), x)


def by_number(e: AtenEmitter, rows: Packed, order: Value) -> SSAValue:
    """The rows whose numbers among the selected ones are given; the first or last ones for numbers outside."""
    full, kind = in_front(e, rows).full, e.type(order)
    most = max(e.shape(full)[rows.axis] - 1, 0)
    at = e.op(ops.Minimum(), e.op(ops.Maximum(), order, e.splat(0, kind)), e.splat(most, kind))
    return e.op(Gather(rows.axis), full, at)


def arange(e: AtenEmitter, label: str, args: Sequence[Any], made: torch.Tensor) -> Packed:
    """Numbers from a start to an end that a count gives."""
    numbers = {ARANGES[0]: (0, args[0], 1), ARANGES[1]: (*args[:2], 1)}
    start, end, step = numbers.get(label, args[:3])
    bound = bound_of(e, made.shape[0])
    if not isinstance(step, int) or step < 1 or not all(isinstance(a, int | SSAValue) for a in (start, end)):
        e.refuse("counts to where values say, in steps that aren't positive whole numbers; use another arange")
    span = e.op(ops.Sub(), number(e, end), number(e, start))
    how_many = e.op(ops.Div(), e.op(ops.Add(), e.op(ops.Maximum(), span, number(e, 0)), number(e, step - 1)),
                    number(e, step))  # fmt: skip
    full = e.op(ops.Add(), torch.arange(bound) * step, e.broadcast(number(e, start), (bound,)))
    return Packed(e.cast(full, dtype_name(made.dtype)), first(e, bound, how_many), e.loc, front=True)


def bound_of(e: AtenEmitter, extent: Any) -> int:
    """The most that an extent that values decide can be, as torch knows it."""
    if isinstance(extent, int):
        return extent
    most = extent.node.shape_env.bound_sympy(extent.node.expr).upper
    if most > MOST_ROWS:
        e.refuse("has a size for which no bound is known; use one that a mask gives, or a fixed one")
    return int(most)


def pads_rows(e: AtenEmitter, args: Sequence[Any]) -> bool:
    """Whether the axis of the rows is padded."""
    rows, pads = args[0], args[1]
    behind = 2 * (len(e.shape(rows.full)) - 1 - rows.axis)
    here = pads[behind : behind + 2]
    return any(not isinstance(p, int) or p for p in here)


def padded(e: AtenEmitter, label: str, args: Sequence[Any], made: torch.Tensor) -> Value:
    """Rows with `value` behind them, up to a known number."""
    rows, pads = in_front(e, args[0]), list(args[1])
    mode, value = args[2:4] if label == "aten.pad.default" else ("constant", args[2])
    at = 2 * (len(e.shape(rows.full)) - 1 - rows.axis)
    others = pads[:at] + pads[at + 2 :]
    if mode != "constant" or pads[at] != 0 or any(p != 0 for p in others) or data_axis(e, made) is not None:
        e.refuse("pads what a mask selects to a size that isn't known, or in another way than behind it by a number")
    return resized(e, filled(e, rows, value or 0), rows.axis, int(made.shape[rows.axis]), value or 0)


__all__ = ["agreeing", "arange", "dense", "in_front", "padded", "settled", "sliced"]

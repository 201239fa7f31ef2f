"""What depends on the order or the positions of selected rows: sorting, choosing, looking up, turning round. Also
statistics that need their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from xdsl.ir import SSAValue

from cuvil_hw import dtypes, ops
from cuvil_hw.frontend.torch.aten.complex import held_types
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axes_of, axis_of
from cuvil_hw.frontend.torch.packed import INDEX, SCALAR, Packed, converted, count, end_of, filled, stand_in
from cuvil_hw.frontend.torch.packed_front import by_number, clamped, in_front, number
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.shape import Gather

_SORTS = {"aten.sort.default": 2, "aten.sort.stable": 3, "aten.argsort.default": 2}  # where `descending` stands
_SCANS = ("aten.cummax.default", "aten.cummin.default", "aten.logcumsumexp.default")
_EXTREMES = {"aten.argmax.default": -1, "aten.argmin.default": 1}
_MEDIANS = ("aten.median.default", "aten.nanmedian.default")
_SPREADS = {"aten.var.correction": False, "aten.std.correction": True}
_NORM = "aten.linalg_vector_norm.default"
_LOOKUPS = ("aten.index_select.default", "aten.embedding.default")


def convert(e: AtenEmitter, target: Any, args: Sequence[Any], made: Any) -> Any:
    """The node's result; None where it isn't about the order of rows along their axis."""
    label, x = str(target), args[0]
    if not isinstance(x, Packed):
        return None
    rank = len(e.shape(x.full))
    if label in _MEDIANS and rank == 1:
        return _median(e, label, x)
    if label in _SPREADS:
        return _spread(e, x, args, made, _SPREADS[label]) if x.axis in axes_of(args[1], rank) else None
    if label == _NORM and x.axis in axes_of(args[2], rank) and 0 <= args[1] < math.inf:  # others are errors of nothing
        return converted(e, label, [filled(e, x, 0), *args[1:]], made)
    if label == "aten.flip.default":
        return _flipped(e, x, args[1]) if x.axis in axes_of(args[1], rank) else None
    schema = target._schema.arguments if isinstance(target, torch._ops.OpOverload) else ()
    named = {a.name: v for a, v in zip(schema, args, strict=False)}
    along = isinstance(named.get("dim"), int) and axis_of(named["dim"], rank) == x.axis
    if label in _SORTS and along:
        return _of_all(e, label, x, args, made, args[_SORTS[label]])
    if label in _SCANS and along:
        return _of_all(e, label, x, args, made, False)
    if label in ("aten.topk.default", "aten.kthvalue.default") and along:
        _enough(e, x, args[1], f"the {args[1]} largest or smallest")
        full = _last(e, in_front(e, x), label.startswith("aten.topk") and args[3])
        return converted(e, label, [full, *args[1:]], made)
    if label in _EXTREMES and (along or (named.get("dim") is None and x.axis == 0)):
        _enough(e, x, 1, "the largest or smallest")
        rows = in_front(e, x)
        return converted(e, label, [filled(e, rows, end_of(e.type(x.full).dtype, _EXTREMES[label])), *args[1:]], made)
    return None


def _enough(e: AtenEmitter, x: Packed, least: int, what: str) -> None:
    ok = e.op(ops.GreaterEqual(), count(e, x.mask), e.splat(least, SCALAR))
    e.builder.guard(ok, f"{e.loc}: takes {what} of the elements that a mask selects, and there are fewer", e.loc)


def _last(e: AtenEmitter, rows: Packed, descending: bool) -> Value:
    """All rows, those that don't count as what is sorted behind the others (equal ones keep their order)."""
    dtype = e.type(rows.full).dtype
    if dtypes.is_float(dtype) and not descending:
        return filled(e, rows, math.nan)
    return filled(e, rows, end_of(dtype, -1 if descending else 1))


def _of_all(e: AtenEmitter, label: str, x: Packed, args: Sequence[Any], made: Any, descending: bool) -> Any:
    """Results as long as the rows are."""
    rows = in_front(e, x)
    n = e.shape(rows.full)[x.axis]
    fakes = [stand_in(e, f, n) for f in made] if isinstance(made, list | tuple) else stand_in(e, made, n)
    results = converted(e, label, [_last(e, rows, descending), *args[1:]], fakes)
    if isinstance(results, list | tuple):
        return [replace(rows, full=r) for r in results]
    return replace(rows, full=results)


def _flipped(e: AtenEmitter, x: Packed, dims: Sequence[int]) -> Packed:
    rows = in_front(e, x)
    rank, n = len(e.shape(rows.full)), e.shape(rows.full)[x.axis]
    last = e.op(ops.Sub(), count(e, rows.mask), number(e, 1))
    back = e.op(ops.Sub(), e.broadcast(last, (n,)), torch.arange(n))
    full: Value = e.op(Gather(x.axis), rows.full, e.op(ops.Maximum(), back, e.splat(0, e.type(back))))
    for axis in axes_of(dims, rank):
        if axis != x.axis:
            full = e.op(Gather(axis), full, torch.arange(e.shape(full)[axis] - 1, -1, -1))
    return replace(rows, full=full)


def _median(e: AtenEmitter, label: str, x: Packed) -> Value:
    """The lower of two middle elements, NaN where one is, or of none."""
    rows = in_front(e, x)
    kind = e.type(rows.full)
    fakes = [torch.empty(kind.shape, dtype=d, device="meta") for d in (_torch(kind.dtype), torch.int64)]
    values, _ = converted(e, "aten.sort.default", [_last(e, rows, False), 0, False], fakes)
    how_many = count(e, rows.mask)
    if dtypes.is_float(kind.dtype):
        nans = e.op(ops.IsNan(), filled(e, rows, 0))
        number_of_nans = count(e, nans)
        if label == "aten.nanmedian.default":
            how_many = e.op(ops.Sub(), how_many, number_of_nans)
    else:
        _enough(e, x, 1, "the median")
    middle = e.op(ops.Div(), e.op(ops.Sub(), how_many, number(e, 1)), number(e, 2))
    result: Value = e.op(Gather(0), values, clamped(e, middle, 0, max(kind.shape[0] - 1, 0)))
    if dtypes.is_float(kind.dtype):
        none = e.op(ops.Equal(), how_many, number(e, 0))
        if label == "aten.median.default":
            none = e.op(ops.LogicalOr(), none, e.op(ops.Greater(), number_of_nans, number(e, 0)))
        result = e.op(ops.Where(), none, e.splat(math.nan, e.type(result)), result)
    return result


def _torch(dtype: str) -> torch.dtype:
    return getattr(torch, dtypes.record(dtype).torch)  # type: ignore[no-any-return]


def _spread(e: AtenEmitter, x: Packed, args: Sequence[Any], made: torch.Tensor, root: bool) -> Value:
    """Variance or standard deviation over the rows and other axes, in the type of its arithmetic."""
    kind, dtype = e.type(x.full), held_types(made)[0].dtype
    work = dtypes.record(dtype).work
    axes = axes_of(args[1], kind.rank)
    wide = replace(x, full=e.cast(x.full, work))
    each = math.prod(kind.shape[a] for a in axes if a != x.axis)
    how_many = e.cast(e.op(ops.Mul(), count(e, x.mask), number(e, each)), work)

    def total(value: Value) -> Value:
        return e.op(rd.ReduceSum(axes, True), filled(e, replace(wide, full=value), 0))

    def over(value: Value, n: Value) -> Value:
        return e.op(ops.Div(), value, e.broadcast(n, e.shape(value)))

    mean = over(total(wide.full), how_many)
    off = e.op(ops.Sub(), wide.full, e.broadcast(mean, kind.shape))
    less = e.op(ops.Sub(), how_many, e.splat(1.0 if args[2] is None else args[2], e.type(how_many)))
    result: Value = over(total(e.op(ops.Mul(), off, off)), e.op(ops.Maximum(), less, e.splat(0.0, e.type(less))))
    result = e.op(ops.Sqrt(), result) if root else result
    return e.reshape(e.cast(result, dtype), [int(extent) for extent in made.shape])


def index_of(e: AtenEmitter, label: str, args: Sequence[Any]) -> Value | Packed | None:
    """Which of the selected rows are looked up, where that is what a node does."""
    x = args[0]
    if not isinstance(x, Packed):
        return None
    if label == INDEX:
        given = [(axis, i) for axis, i in enumerate(args[1]) if i is not None]
        whole = len(given) == 1 and given[0][0] == x.axis
        return given[0][1] if whole else None
    rank = len(e.shape(x.full))
    if label == _LOOKUPS[0] and axis_of(args[1], rank) == x.axis:
        return args[2]  # type: ignore[no-any-return]
    return args[1] if label == _LOOKUPS[1] and x.axis == 0 else None


def looked_up(e: AtenEmitter, label: str, x: Packed, index: Value | Packed) -> Any:
    """Rows by their number among the selected ones; a call that asks for one behind the last raises."""
    at: Value = filled(e, index, 0) if isinstance(index, Packed) else index
    at = e.cast(at, "i64")
    kind = e.type(at)
    wide: SSAValue = e.ssa(e.broadcast(count(e, x.mask), kind.shape))
    zero = e.splat(0, kind)
    if label == INDEX:
        at = e.op(ops.Where(), e.op(ops.Less(), at, zero), e.op(ops.Add(), at, wide), at)
    inside = e.op(ops.LogicalAnd(), e.op(ops.GreaterEqual(), at, zero), e.op(ops.Less(), at, wide))
    if isinstance(index, Packed):
        inside = e.ssa(filled(e, replace(index, full=inside), True))
    outside = e.op(rd.ReduceSum(tuple(range(kind.rank)), False), e.cast(e.op(ops.LogicalNot(), inside), "i64"))
    ok = e.op(ops.Equal(), outside, number(e, 0))
    e.builder.guard(ok, f"{e.loc}: an index lies outside of the rows that a mask selects", e.loc)
    full = by_number(e, x, at)
    return replace(index, full=full, axis=x.axis + index.axis) if isinstance(index, Packed) else full


__all__ = ["convert", "index_of", "looked_up"]

"""ATen converters of sorting, choosing by order, and running results along an axis."""

from __future__ import annotations

import math
from typing import Any

import torch

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axis_of, converts
from cuvil_hw.frontend.torch.aten.reduce import reduced
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.shape import Gather
from cuvil_hw.types import TensorType


def _number(e: AtenEmitter, x: Value) -> Value:
    """What order is told of; booleans as integers."""
    return e.cast(x, "i8") if e.type(x).dtype == "bool" else x


def _along(e: AtenEmitter, x: Value, dim: int) -> tuple[Value, int]:
    """x with at least one dimension, and the axis."""
    shape = e.shape(x)
    return (x, axis_of(dim, len(shape))) if shape else (e.reshape(x, (1,)), 0)


def ordered(e: AtenEmitter, x: Value, axis: int, count: int, largest: bool) -> tuple[Value, Value]:
    """The first `count` along `axis` in descending or ascending order, and their positions; equal ones keep their
    order, NaN counts as larger than everything."""
    where = e.op(ew.PositionOf(axis, count), e.op(ew.Rank(axis, largest), _number(e, x)))
    return e.op(ew.GatherElements(axis), x, where), where


def _shaped(e: AtenEmitter, values: Value, where: Value) -> tuple[Value, Value]:
    return e.reshape(values, e.results[0].shape), e.reshape(where, e.results[1].shape)


@converts("sort")
def sort(e: AtenEmitter, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    x, axis = _along(e, x, dim)
    return _shaped(e, *ordered(e, x, axis, e.shape(x)[axis], descending))


@converts("sort.stable")
def sort_stable(e: AtenEmitter, x: Value, stable: bool | None, dim: int, descending: bool) -> tuple[Value, Value]:
    return sort(e, x, dim, descending)


@converts("topk")
def topk(e: AtenEmitter, x: Value, k: int, dim: int, largest: bool, is_sorted: bool) -> tuple[Value, Value]:
    x, axis = _along(e, x, dim)
    return _shaped(e, *ordered(e, x, axis, k, largest))


def _nth(e: AtenEmitter, x: Value, axis: int, n: int, keepdim: bool) -> tuple[Value, Value]:
    """The element of rank n in ascending order, and its position."""
    rank = e.op(ew.Rank(axis, False), _number(e, x))
    hit = e.op(ew.Equal(), rank, e.splat(n, e.type(rank)))
    where = e.op(rd.ArgMax(axis, True), e.cast(hit, "i8"))
    value = e.op(ew.GatherElements(axis), x, where)
    return _shaped(e, value, where)


@converts("kthvalue")
def kthvalue(e: AtenEmitter, x: Value, k: int, dim: int, keepdim: bool) -> tuple[Value, Value]:
    x, axis = _along(e, x, dim)
    return _nth(e, x, axis, k - 1, keepdim)


def _median(e: AtenEmitter, x: Value, axis: int) -> tuple[Value, Value]:
    """The lower of two middle elements; NaN where there is one: the first of them."""
    n = e.shape(x)[axis]
    rank = e.op(ew.Rank(axis, False), _number(e, x))
    hit = e.op(ew.Equal(), rank, e.splat((n - 1) // 2, e.type(rank)))
    score = e.cast(hit, "i8")
    if dtypes.is_float(e.type(x).dtype):
        nan = e.cast(e.op(ew.IsNan(), x), "i8")
        score = e.op(ew.Add(), e.op(ew.Add(), nan, nan), score)  # any NaN before the middle element
        score = e.op(ew.Minimum(), score, e.splat(2, e.type(score)))
    where = e.op(rd.ArgMax(axis, True), score)
    return e.op(ew.GatherElements(axis), x, where), where


@converts("median.dim")
def median_dim(e: AtenEmitter, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    x, axis = _along(e, x, dim)
    return _shaped(e, *_median(e, x, axis))


@converts("median")
def median(e: AtenEmitter, x: Value) -> Value:
    size = e.type(x).size
    if not size:
        return e.splat(math.nan if dtypes.is_float(e.out.dtype) else dtypes.int_range(e.out.dtype)[0], e.out)
    return e.reshape(_median(e, e.reshape(x, (size,)), 0)[0], ())


@converts("repeat_interleave.Tensor")
def repeat_interleave(e: AtenEmitter, repeats: Value, output_size: int | None) -> Value:
    """The position k repeats[k] times; their number is demanded to be the one that is given."""
    n, size = e.shape(repeats)[0], e.out.shape[0]
    times = e.cast(repeats, "i64")
    below = e.op(ew.Less(), times, e.splat(0, e.type(times)))
    # A negative number makes the sum another one than any size.
    wrong = e.op(ew.Where(), below, e.splat(size + 1, e.type(times)), times)
    equal = e.op(ew.Equal(), e.op(rd.ReduceSum((0,), False), wrong), e.splat(size, TensorType((), "i64")))
    e.builder.guard(equal, f"{e.loc}: repeat_interleave makes another number of elements than {size}", e.loc)
    ends = e.broadcast(e.reshape(e.op(ew.CumSum(0), times), (1, n)), (size, n))
    behind = e.op(ew.LessEqual(), ends, e.broadcast(torch.arange(size).reshape(size, 1), (size, n)))
    which = e.op(rd.ReduceSum((1,), False), e.cast(behind, "i64"))
    return e.cast(e.op(ew.Minimum(), which, e.splat(max(n - 1, 0), e.type(which))), e.out.dtype)


def _running(e: AtenEmitter, op: type[Any], x: Value, dim: int) -> Value:
    x, axis = _along(e, e.cast(x, e.out.dtype), dim)
    return e.reshape(e.op(op(axis), x), e.out.shape)


@converts("cumsum")
def cumsum(e: AtenEmitter, x: Value, dim: int, dtype: Any) -> Value:
    return _running(e, ew.CumSum, x, dim)


@converts("cumprod")
def cumprod(e: AtenEmitter, x: Value, dim: int, dtype: Any) -> Value:
    return _running(e, ew.CumProd, x, dim)


def _up_to(e: AtenEmitter, x: Value, axis: int) -> Value:
    """(…, n, n, …): in row i the elements up to i, the last of them repeated."""
    at = torch.arange(e.shape(x)[axis])
    return e.op(Gather(axis), x, torch.minimum(at[:, None], at))


def _running_extreme(e: AtenEmitter, x: Value, dim: int, value: type[Any], position: type[Any]) -> tuple[Value, Value]:
    """The last of equals; NaN wins from where it stands on."""
    x, axis = _along(e, x, dim)
    rows = _number(e, _up_to(e, x, axis))
    where = e.op(position(axis + 1, False, True), rows)
    last = torch.arange(e.shape(x)[axis]).reshape([-1 if d == axis else 1 for d in range(len(e.shape(x)))])
    where = e.op(ew.Minimum(), where, e.operand(last, e.type(where)))
    return _shaped(e, e.cast(e.op(value((axis + 1,)), rows), e.out.dtype), where)


@converts("cummax")
def cummax(e: AtenEmitter, x: Value, dim: int) -> tuple[Value, Value]:
    return _running_extreme(e, x, dim, rd.ReduceMax, rd.ArgMax)


@converts("cummin")
def cummin(e: AtenEmitter, x: Value, dim: int) -> tuple[Value, Value]:
    return _running_extreme(e, x, dim, rd.ReduceMin, rd.ArgMin)


@converts("logcumsumexp")
def logcumsumexp(e: AtenEmitter, x: Value, dim: int) -> Value:
    """Each row against its own maximum, so that nothing overflows or is lost."""
    shape = e.shape(x)
    x, axis = _along(e, x, dim)
    rows = _up_to(e, x, axis)
    kind = e.type(rows)
    n = e.shape(x)[axis]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    mask = mask.reshape([n if d in (axis, axis + 1) else 1 for d in range(len(kind.shape))])
    rows = e.op(ew.Where(), e.broadcast(mask, kind.shape), rows, e.splat(-math.inf, kind))
    top = e.op(rd.ReduceMax((axis + 1,), True), rows)
    finite = e.op(ew.Less(), e.op(ew.Abs(), top), e.splat(math.inf, e.type(top)))
    nan = e.op(ew.IsNan(), top)
    top = e.op(ew.Where(), e.op(ew.LogicalOr(), finite, nan), top, e.splat(0, e.type(top)))
    low = e.op(ew.Exp(), e.op(ew.Sub(), rows, e.broadcast(top, kind.shape)))
    total = e.op(ew.Log(), e.op(rd.ReduceSum((axis + 1,)), low))
    return e.reshape(e.op(ew.Add(), total, e.reshape(top, e.shape(total))), shape)


def _nanmedian(e: AtenEmitter, x: Value, axis: int) -> tuple[Value, Value]:
    """The lower middle one of the elements that are numbers; the first element where none is. NaNs rank last."""
    if not dtypes.is_float(e.type(x).dtype):
        return _median(e, x, axis)
    rank = e.op(ew.Rank(axis, False), x)
    kind = e.type(rank)
    numbers = e.cast(e.op(ew.LogicalNot(), e.op(ew.IsNan(), x)), "i64")
    count = e.op(rd.ReduceSum((axis,), True), numbers)
    one, two, zero = (e.splat(v, e.type(count)) for v in (1, 2, 0))
    middle = e.op(ew.Maximum(), e.op(ew.Div(), e.op(ew.Sub(), count, one), two), zero)
    hit = e.op(ew.Equal(), rank, e.broadcast(middle, kind.shape))
    where = e.op(rd.ArgMax(axis, True), e.cast(hit, "i8"))
    return e.op(ew.GatherElements(axis), x, where), where


@converts("nanmedian.dim")
def nanmedian_dim(e: AtenEmitter, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    x, axis = _along(e, x, dim)
    return _shaped(e, *_nanmedian(e, x, axis))


@converts("nanmedian")
def nanmedian(e: AtenEmitter, x: Value) -> Value:
    size = e.type(x).size
    return e.reshape(_nanmedian(e, e.reshape(x, (size,)), 0)[0], ()) if size else median(e, x)


def _below(e: AtenEmitter, values: Value, limits: Value, right: bool) -> Value:
    """How many of `limits` (…, n) lie below each of `values` (…, m, 1): those equal to it too if `right`. A NaN limit
    lies above every value, a NaN value above every other limit."""
    dtype = e.common_dtype(values, limits)
    shape = e.out.shape + e.shape(limits)[-1:]
    x = e.broadcast(e.cast(values, dtype), shape)
    y = e.broadcast(e.cast(limits, dtype), shape)
    above = e.op(ew.Less() if right else ew.LessEqual(), x, y)
    below = e.cast(e.op(ew.LogicalNot(), above), e.out.dtype)
    if dtypes.is_float(dtype):
        none = e.splat(0, TensorType(shape, e.out.dtype))
        below = e.op(ew.Where(), e.op(ew.IsNan(), y), none, below)
    return reduced(e, rd.ReduceSum, below, [len(e.out.shape)])


@converts("bucketize.Tensor")
def bucketize(e: AtenEmitter, x: Value, limits: Value, out_int32: bool, right: bool) -> Value:
    return _below(e, e.reshape(x, (*e.shape(x), 1)), limits, right)


@converts("searchsorted.Tensor")
def searchsorted(
    e: AtenEmitter, limits: Value, x: Value, out_int32: bool, right: bool, side: str | None, sorter: Value | None
) -> Value:
    if sorter is not None:
        limits = e.op(ew.GatherElements(len(e.shape(limits)) - 1), limits, sorter)
    lines = e.shape(limits)
    if len(lines) > 1:
        limits = e.reshape(limits, (*lines[:-1], 1, lines[-1]))
    return _below(e, e.reshape(x, (*e.shape(x), 1)), limits, right or side == "right")


@converts("mode")
def mode(e: AtenEmitter, *_: Any) -> Value:
    e.refuse("the most frequent value; use topk, or count with one_hot and sum")


@converts("nonzero_static")
def nonzero_static(e: AtenEmitter, x: Value, size: int, fill_value: int) -> Value:
    """(size, axes): where the first elements are that aren't zero, `fill_value` where there are no more."""
    shape, total = e.shape(x), e.type(x).size
    if not e.out.size or not total:
        return e.splat(fill_value, e.out)
    mask = e.cast(e.reshape(e.cast(x, "bool"), (total,)), "i64")
    order = e.op(ew.CumSum(0), mask)  # from 1 on
    kind = e.type(order)
    order = e.op(ew.Mul(), order, mask)
    at = e.op(ew.PositionOf(0, size), e.op(ew.Sub(), order, e.splat(1, kind)))
    found = e.op(Gather(0), torch.ones(shape).nonzero(), at)
    count = e.reshape(e.op(rd.ReduceSum((0,), False), mask), (1, 1))
    there = e.op(ew.Less(), e.broadcast(torch.arange(size)[:, None], e.out.shape), e.broadcast(count, e.out.shape))
    return e.op(ew.Where(), there, found, e.splat(fill_value, e.out))

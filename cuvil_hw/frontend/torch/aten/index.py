"""ATen converters of ops that pick or place elements: by index tensors, along diagonals, under sliding windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.elementwise import Operand
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axis_of, converts
from cuvil_hw.frontend.torch.aten.shape import joined, part, permuted
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.shape import Gather
from cuvil_hw.types import TensorType

REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min", "mean": "add"}


def within(e: AtenEmitter, indices: Value, extent: int) -> None:
    """Negative indices, which other ops count from the end, are errors."""
    if not isinstance(indices, torch.Tensor):
        e.builder.within(indices, 0, extent - 1)


@converts("embedding")
def embedding(e: AtenEmitter, weight: Value, indices: Value, *_: object) -> Value:
    within(e, indices, e.shape(weight)[0])
    return e.op(Gather(0), weight, indices)


@converts("index_select")
def index_select(e: AtenEmitter, x: Value, dim: int, indices: Value) -> Value:
    if not e.shape(x):
        return x
    axis = axis_of(dim, len(e.shape(x)))
    within(e, indices, e.shape(x)[axis])
    return e.op(Gather(axis), x, e.reshape(indices, (e.type(indices).size,)))


def _chosen(e: AtenEmitter, indices: Sequence[Value | None]) -> dict[int, Value]:
    """Index tensors by axis; a constant mask as the positions where it is true."""
    found: dict[int, Value] = {}
    axis = 0
    for i in indices:
        if i is None:
            axis += 1
        elif e.type(i).dtype not in ("bool", "u8"):
            found[axis] = i
            axis += 1
        elif isinstance(i, torch.Tensor):
            for positions in i.bool().nonzero(as_tuple=True):
                found[axis] = positions
                axis += 1
        else:
            e.refuse("indexing by a computed mask gives a shape that depends on data; use torch.where")
    return found


def _together(e: AtenEmitter, chosen: dict[int, Value]) -> tuple[Value, tuple[int, ...]]:
    """Positions (*s, count of axes) as i64, and s: the shape that the index tensors have in common."""
    s = tuple(np.broadcast_shapes(*(e.shape(v) for v in chosen.values())))
    columns = [e.reshape(e.broadcast(e.cast(v, "i64"), s), (*s, 1)) for v in chosen.values()]
    return joined(e, columns, len(s)), s


def _front(rank: int, axes: Sequence[int]) -> list[int]:
    """The permutation that puts `axes` first."""
    return [*axes, *(a for a in range(rank) if a not in axes)]


def _place_of(axes: Sequence[int]) -> int:
    """Where the dimensions of the indices stand in the result: at the first axis if all are neighbours, else first."""
    adjacent = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    return axes[0] if adjacent else 0


@converts("index.Tensor")
def index(e: AtenEmitter, x: Value, indices: Sequence[Value | None]) -> Value:
    chosen = _chosen(e, indices)
    axes = list(chosen)
    if len(axes) == 1:
        return e.op(Gather(axes[0]), x, chosen[axes[0]])
    at, s = _together(e, chosen)
    rank, place = len(e.shape(x)), _place_of(axes)
    picked = e.op(ew.GatherND(), permuted(e, x, _front(rank, axes)), at)
    rest = rank - len(axes)
    order = [len(s) + d for d in range(place)] + list(range(len(s))) + [len(s) + d for d in range(place, rest)]
    return permuted(e, picked, order)


@converts("index_put", "_unsafe_index_put")
def index_put(e: AtenEmitter, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    masks = [i for i in indices if i is not None and e.type(i).dtype == "bool" and not isinstance(i, torch.Tensor)]
    if masks:
        return _masked_put(e, x, indices, values, accumulate)
    chosen = _chosen(e, indices)
    axes = list(chosen)
    at, s = _together(e, chosen)
    rank, place = len(e.shape(x)), _place_of(axes)
    front = _front(rank, axes)
    rest = [e.shape(x)[a] for a in front[len(axes) :]]
    updates = e.broadcast(e.cast(values, e.out.dtype), (*rest[:place], *s, *rest[place:]))
    inner = list(range(place, place + len(s)))
    updates = permuted(e, updates, _front(len(rest) + len(s), inner))
    return permuted(
        e, _scatter_nd(e, permuted(e, x, front), at, updates, accumulate), [front.index(d) for d in range(rank)]
    )


def _scatter_nd(e: AtenEmitter, x: Value, at: Value, updates: Value, accumulate: bool) -> Value:
    if accumulate and e.out.dtype == "bool":
        e.refuse("index_put with accumulate on booleans")
    return e.op(ew.ScatterND(how="add" if accumulate else "none"), x, at, updates)


def _masked_put(e: AtenEmitter, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    """x[mask] = what is the same for every true element, or a value for each of them: then a call in which they are
    another number raises."""
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(given) != 1:
        e.refuse("assignment by a computed mask together with other indices; use torch.where")
    axis, mask = given[0]
    shape, extents, have = e.shape(x), e.shape(mask), e.shape(values)
    behind = len(shape) - axis - len(extents)
    n = have[-behind - 1] if len(have) > behind else 1
    values = e.reshape(values, [1] * (axis + 1 + behind - len(have)) + list(have))
    if n != 1:
        flat = e.cast(e.reshape(mask, (e.type(mask).size,)), "i64")
        scalar = TensorType((), "i64")
        equal = e.op(ew.Equal(), e.op(rd.ReduceSum((0,), False), flat), e.splat(n, scalar))
        e.builder.guard(equal, f"{e.loc}: assigns {n} values to the true elements of a mask, which are others", e.loc)
        ahead = e.op(ew.CumSum(0, exclusive=True), flat)
        values = e.op(Gather(axis), values, e.op(ew.Minimum(), ahead, e.splat(n - 1, e.type(ahead))))
        values = e.reshape(values, (*e.shape(values)[:axis], *extents, *e.shape(values)[axis + 1 :]))
    else:
        values = e.reshape(values, (*e.shape(values)[:axis], *[1] * len(extents), *e.shape(values)[axis + 1 :]))
    wide = e.broadcast(e.reshape(mask, (*[1] * axis, *extents, *[1] * behind)), shape)
    new = e.operand(values, e.out)
    if accumulate:
        new = e.op(ew.Add(), x, new)
    return e.op(ew.Where(), wide, new, x)


def _lines(e: AtenEmitter, *values: Value) -> list[Value]:
    """Values, those of no dimension as one element."""
    return [e.reshape(v, (1,)) if not e.shape(v) else v for v in values]


@converts("gather")
def gather(e: AtenEmitter, x: Value, dim: int, indices: Value, sparse_grad: bool) -> Value:
    x, indices = _lines(e, x, indices)
    axis = axis_of(dim, len(e.shape(x)))
    within(e, indices, e.shape(x)[axis])
    return e.reshape(e.op(ew.GatherElements(axis), x, indices), e.out.shape)


def scattered(e: AtenEmitter, how: str, x: Value, dim: int, indices: Value, updates: Value) -> Value:
    """`updates` may be larger than `indices`: only the elements with an index count."""
    if e.type(indices).size == 0:
        return x
    x, indices, updates = _lines(e, x, indices, updates)
    for d, size in enumerate(e.shape(indices)):
        updates = part(e, updates, d, 0, size)
    axis = axis_of(dim, len(e.shape(x)))
    within(e, indices, e.shape(x)[axis])
    op = ew.ScatterElements(how=how, axis=axis)
    if e.out.dtype == "bool" and how != "none":
        e.refuse("a scatter that adds or multiplies booleans")
    return e.reshape(e.op(op, x, indices, updates), e.out.shape)


def _filled(e: AtenEmitter, value: Operand, like: Value) -> Value:
    return e.operand(value, TensorType(e.shape(like), e.out.dtype))


@converts("scatter.src")
def scatter_src(e: AtenEmitter, x: Value, dim: int, indices: Value, source: Value) -> Value:
    return scattered(e, "none", x, dim, indices, source)


@converts("scatter.value")
def scatter_value(e: AtenEmitter, x: Value, dim: int, indices: Value, value: float) -> Value:
    return scattered(e, "none", x, dim, indices, _filled(e, value, indices))


@converts("scatter.reduce")
def scatter_src_reduce(e: AtenEmitter, x: Value, dim: int, indices: Value, source: Value, reduce: str) -> Value:
    return scattered(e, REDUCTIONS[reduce], x, dim, indices, source)


@converts("scatter.value_reduce")
def scatter_value_reduce(e: AtenEmitter, x: Value, dim: int, indices: Value, value: float, reduce: str) -> Value:
    return scattered(e, REDUCTIONS[reduce], x, dim, indices, _filled(e, value, indices))


@converts("scatter_add")
def scatter_add(e: AtenEmitter, x: Value, dim: int, indices: Value, source: Value) -> Value:
    return scattered(e, "add", x, dim, indices, source)


def _neutral(how: str, dtype: str) -> float | int:
    if how in ("add", "mul"):
        return int(how == "mul")
    if dtypes.is_float(dtype):
        return -math.inf if how == "max" else math.inf
    return dtypes.int_range(dtype)[0 if how == "max" else 1]


@converts("scatter_reduce.two")
def scatter_reduce(
    e: AtenEmitter, x: Value, dim: int, indices: Value, source: Value, reduce: str, include_self: bool
) -> Value:
    how = REDUCTIONS[reduce]
    if e.out.dtype == "bool":
        e.refuse("a scatter that reduces booleans")
    start = x
    if not include_self:
        start = scattered(e, "none", x, dim, indices, _filled(e, _neutral(how, e.out.dtype), indices))
    y = scattered(e, how, start, dim, indices, source)
    if reduce != "mean":
        return y
    one = e.splat(1, e.out)
    counts = scattered(e, "add", one if include_self else e.splat(0, e.out), dim, indices, _filled(e, 1, indices))
    counts = e.op(ew.Maximum(), counts, one)
    return _floor_quotient(e, y, counts)


def _floor_quotient(e: AtenEmitter, y: Value, counts: Value) -> Value:
    """Rounded down for integers; counts are positive."""
    q = e.op(ew.Div(), y, counts)
    if dtypes.is_float(e.out.dtype):
        return q
    short = e.op(ew.Less(), y, e.op(ew.Mul(), q, counts))
    return e.op(ew.Where(), short, e.op(ew.Sub(), q, e.splat(1, e.out)), q)


def _cells(shape: Sequence[int], offset: int, a: int, b: int) -> list[int]:
    """Positions of a diagonal in the row-major plane of axes a and b."""
    rows, columns = shape[a], shape[b]
    first_row, first_column = max(-offset, 0), max(offset, 0)
    count = max(min(rows - first_row, columns - first_column), 0)
    return [(first_row + i) * columns + first_column + i for i in range(count)]


def _planes(e: AtenEmitter, x: Value, a: int, b: int) -> tuple[Value, list[int]]:
    """x as (*others, extent of a · extent of b), and the permutation that was made first."""
    rank = len(e.shape(x))
    order = [d for d in range(rank) if d not in (a, b)] + [a, b]
    turned = permuted(e, x, order)
    shape = e.shape(turned)
    return e.reshape(turned, (*shape[:-2], shape[-2] * shape[-1])), order


@converts("diagonal", "diagonal_copy")
def diagonal(e: AtenEmitter, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    rank = len(e.shape(x))
    a, b = axis_of(dim1, rank), axis_of(dim2, rank)
    flat, _ = _planes(e, x, a, b)
    return e.op(Gather(rank - 2), flat, torch.tensor(_cells(e.shape(x), offset, a, b), dtype=torch.int64))


@converts("diagonal_scatter")
def diagonal_scatter(e: AtenEmitter, x: Value, source: Value, offset: int, dim1: int, dim2: int) -> Value:
    rank = len(e.shape(x))
    a, b = axis_of(dim1, rank), axis_of(dim2, rank)
    flat, order = _planes(e, x, a, b)
    y = replaced(e, flat, source, _cells(e.shape(x), offset, a, b))
    turned = e.reshape(y, [e.shape(x)[d] for d in order])
    return permuted(e, turned, [order.index(d) for d in range(rank)])


def replaced(e: AtenEmitter, x: Value, source: Value, positions: Sequence[int]) -> Value:
    """x with its last axis' elements at constant `positions` taken from those of `source`, in order."""
    if not positions:
        return x
    size = e.shape(x)[-1]
    origin = torch.zeros(size, dtype=torch.int64)
    mask = torch.zeros(size, dtype=torch.bool)
    at = torch.tensor(positions, dtype=torch.int64)
    origin[at], mask[at] = torch.arange(len(positions)), True
    spread = e.op(Gather(len(e.shape(x)) - 1), e.cast(source, e.out.dtype), origin)
    return e.op(ew.Where(), e.broadcast(mask, e.shape(x)), spread, x)


@converts("unfold", "unfold_copy")
def unfold(e: AtenEmitter, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows along an axis; their elements become the last axis."""
    if not e.shape(x):
        return e.reshape(x, e.out.shape)
    axis = axis_of(dim, len(e.shape(x)))
    count = e.out.shape[axis]
    at = torch.arange(count)[:, None] * step + torch.arange(size)
    rank = len(e.out.shape)
    order = [d for d in range(rank) if d != axis + 1] + [axis + 1]
    return permuted(e, e.op(Gather(axis), x, at), order)


@converts("as_strided", "as_strided_copy")
def as_strided(e: AtenEmitter, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Value:
    """Elements of x, which lies in its memory in order and alone, by where they are there."""
    at = torch.tensor(offset or 0)
    for extent, step in zip(size, stride, strict=True):
        at = at[..., None] + torch.arange(extent) * step
    return e.op(Gather(0), e.reshape(x, (e.type(x).size,)), at)


@converts("as_strided_scatter")
def as_strided_scatter(e: AtenEmitter, *_: object) -> Value:
    e.refuse("writes memory by strides, which compiled tensors don't have; use slices or index_copy")


@converts("masked_scatter")
def masked_scatter(e: AtenEmitter, x: Value, mask: Value, source: Value) -> Value:
    """The n-th true element of the mask takes the n-th of the source."""
    mask = e.broadcast(mask, e.out.shape)
    size = e.out.size
    flat = e.cast(e.reshape(mask, (size,)), "i64")
    ahead = e.op(ew.CumSum(0, exclusive=True), flat)
    values = e.reshape(source, (e.type(source).size,))
    near = e.op(ew.Minimum(), ahead, e.splat(e.type(source).size - 1, TensorType((size,), "i64")))
    taken = e.reshape(e.op(Gather(0), values, near), e.out.shape)
    return e.op(ew.Where(), mask, taken, e.broadcast(x, e.out.shape))


@converts("take")
def take(e: AtenEmitter, x: Value, indices: Value) -> Value:
    return e.op(Gather(0), e.reshape(x, (e.type(x).size,)), indices)


@converts("put")
def put(e: AtenEmitter, x: Value, indices: Value, source: Value, accumulate: bool) -> Value:
    flat = e.reshape(x, (e.out.size,))
    count = e.type(indices).size
    at, updates = e.reshape(indices, (count, 1)), e.reshape(e.cast(source, e.out.dtype), (count,))
    return e.reshape(_scatter_nd(e, flat, at, updates, accumulate), e.out.shape)


@converts("index_reduce")
def index_reduce(
    e: AtenEmitter, x: Value, dim: int, indices: Value, source: Value, reduce: str, include_self: bool
) -> Value:
    if not e.type(source).size:
        return x
    x_line, source = _lines(e, x, source)
    shape = e.shape(source)
    axis = axis_of(dim, len(shape))
    at = e.broadcast(e.reshape(indices, [shape[d] if d == axis else 1 for d in range(len(shape))]), shape)
    return e.reshape(scatter_reduce(e, x_line, axis, at, source, reduce, include_self), e.out.shape)


@converts("slice_scatter")
def slice_scatter(
    e: AtenEmitter, x: Value, source: Value, dim: int, start: int | None, end: int | None, step: int
) -> Value:
    """x with a slice of it replaced."""
    axis = axis_of(dim, len(e.out.shape))
    n, size = e.out.shape[axis], e.shape(source)[axis]
    first = slice(start, end).indices(n)[0] if size else 0
    if step != 1:
        rank = len(e.out.shape)
        order = [d for d in range(rank) if d != axis] + [axis]
        y = replaced(e, permuted(e, x, order), permuted(e, source, order), range(first, first + step * size, step))
        return permuted(e, y, [order.index(d) for d in range(rank)])
    parts = [part(e, x, axis, 0, first), source, part(e, x, axis, first + size, n - first - size)]
    return joined(e, [e.cast(p, e.out.dtype) for p in parts if e.shape(p)[axis]] or [x], axis)


@converts("select_scatter")
def select_scatter(e: AtenEmitter, x: Value, source: Value, dim: int, index: int | SSAValue) -> Value:
    axis = axis_of(dim, len(e.out.shape))
    if not isinstance(index, int):  # a tensor's element
        extent = e.out.shape[axis]
        line = TensorType(tuple(extent if a == axis else 1 for a in range(len(e.out.shape))), "i64")
        at = e.operand(e.cast(e.reshape(index, ()), "i64"), line)
        at = e.op(ew.Where(), e.op(ew.Less(), at, e.splat(0, line)), e.op(ew.Add(), at, e.splat(extent, line)), at)
        here = e.op(ew.Equal(), at, torch.arange(extent).reshape(line.shape))
        row = e.reshape(source, tuple(1 if a == axis else n for a, n in enumerate(e.out.shape)))
        spread = e.broadcast(row, e.out.shape)
        return e.op(ew.Where(), e.broadcast(here, e.out.shape), e.cast(spread, e.out.dtype), x)
    start = index % e.out.shape[axis]
    row = e.reshape(source, (*e.out.shape[:axis], 1, *e.out.shape[axis + 1 :]))
    return slice_scatter(e, x, row, axis, start, start + 1, 1)

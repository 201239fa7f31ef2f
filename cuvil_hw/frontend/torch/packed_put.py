"""Writes of what a mask selects, and writes where selected indices say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cuvil_hw import ops
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axis_of
from cuvil_hw.frontend.torch.aten.shape import joined, part
from cuvil_hw.frontend.torch.packed import (
    PUT,
    REASON,
    Packed,
    both,
    converted,
    count,
    filled,
    inside,
    is_mask,
    one_mask,
    packed_in,
    same,
    stand_in,
)
from cuvil_hw.frontend.torch.packed_front import agreeing, by_number, dense
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.shape import Gather

SCATTERS = ("aten.scatter_add.default", "aten.index_add.default")
_TWO = "assigns to one mask's elements another number of them"


def put(e: AtenEmitter, label: str, args: Sequence[Any], made: torch.Tensor) -> Any:
    """x[indices] = values, or += where they accumulate."""
    x, indices, values, accumulate = args
    if isinstance(x, Packed):
        x, indices = agreeing(e, [x, indices])
        return _within_rows(e, label, x, indices, values, accumulate, made)
    given = [i for i in indices if i is not None]
    if any(is_mask(e, i) for i in given):
        if len(given) != 1 or isinstance(given[0], Packed) or not isinstance(values, Packed):
            e.refuse(REASON)
        return _by_mask(e, x, given[0], indices.index(given[0]), values, accumulate)
    indices, values = agreeing(e, [indices, values])
    return _at_positions(e, x, indices, values, accumulate, made)


def _by_mask(e: AtenEmitter, x: Value, mask: Value, axis: int, values: Packed, accumulate: bool) -> Value:
    """x[mask] = what the same mask selected."""
    shape, extents = e.shape(x), e.shape(mask)
    flat = e.ssa(e.reshape(mask, (e.type(mask).size,)))
    rows = (*shape[:axis], e.type(mask).size, *shape[axis + len(extents) :])
    if values.axis - len(e.shape(values.full)) != axis - len(rows):
        e.refuse("broadcasts what a mask selects so that its rows become another axis; use torch.where")
    if not same(flat, values.mask):
        equal = e.op(ops.Equal(), count(e, flat), count(e, values.mask))
        e.builder.guard(equal, f"{e.loc}: {_TWO}", e.loc)
        order = e.op(ops.CumSum(0, exclusive=True), e.cast(flat, "i64"))
        values = replace(values, full=by_number(e, values, order))
    new = e.cast(e.reshape(e.broadcast(values.full, rows), shape), e.type(x).dtype)
    if accumulate:
        new = e.op(ops.Add(), x, new)
    behind = len(shape) - axis - len(extents)
    wide = e.broadcast(e.reshape(mask, (*[1] * axis, *extents, *[1] * behind)), shape)
    return e.op(ops.Where(), wide, new, x)


def _within_rows(
    e: AtenEmitter, label: str, x: Packed, indices: Sequence[Any], values: Any, accumulate: bool, made: torch.Tensor
) -> Packed:
    """A write into selected rows: by a mask of theirs, or at places that are the same in each."""
    mask, axis = next((i, axis) for axis, i in enumerate(indices) if i is not None)
    extent = e.shape(x.full)[x.axis]
    if isinstance(mask, Packed) and is_mask(e, mask):
        if len(indices) != 1 or x.axis != 0 or mask.axis != 0 or not same(mask.mask, x.mask):
            e.refuse(REASON)
        chosen = both(e, mask)
        if isinstance(values, Packed):
            full: Value = _by_mask(e, x.full, chosen, 0, values, accumulate)
        else:
            full = converted(e, PUT[0], [x.full, [chosen], values, accumulate], stand_in(e, made, extent))
    elif packed_in(indices) or (len(indices) > x.axis and indices[x.axis] is not None) or axis < x.axis:
        e.refuse(REASON)
    else:
        plain = values
        if isinstance(values, Packed):
            x, values = agreeing(e, [x, values])
            plain, extent = values.full, e.shape(x.full)[x.axis]
        full = converted(e, label, [x.full, indices, plain, accumulate], stand_in(e, made, extent))
    return replace(x, full=full)


def _at_positions(
    e: AtenEmitter, x: Value, indices: Sequence[Any], values: Any, accumulate: bool, made: torch.Tensor
) -> Value:
    """Selected positions take selected values. What doesn't count adds 0, or goes into an element behind the last."""
    chosen = packed_in(list(indices))
    if not chosen:
        return _one_by_one(e, x, indices, values, accumulate, made)
    rows = one_mask(e, [*chosen, *packed_in([values])])
    n = e.shape(chosen[0].full)[0]
    axes = [axis for axis, i in enumerate(indices) if i is not None]
    others = [i for i in indices if i is not None and not isinstance(i, Packed)]
    if any(len(e.shape(p.full)) != 1 for p in chosen) or any(e.type(i).size != 1 for i in others):
        e.refuse("indices of several axes that a mask selects; flatten them")
    first, rank = axes[0], len(e.shape(x))
    place = first if axes == list(range(first, first + len(axes))) else 0
    behind = rank - len(axes) - place  # axes of the values after that of the rows
    wide = [*(e.shape(x)[a] for a in range(rank) if a not in axes)]
    wide.insert(place, n)
    full: Value = e.cast(values.full if isinstance(values, Packed) else values, e.type(x).dtype)
    if isinstance(values, Packed) and len(e.shape(full)) - values.axis - 1 != behind:
        e.refuse("broadcasts what a mask selects so that its rows become another axis; use torch.where")
    if not isinstance(values, Packed) and len(e.shape(full)) > behind and e.shape(full)[-behind - 1] != 1:
        e.refuse("writes a value for each row that a mask selects, and there are as many as it selects")
    full = e.broadcast(full, wide)
    if accumulate:
        full = filled(e, Packed(full, rows.mask, rows.loc, place), 0)
        if len(axes) == 1 and isinstance(chosen[0].full, torch.Tensor):
            spread = _regular(e, full, place, chosen[0].full, e.shape(x)[first])
            if spread is not None:
                return e.op(ops.Add(), x, spread)
        return converted(e, PUT[0], [x, _all(e, indices, n), full, True], made)  # type: ignore[no-any-return]
    spare = (*e.shape(x)[:first], 1, *e.shape(x)[first + 1 :])
    larger = joined(e, [x, e.splat(0, e.type(x).with_shape(spare))], first)
    at = _all(e, indices, n)
    at[first] = _or_spare(e, at[first], rows, e.shape(x)[first])
    kind = torch.empty(e.shape(larger), dtype=made.dtype, device="meta")
    written = converted(e, PUT[0], [larger, at, full, False], kind)
    return part(e, written, first, 0, e.shape(x)[first])


def _one_by_one(
    e: AtenEmitter, x: Value, indices: Sequence[Any], values: Packed, accumulate: bool, made: torch.Tensor
) -> Value:
    """Positions of a known number take as many selected values."""
    sizes = {e.type(i).size for i in indices if i is not None}
    if len(sizes) != 1:
        e.refuse(REASON)
    return converted(e, PUT[0], [x, indices, dense(e, values, sizes.pop()), accumulate], made)  # type: ignore[no-any-return]


def _all(e: AtenEmitter, indices: Sequence[Any], n: int) -> list[Any]:
    """Indices of all rows; one that is the same for all is repeated."""
    return [
        inside(e, i) if isinstance(i, Packed) else i if i is None else e.broadcast(e.reshape(i, (1,)), (n,))
        for i in indices
    ]


def _or_spare(e: AtenEmitter, at: Value, rows: Packed, extent: int) -> Value:
    """Positions counted from the start; those that don't count are `extent`, behind the last."""
    at = e.cast(at, "i64")
    kind = e.type(at)
    if not isinstance(at, torch.Tensor):
        below = e.op(ops.Less(), at, e.splat(0, kind))
        at = e.op(ops.Where(), below, e.op(ops.Add(), at, e.splat(extent, kind)), at)
    return e.op(ops.Where(), e.broadcast(rows.mask, kind.shape), at, e.splat(extent, kind))


def _regular(e: AtenEmitter, values: Value, axis: int, at: torch.Tensor, extent: int) -> Value | None:
    """Sums of `values` by position where each position occurs as often as any: no search for what belongs to it.
    Token numbers of routed experts are so, one for each of a token's choices."""
    counts = torch.bincount(at, minlength=extent)
    times = int(counts[0]) if len(counts) else 0
    if len(counts) != extent or not times or not bool((counts == times).all()):
        return None
    order = torch.argsort(at, stable=True).reshape(extent, times)
    return e.op(rd.ReduceSum((axis + 1,), False), e.op(Gather(axis), values, order))


def scatter(e: AtenEmitter, label: str, args: Sequence[Any], made: torch.Tensor) -> Value:
    """x with selected values added along an axis."""
    x, dim, at, values = args[:4]
    if isinstance(x, Packed):
        e.refuse(REASON)
    if label == "aten.index_add.default" and not isinstance(at, Packed) and args[4] == 1:
        return _at_positions(e, x, [None] * axis_of(dim, len(e.shape(x))) + [at], values, True, made)
    if not isinstance(at, Packed) or not isinstance(values, Packed):
        e.refuse(REASON)
    one_mask(e, [at, values])
    if label == "aten.index_add.default":
        axis = axis_of(dim, len(e.shape(x)))
        indices = [None] * axis + [at]
        if args[4] != 1:
            e.refuse("index_add with alpha of what a mask selects; multiply first")
        return _at_positions(e, x, indices, values, True, made)
    if at.axis != values.axis:
        e.refuse(REASON)
    return converted(e, label, [x, dim, inside(e, at), filled(e, values, 0)], made)  # type: ignore[no-any-return]


__all__ = ["SCATTERS", "put", "scatter"]

"""ATen converters of sliding windows: pools, the positions of their maxima, unpooling, unfold and fold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.conv import batched
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, converts, extended
from cuvil_hw.frontend.torch.aten.shape import joined, part, permuted
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.pool import AvgPool, MaxPool, SumPool
from cuvil_hw.ops.shape import Gather, Pad
from cuvil_hw.ops.transposed import MaxPoolPositions
from cuvil_hw.types import TensorType


def _window(
    e: AtenEmitter, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, n: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """kernel, strides, pads (begin…, end…), dilations and the end cells that exist only because of ceil_mode."""
    k = extended(kernel, n)
    s = extended(stride, n) if stride else k
    p, d = extended(padding, n), extended(dilation, n)
    extra = []
    for size, out, kk, ss, pp, dd in zip(e.shape(x)[-n:], e.out.shape[-n:], k, s, p, d, strict=True):
        extra.append(max(0, (out - 1) * ss + dd * (kk - 1) + 1 - (size + 2 * pp)))
    return k, s, (*p, *(a + b for a, b in zip(p, extra, strict=True))), d, tuple(extra)


def _max_pool(e: AtenEmitter, x: Value, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Value:
    k, s, p, d, _ = _window(e, x, kernel, stride, padding, dilation, n)
    return e.reshape(e.op(MaxPool(k, s, p, d), batched(e, x, n)), e.out.shape)


def _max_positions(e: AtenEmitter, x: Value, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Value:
    """Positions within the plane of each channel."""
    k, s, p, d, _ = _window(e, x, kernel, stride, padding, dilation, n)
    flat = e.op(MaxPoolPositions(k, s, p, d), batched(e, x, n))
    plane = math.prod(e.shape(x)[-n:])
    return e.reshape(e.op(ew.Mod(), flat, e.splat(plane, e.type(flat))), e.results[1].shape)


def _avg_pool(
    e: AtenEmitter, x: Value, n: int, kernel: Any, stride: Any, padding: Any, include_pad: bool, divisor: int | None
) -> Value:
    k, s, p, d, extra = _window(e, x, kernel, stride, padding, 1, n)
    x = batched(e, x, n)
    op = AvgPool(k, s, p, d, include_pad, extra, divisor or 0)
    if dtypes.is_float(e.out.dtype):
        return e.reshape(e.op(op, x), e.out.shape)
    total = e.op(SumPool(k, s, p, d, "i64"), x)  # integers: the sum divided, rounded towards zero
    if divisor:
        counts = torch.tensor(divisor)
    else:
        counts = torch.ones((), dtype=torch.int64)
        for axis, per_axis in enumerate(op.counts(e.shape(x)[2:])):
            counts = counts * torch.tensor(per_axis).reshape([-1 if a == axis else 1 for a in range(n)])
    return e.reshape(e.cast(e.op(ew.Div(), total, e.operand(counts, e.type(total))), e.out.dtype), e.out.shape)


def _enter_pools(n: int) -> None:
    @converts(f"max_pool{n}d")
    def max_pool(
        e: AtenEmitter, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
    ) -> Value:
        return _max_pool(e, x, n, kernel, stride, padding, dilation)

    @converts(f"max_pool{n}d_with_indices")
    def with_indices(
        e: AtenEmitter, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
    ) -> tuple[Value, Value]:
        window = (kernel, stride, padding, dilation)
        return _max_pool(e, x, n, *window), _max_positions(e, x, n, *window)

    @converts(f"avg_pool{n}d")
    def avg_pool(
        e: AtenEmitter,
        x: Value,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        include_pad: bool,
        divisor: int | None = None,
    ) -> Value:
        return _avg_pool(e, x, n, kernel, stride, padding, include_pad, divisor)

    @converts(f"adaptive_avg_pool{n}d", f"_adaptive_avg_pool{n}d")
    def adaptive_avg(e: AtenEmitter, x: Value, size: Any) -> Value:
        return _adaptive(e, x, n, average=True)

    @converts(f"adaptive_max_pool{n}d")
    def adaptive_max(e: AtenEmitter, x: Value, size: Any) -> tuple[Value, Value]:
        return _adaptive(e, x, n, average=False), _adaptive_positions(e, x, n)


for _n in (1, 2, 3):
    _enter_pools(_n)


def _even(ins: Sequence[int], outs: Sequence[int]) -> tuple[int, ...] | None:
    """The kernel of the plain pool that an adaptive one is where every output size divides the input's."""
    fits = all(o > 0 and i > 0 and i % o == 0 for i, o in zip(ins, outs, strict=True))
    return tuple(i // o for i, o in zip(ins, outs, strict=True)) if fits else None


def _adaptive(e: AtenEmitter, x: Value, n: int, average: bool) -> Value:
    """Window i of an axis covers floor(i·n/out) to ceil((i+1)·n/out): a plain pool when out divides n, else parts."""
    if average and not dtypes.is_float(e.out.dtype):
        e.refuse(f"averages floats, not {e.out.dtype}")
    ins, outs = e.shape(x)[-n:], e.out.shape[-n:]
    k = _even(ins, outs)
    if k is not None:
        zero, one = (0,) * (2 * n), (1,) * n
        pool: Op = AvgPool(k, k, zero, one) if average else MaxPool(k, k, zero, one)
        return e.reshape(e.op(pool, batched(e, x, n)), e.out.shape)
    rank = len(e.out.shape)
    for axis, size, out in zip(range(rank - n, rank), ins, outs, strict=True):
        parts = []
        for i in range(out):
            lo, hi = i * size // out, -(-(i + 1) * size // out)
            op: Op = rd.ReduceMean((axis,), True) if average else rd.ReduceMax((axis,), True)
            parts.append(e.op(op, part(e, x, axis, lo, hi - lo)))
        x = joined(e, parts, axis)
    return x


def _adaptive_positions(e: AtenEmitter, x: Value, n: int) -> Value:
    """Windows of different lengths as one of the longest each, its last cells repeated: the first of equals is real."""
    shape = e.shape(x)
    ins, outs = shape[-n:], e.out.shape[-n:]
    lead = len(shape) - n
    windows: Value = x
    starts, widths = [], []
    for d, (size, out) in enumerate(zip(ins, outs, strict=True)):
        lo = torch.arange(out) * size // out
        hi = -(-(torch.arange(out) + 1) * size // out)
        width = int((hi - lo).max())
        at = torch.minimum(lo[:, None] + torch.arange(width), hi[:, None] - 1)
        windows = e.op(Gather(lead + 2 * d), windows, at)
        starts.append(lo)
        widths.append(width)
    order = [*range(lead), *(lead + 2 * d for d in range(n)), *(lead + 2 * d + 1 for d in range(n))]
    flat = e.reshape(permuted(e, windows, order), (*shape[:lead], *outs, math.prod(widths)))
    best = e.op(rd.ArgMax(len(flat_shape := e.shape(flat)) - 1), flat)
    kind = TensorType(flat_shape[:-1], "i64")
    total: Value = e.splat(0, kind)
    for d, (lo, width) in enumerate(zip(starts, widths, strict=True)):
        inner = math.prod(widths[d + 1 :])
        tap = e.op(ew.Mod(), e.op(ew.Div(), best, e.splat(inner, kind)), e.splat(width, kind))
        first = lo.reshape([-1 if a == d else 1 for a in range(n)])
        place = e.op(ew.Add(), tap, e.operand(first, kind))
        total = e.op(ew.Add(), total, e.op(ew.Mul(), place, e.splat(math.prod(ins[d + 1 :]), kind)))
    return total


@converts("max_unpool2d", "max_unpool3d")
def max_unpool(e: AtenEmitter, x: Value, indices: Value, size: Sequence[int], *_: Any) -> Value:
    """Zeros, but the elements of x at their positions in the plane of each channel."""
    n = len(size)
    shape = e.shape(x)
    planes, cells = math.prod(shape[:-n]), math.prod(shape[-n:])
    zeros = e.splat(0, TensorType((planes, math.prod(size)), e.out.dtype))
    rows = [e.reshape(v, (planes, cells)) for v in (indices, x)]
    return e.reshape(e.op(ew.ScatterElements(axis=1), zeros, *rows), e.out.shape)


def _patches(extents: Sequence[int], kernel: Any, dilation: Any, padding: Any, stride: Any) -> np.ndarray[Any, Any]:
    """(∏kernel, windows): positions in the padded plane, row-major, of each window's cells."""
    k, d, p, s = (extended(v, 2) for v in (kernel, dilation, padding, stride))
    wide = [m + 2 * q for m, q in zip(extents, p, strict=True)]
    rows, columns = (
        np.arange(t)[:, None] * dd + np.arange((w - dd * (t - 1) - 1) // ss + 1) * ss
        for t, dd, w, ss in zip(k, d, wide, s, strict=True)
    )
    grid = rows[:, None, :, None] * wide[1] + columns[None, :, None, :]
    return grid.reshape(k[0] * k[1], -1)


@converts("im2col")
def im2col(e: AtenEmitter, x: Value, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    shape = e.shape(x)
    x = batched(e, x, 2)
    rows, channels, *extents = e.shape(x)
    p = extended(padding, 2)
    padded = e.op(Pad((0, 0, *p, 0, 0, *p)), x) if any(p) else x
    flat = e.reshape(padded, (rows, channels, math.prod(e.shape(padded)[2:])))
    at = _patches(extents, kernel, dilation, padding, stride)
    assert len(shape) in (3, 4)
    return e.reshape(e.op(Gather(2), flat, torch.from_numpy(at)), e.out.shape)


@converts("col2im")
def col2im(
    e: AtenEmitter, x: Value, size: Sequence[int], kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Value:
    """Every cell of the plane gathers the windows' elements that belong to it: the sum of at most ∏kernel of them."""
    at = _patches(size, kernel, dilation, padding, stride)
    p = extended(padding, 2)
    wide = [m + 2 * q for m, q in zip(size, p, strict=True)]
    taps, windows = at.shape
    channels = e.shape(x)[-2] // taps
    rows = math.prod(e.shape(x)[:-2])
    flat = e.reshape(x, (rows * channels, taps * windows))
    spread = torch.full((taps, wide[0] * wide[1]), taps * windows)
    spread[torch.arange(taps)[:, None], torch.from_numpy(at)] = torch.arange(taps * windows).reshape(taps, windows)
    spread = spread.reshape(taps, *wide)[:, p[0] : p[0] + size[0], p[1] : p[1] + size[1]].reshape(taps, -1)
    flat = e.op(Pad((0, 0, 0, 1)), flat)  # the element that cells outside of a window take
    terms = e.op(Gather(1), flat, spread)
    return e.reshape(e.op(rd.ReduceSum((1,)), terms), e.out.shape)

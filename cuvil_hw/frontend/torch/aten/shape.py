"""ATen converters of ops that move, pick or repeat elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from xdsl.ir import SSAValue

from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axes_of, axis_of, converts
from cuvil_hw.ops.shape import Concat, Gather, Pad, Slice, Transpose


@converts(
    "view",
    "reshape",
    "_unsafe_view",
    "unsqueeze",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "flatten.using_ints",
    "unflatten.int",
    "view_copy",
    "unsqueeze_copy",
    "squeeze_copy",
    "squeeze_copy.dim",
    "squeeze_copy.dims",
)
def reshape(e: AtenEmitter, x: Value, *_: Any) -> Value:
    """All that only rename positions: torch has computed the new shape."""
    return e.reshape(x, e.out.shape)


def permuted(e: AtenEmitter, x: Value, perm: Sequence[int]) -> Value:
    perm = tuple(perm)
    return x if perm == tuple(range(len(perm))) else e.op(Transpose(perm), x)


@converts("permute", "permute_copy")
def permute(e: AtenEmitter, x: Value, dims: Sequence[int]) -> Value:
    return permuted(e, x, [axis_of(d, len(dims)) for d in dims])


@converts("transpose.int", "transpose_copy.int")
def transpose(e: AtenEmitter, x: Value, a: int, b: int) -> Value:
    rank = len(e.out.shape)
    perm = list(range(rank))
    if rank:
        a, b = axis_of(a, rank), axis_of(b, rank)
        perm[a], perm[b] = b, a
    return permuted(e, x, perm)


@converts("t", "t_copy")
def t(e: AtenEmitter, x: Value) -> Value:
    return permuted(e, x, range(len(e.out.shape))[::-1])


@converts("expand", "expand_copy")
def expand(e: AtenEmitter, x: Value, *_: Any) -> Value:
    return e.broadcast(x, e.out.shape)


@converts("repeat")
def repeat(e: AtenEmitter, x: Value, repeats: Sequence[int]) -> Value:
    """Each extent n becomes (r, n): broadcast along r, then merged."""
    shape = e.shape(x)
    shape = (1,) * (len(repeats) - len(shape)) + shape
    apart = [extent for n in shape for extent in (1, n)]
    wide = [extent for r, n in zip(repeats, shape, strict=True) for extent in (r, n)]
    return e.reshape(e.broadcast(e.reshape(x, apart), wide), e.out.shape)


def part(e: AtenEmitter, x: Value, axis: int, start: int, size: int, step: int = 1) -> Value:
    """`size` elements of an axis from `start` on."""
    shape = e.shape(x)
    if (start, size, step) == (0, shape[axis], 1):
        return x
    starts, sizes, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return e.op(Slice(tuple(starts), tuple(sizes), tuple(steps)), x)


@converts("slice.Tensor", "slice_copy.Tensor")
def slice_tensor(e: AtenEmitter, x: Value, dim: int, start: int | None, end: int | None, step: int) -> Value:
    axis = axis_of(dim, len(e.out.shape))
    first, _, _ = slice(start, end, step).indices(e.shape(x)[axis])
    size = e.out.shape[axis]
    return part(e, x, axis, first if size else 0, size, step)


@converts("narrow", "narrow_copy")
def narrow(e: AtenEmitter, x: Value, dim: int, start: int, length: int) -> Value:
    axis = axis_of(dim, len(e.out.shape))
    return part(e, x, axis, start % max(e.shape(x)[axis], 1), length)


@converts("select.int", "select_copy.int")
def select(e: AtenEmitter, x: Value, dim: int, index: int | SSAValue) -> Value:
    shape = e.shape(x)
    axis = axis_of(dim, len(shape))
    if not isinstance(index, int):  # a tensor's element
        return e.op(Gather(axis), x, e.reshape(index, ()))
    return e.reshape(part(e, x, axis, index % shape[axis], 1), e.out.shape)


def _pieces(e: AtenEmitter, x: Value, axis: int) -> list[Value]:
    """Consecutive parts whose lengths are those of the node's results."""
    parts, start = [], 0
    for kind in e.results:
        parts.append(part(e, x, axis, start, kind.shape[axis]))
        start += kind.shape[axis]
    return parts


@converts("split.Tensor", "split_with_sizes", "chunk", "split_copy.Tensor", "split_with_sizes_copy")
def split(e: AtenEmitter, x: Value, _: Any, dim: int) -> list[Value]:
    return _pieces(e, x, axis_of(dim, len(e.shape(x))))


@converts("unbind.int", "unbind_copy.int")
def unbind(e: AtenEmitter, x: Value, dim: int) -> list[Value]:
    axis = axis_of(dim, len(e.shape(x)))
    return [e.reshape(part(e, x, axis, i, 1), kind.shape) for i, kind in enumerate(e.results)]


def joined(e: AtenEmitter, parts: Sequence[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else e.op(Concat(axis), *parts)


@converts("cat")
def cat(e: AtenEmitter, parts: Sequence[Value], dim: int) -> Value:
    rank = len(e.out.shape)
    # torch lets 1-d empty tensors join anything.
    real = [e.cast(p, e.out.dtype) for p in parts if len(e.shape(p)) == rank and (rank > 1 or e.shape(p) != (0,))]
    return joined(e, real or [e.cast(parts[0], e.out.dtype)], axis_of(dim, rank))


@converts("stack")
def stack(e: AtenEmitter, parts: Sequence[Value], dim: int) -> Value:
    axis = axis_of(dim, len(e.out.shape))
    shape = (*e.out.shape[:axis], 1, *e.out.shape[axis + 1 :])
    return joined(e, [e.reshape(e.cast(p, e.out.dtype), shape) for p in parts], axis)


@converts("full_like")
def full_like(e: AtenEmitter, _: Value, value: float, *__: Any) -> Value:
    return e.splat(value, e.out)


@converts("new_full")
def new_full(e: AtenEmitter, _: Value, size: Any, value: float, *__: Any) -> Value:
    return e.splat(value, e.out)


@converts("empty_like", "new_empty", "new_empty_strided")
def uninitialised(e: AtenEmitter, *_: Any) -> Value:
    """What torch leaves uninitialised is zero, so that a build is reproducible."""
    return e.splat(0, e.out)


@converts("copy")
def copy(e: AtenEmitter, _: Value, source: Value, *__: Any) -> Value:
    return e.operand(source, e.out)


@converts("flip")
def flip(e: AtenEmitter, x: Value, dims: Sequence[int]) -> Value:
    for axis in axes_of(list(dims), len(e.out.shape)) if dims else ():
        size = e.out.shape[axis]
        if size > 1:
            x = part(e, x, axis, size - 1, size, -1)
    return x


@converts("roll")
def roll(e: AtenEmitter, x: Value, shifts: Sequence[int], dims: Sequence[int]) -> Value:
    flat = not dims
    if flat:
        x = e.reshape(x, (e.out.size,))
    for shift, dim in zip(shifts, dims or [0], strict=True):
        shape = e.shape(x)
        axis = axis_of(dim, len(shape))
        n = shape[axis]
        cut = -shift % n if n else 0
        if cut:
            x = joined(e, [part(e, x, axis, cut, n - cut), part(e, x, axis, 0, cut)], axis)
    return e.reshape(x, e.out.shape)


def _pad_lists(pad: Sequence[int], rank: int) -> tuple[list[int], list[int]]:
    """torch's (last axis first, begin and end together) as begins and ends in axis order."""
    n = len(pad) // 2
    begins = [0] * (rank - n) + [pad[2 * i] for i in reversed(range(n))]
    ends = [0] * (rank - n) + [pad[2 * i + 1] for i in reversed(range(n))]
    return begins, ends


def padded(e: AtenEmitter, x: Value, pad: Sequence[int], mode: str, value: float) -> Value:
    shape = e.shape(x)
    begins, ends = _pad_lists(pad, len(shape))
    if min(*begins, *ends, 0) < 0:
        if mode != "constant":
            return _placed(e, x, begins, ends, "reflect" if mode == "reflect" else "replicate")
        for axis, (lo, hi) in enumerate(zip(begins, ends, strict=True)):
            x = part(e, x, axis, max(-lo, 0), max(e.shape(x)[axis] + min(lo, 0) + min(hi, 0), 0))
        begins, ends = [max(b, 0) for b in begins], [max(b, 0) for b in ends]
    if not any((*begins, *ends)):
        return x
    return e.op(Pad((*begins, *ends), float(value), mode), x)


def _placed(e: AtenEmitter, x: Value, begins: Sequence[int], ends: Sequence[int], mode: str) -> Value:
    """Padding that also cuts: each element from where torch itself takes it, found by padding the positions."""
    for axis, (lo, hi) in enumerate(zip(begins, ends, strict=True)):
        if lo or hi:
            at = torch.arange(e.shape(x)[axis], dtype=torch.float64).reshape(1, 1, -1)
            x = e.op(Gather(axis), x, torch.nn.functional.pad(at, (lo, hi), mode).reshape(-1).long())
    return x


def _wrapped(e: AtenEmitter, x: Value, pad: Sequence[int]) -> Value:
    """Circular padding: the far end of each axis before it, the near end after it."""
    begins, ends = _pad_lists(pad, len(e.shape(x)))
    for axis, (lo, hi) in enumerate(zip(begins, ends, strict=True)):
        n = e.shape(x)[axis]
        if min(lo, hi) < 0:
            return _placed(e, x, begins, ends, "circular")
        parts = [part(e, x, axis, n - lo, lo)] * bool(lo) + [x] + [part(e, x, axis, 0, hi)] * bool(hi)
        x = joined(e, parts, axis)
    return x


@converts("pad")
def pad(e: AtenEmitter, x: Value, pads: Sequence[int], mode: str, value: float | None) -> Value:
    match mode:
        case "constant":
            return padded(e, x, pads, "constant", value or 0)
        case "reflect":
            return padded(e, x, pads, "reflect", 0)
        case "replicate":
            return padded(e, x, pads, "edge", 0)
        case "circular":
            return _wrapped(e, x, pads)
    e.refuse(f"padding mode {mode!r}")


@converts("constant_pad_nd")
def constant_pad(e: AtenEmitter, x: Value, pads: Sequence[int], value: float) -> Value:
    return padded(e, x, pads, "constant", value)


@converts("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(e: AtenEmitter, x: Value, pads: Sequence[int]) -> Value:
    return padded(e, x, pads, "reflect", 0)


@converts("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(e: AtenEmitter, x: Value, pads: Sequence[int]) -> Value:
    return padded(e, x, pads, "edge", 0)


@converts("linspace", "logspace")
def constant(e: AtenEmitter, *_: Any) -> Value:
    """Never called with known numbers: those are folded, whole, as torch's decompositions round otherwise."""
    e.refuse("an extent that depends on data")

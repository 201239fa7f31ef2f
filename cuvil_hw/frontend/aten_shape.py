"""ATen converters of ops that move, pick or repeat elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cuvil_hw import dtypes
from cuvil_hw.frontend.aten import Emitter, Value, axes_of, axis_of, converts
from cuvil_hw.ops.binary import Add, Mul
from cuvil_hw.ops.shape import Concat, Gather, Pad, Slice, Transpose
from cuvil_hw.types import TensorType


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
)
def reshape(e: Emitter, x: Value, *_: Any) -> Value:
    """All that only rename positions: torch has computed the new shape."""
    return e.reshape(x, e.out.shape)


def permuted(e: Emitter, x: Value, perm: Sequence[int]) -> Value:
    perm = tuple(perm)
    return x if perm == tuple(range(len(perm))) else e.op(Transpose(perm), x)


@converts("permute")
def permute(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    return permuted(e, x, [axis_of(d, len(dims)) for d in dims])


@converts("transpose.int")
def transpose(e: Emitter, x: Value, a: int, b: int) -> Value:
    rank = len(e.out.shape)
    perm = list(range(rank))
    if rank:
        a, b = axis_of(a, rank), axis_of(b, rank)
        perm[a], perm[b] = b, a
    return permuted(e, x, perm)


@converts("t")
def t(e: Emitter, x: Value) -> Value:
    return permuted(e, x, range(len(e.out.shape))[::-1])


@converts("expand")
def expand(e: Emitter, x: Value, *_: Any) -> Value:
    return e.broadcast(x, e.out.shape)


@converts("repeat")
def repeat(e: Emitter, x: Value, repeats: Sequence[int]) -> Value:
    """Each extent n becomes (r, n): broadcast along r, then merged."""
    shape = e.shape(x)
    shape = (1,) * (len(repeats) - len(shape)) + shape
    apart = [extent for n in shape for extent in (1, n)]
    wide = [extent for r, n in zip(repeats, shape, strict=True) for extent in (r, n)]
    return e.reshape(e.broadcast(e.reshape(x, apart), wide), e.out.shape)


def part(e: Emitter, x: Value, axis: int, start: int, size: int, step: int = 1) -> Value:
    """`size` elements of an axis from `start` on."""
    shape = e.shape(x)
    if (start, size, step) == (0, shape[axis], 1):
        return x
    starts, sizes, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return e.op(Slice(tuple(starts), tuple(sizes), tuple(steps)), x)


@converts("slice.Tensor")
def slice_tensor(e: Emitter, x: Value, dim: int, start: int | None, end: int | None, step: int) -> Value:
    axis = axis_of(dim, len(e.out.shape))
    first, _, _ = slice(start, end, step).indices(e.shape(x)[axis])
    size = e.out.shape[axis]
    return part(e, x, axis, first if size else 0, size, step)


@converts("narrow")
def narrow(e: Emitter, x: Value, dim: int, start: int, length: int) -> Value:
    axis = axis_of(dim, len(e.out.shape))
    return part(e, x, axis, start % max(e.shape(x)[axis], 1), length)


@converts("select.int")
def select(e: Emitter, x: Value, dim: int, index: int) -> Value:
    shape = e.shape(x)
    axis = axis_of(dim, len(shape))
    return e.reshape(part(e, x, axis, index % shape[axis], 1), e.out.shape)


def _pieces(e: Emitter, x: Value, axis: int) -> list[Value]:
    """Consecutive parts whose lengths are those of the node's results."""
    parts, start = [], 0
    for kind in e.results:
        parts.append(part(e, x, axis, start, kind.shape[axis]))
        start += kind.shape[axis]
    return parts


@converts("split.Tensor", "split_with_sizes", "chunk")
def split(e: Emitter, x: Value, _: Any, dim: int) -> list[Value]:
    return _pieces(e, x, axis_of(dim, len(e.shape(x))))


@converts("unbind.int")
def unbind(e: Emitter, x: Value, dim: int) -> list[Value]:
    axis = axis_of(dim, len(e.shape(x)))
    return [e.reshape(part(e, x, axis, i, 1), kind.shape) for i, kind in enumerate(e.results)]


def joined(e: Emitter, parts: Sequence[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else e.op(Concat(axis), *parts)


@converts("cat")
def cat(e: Emitter, parts: Sequence[Value], dim: int) -> Value:
    rank = len(e.out.shape)
    # torch lets 1-d empty tensors join anything.
    real = [e.cast(p, e.out.dtype) for p in parts if len(e.shape(p)) == rank and (rank > 1 or e.shape(p) != (0,))]
    return joined(e, real or [e.cast(parts[0], e.out.dtype)], axis_of(dim, rank))


@converts("stack")
def stack(e: Emitter, parts: Sequence[Value], dim: int) -> Value:
    axis = axis_of(dim, len(e.out.shape))
    shape = (*e.out.shape[:axis], 1, *e.out.shape[axis + 1 :])
    return joined(e, [e.reshape(e.cast(p, e.out.dtype), shape) for p in parts], axis)


@converts("full_like")
def full_like(e: Emitter, _: Value, value: float, *__: Any) -> Value:
    return e.splat(value, e.out)


@converts("new_full")
def new_full(e: Emitter, _: Value, size: Any, value: float, *__: Any) -> Value:
    return e.splat(value, e.out)


@converts("empty_like", "new_empty", "new_empty_strided")
def uninitialised(e: Emitter, *_: Any) -> Value:
    """Zeros, so that a build is reproducible."""
    return e.splat(0, e.out)


@converts("copy")
def copy(e: Emitter, _: Value, source: Value, *__: Any) -> Value:
    return e.operand(source, e.out)


@converts("slice_scatter")
def slice_scatter(
    e: Emitter, x: Value, source: Value, dim: int, start: int | None, end: int | None, step: int
) -> Value:
    """x with a slice of it replaced."""
    axis = axis_of(dim, len(e.out.shape))
    if step != 1:
        e.refuse(f"assignment to a slice with step {step}")
    n, size = e.out.shape[axis], e.shape(source)[axis]
    first = slice(start, end).indices(n)[0] if size else 0
    parts = [part(e, x, axis, 0, first), source, part(e, x, axis, first + size, n - first - size)]
    return joined(e, [e.cast(p, e.out.dtype) for p in parts if e.shape(p)[axis]] or [x], axis)


@converts("select_scatter")
def select_scatter(e: Emitter, x: Value, source: Value, dim: int, index: int) -> Value:
    axis = axis_of(dim, len(e.out.shape))
    start = index % e.out.shape[axis]
    row = e.reshape(source, (*e.out.shape[:axis], 1, *e.out.shape[axis + 1 :]))
    return slice_scatter(e, x, row, axis, start, start + 1, 1)


@converts("flip")
def flip(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    for axis in axes_of(list(dims), len(e.out.shape)) if dims else ():
        size = e.out.shape[axis]
        if size > 1:
            x = part(e, x, axis, size - 1, size, -1)
    return x


@converts("roll")
def roll(e: Emitter, x: Value, shifts: Sequence[int], dims: Sequence[int]) -> Value:
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


def padded(e: Emitter, x: Value, pad: Sequence[int], mode: str, value: float) -> Value:
    shape = e.shape(x)
    begins, ends = _pad_lists(pad, len(shape))
    if min(*begins, *ends, 0) < 0:
        if mode != "constant":
            e.refuse(f"negative padding {tuple(pad)} in mode {mode}; slice the tensor instead")
        for axis, (lo, hi) in enumerate(zip(begins, ends, strict=True)):
            x = part(e, x, axis, max(-lo, 0), max(e.shape(x)[axis] + min(lo, 0) + min(hi, 0), 0))
        begins, ends = [max(b, 0) for b in begins], [max(b, 0) for b in ends]
    if not any((*begins, *ends)):
        return x
    return e.op(Pad((*begins, *ends), float(value), mode), x)


def _wrapped(e: Emitter, x: Value, pad: Sequence[int]) -> Value:
    """Circular padding: the far end of each axis before it, the near end after it."""
    begins, ends = _pad_lists(pad, len(e.shape(x)))
    for axis, (lo, hi) in enumerate(zip(begins, ends, strict=True)):
        n = e.shape(x)[axis]
        if min(lo, hi) < 0:
            e.refuse(f"negative circular padding {tuple(pad)}; slice the tensor instead")
        parts = [part(e, x, axis, n - lo, lo)] * bool(lo) + [x] + [part(e, x, axis, 0, hi)] * bool(hi)
        x = joined(e, parts, axis)
    return x


@converts("pad")
def pad(e: Emitter, x: Value, pads: Sequence[int], mode: str, value: float | None) -> Value:
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
def constant_pad(e: Emitter, x: Value, pads: Sequence[int], value: float) -> Value:
    return padded(e, x, pads, "constant", value)


@converts("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(e: Emitter, x: Value, pads: Sequence[int]) -> Value:
    return padded(e, x, pads, "reflect", 0)


@converts("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(e: Emitter, x: Value, pads: Sequence[int]) -> Value:
    return padded(e, x, pads, "edge", 0)


@converts("embedding")
def embedding(e: Emitter, weight: Value, indices: Value, *_: Any) -> Value:
    return e.op(Gather(0), weight, indices)


@converts("index_select")
def index_select(e: Emitter, x: Value, dim: int, indices: Value) -> Value:
    if not e.shape(x):
        return x
    return e.op(Gather(axis_of(dim, len(e.shape(x)))), x, e.reshape(indices, (e.type(indices).size,)))


def _non_negative(e: Emitter, indices: Value, extent: int) -> Value:
    """Constant indices counted from the front; others keep the op's own rule."""
    if not isinstance(indices, torch.Tensor):
        e.refuse("advanced indexing with computed indices; use index_select, whose indices are never negative")
    return torch.where(indices < 0, indices + extent, indices)


@converts("index.Tensor")
def index(e: Emitter, x: Value, indices: Sequence[Value | None]) -> Value:
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(given) != 1:
        e.refuse(f"advanced indexing by {len(given)} index tensors at once; index one axis at a time")
    axis, which = given[0]
    if isinstance(which, torch.Tensor) and which.dtype == torch.bool:
        which = which.nonzero().squeeze(1) if which.ndim == 1 else e.refuse("a mask of more than one axis as index")
    elif e.type(which).dtype == "bool":
        e.refuse("indexing by a computed mask gives a shape that depends on data; use torch.where")
    return e.op(Gather(axis), x, _non_negative(e, which, e.shape(x)[axis]))


def _resized(e: Emitter, x: Value, rows: Sequence[torch.Tensor | None]) -> Value:
    """Applies to each spatial axis a matrix (out, in) with few entries a row: a sum of weighted gathers."""
    for d, matrix in enumerate(rows):
        if matrix is None:
            continue
        taps = max(int((matrix != 0).sum(1).max()), 1)
        weights, where = matrix.abs().topk(taps, dim=1)
        weights = matrix.gather(1, where)
        total: Value | None = None
        for k in range(taps):
            term: Value = e.op(Gather(2 + d), x, where[:, k].contiguous())
            if not bool((weights[:, k] == 1).all()):
                kind = TensorType(e.shape(term), e.out.dtype)
                factor = weights[:, k].reshape([-1 if a == 2 + d else 1 for a in range(len(kind.shape))])
                term = e.op(Mul(), term, e.operand(factor, kind))
            total = term if total is None else e.op(Add(), total, term)
        assert total is not None
        x = total
    return x


def _axis_matrices(
    e: Emitter, x: Value, linear: bool, exact: bool, corners: bool, factors: Sequence[float | None]
) -> list[torch.Tensor | None]:
    """What torch itself does to each axis, found by resizing the unit vectors; None where the axis stays."""
    result: list[torch.Tensor | None] = []
    ops = torch.ops.aten
    for n, out, factor in zip(e.shape(x)[2:], e.out.shape[2:], factors, strict=True):
        if linear:
            unit = torch.eye(n, dtype=torch.float64 if e.out.dtype == "f64" else torch.float32).reshape(n, 1, n)
            matrix = ops.upsample_linear1d.default(unit, [out], corners, factor).reshape(n, out).T
        else:
            resize = ops._upsample_nearest_exact1d if exact else ops.upsample_nearest1d
            source = resize.default(torch.arange(n, dtype=torch.float32).reshape(1, 1, n), [out], factor)
            matrix = torch.nn.functional.one_hot(source.reshape(out).long(), n).to(torch.float32)
        same = n == out and torch.equal(matrix, torch.eye(n, dtype=matrix.dtype))
        result.append(None if same else matrix)
    return result


def _resize(e: Emitter, x: Value, linear: bool, exact: bool, corners: bool, factors: Sequence[float | None]) -> Value:
    if not dtypes.is_float(e.out.dtype) and linear:
        e.refuse(f"interpolation of {e.out.dtype}")
    factors = factors or [None] * (len(e.out.shape) - 2)
    return _resized(e, x, _axis_matrices(e, x, linear, exact, corners, factors))


def _flat(factors: Sequence[Any]) -> list[float | None]:
    """Scale factors of the `.vec` overload (one list, or None) and of the others (one each) alike."""
    if len(factors) == 1 and isinstance(factors[0], list | tuple):
        return list(factors[0])
    return [] if all(f is None for f in factors) else list(factors)


def _enter_resize(n: int, name: str, linear: bool, exact: bool) -> None:
    if linear:

        @converts(f"upsample_{name}{n}d.vec", f"upsample_{name}{n}d")
        def resize_linear(e: Emitter, x: Value, size: Any, corners: bool, *factors: Any) -> Value:
            return _resize(e, x, True, False, corners, _flat(factors))

        return

    @converts(f"{name}{n}d.vec", f"{name}{n}d")
    def resize_nearest(e: Emitter, x: Value, size: Any, *factors: Any) -> Value:
        return _resize(e, x, False, exact, False, _flat(factors))


for _n, _linear in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _enter_resize(_n, _linear, True, False)
    _enter_resize(_n, "upsample_nearest", False, False)
    _enter_resize(_n, "_upsample_nearest_exact", False, True)

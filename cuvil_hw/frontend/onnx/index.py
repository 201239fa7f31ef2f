"""Converters of operators that choose, order or place elements by index."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite, prod
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import DTYPES, Converter, OnnxNode, Value, element_name
from cuvil_hw.frontend.onnx.shape import pad_value


def whole(n: OnnxNode, i: int) -> Value:
    """Operand `i` as i64."""
    return cast_to(n, n[i], "i64")


def gather_elements(n: OnnxNode, version: int) -> Value:
    return n.emit(e.GatherElements(n.axis(n.integer("axis", 0), n[0].rank)), n[0], n[1])


def gather_nd(n: OnnxNode, version: int) -> Value:
    return n.emit(e.GatherND(n.integer("batch_dims", 0)), n[0], n[1])


def scatter_elements(n: OnnxNode, version: int) -> Value:
    axis = n.axis(n.integer("axis", 0), n[0].rank)
    return n.emit(e.ScatterElements(axis=axis, how=n.attr("reduction", "none")), n[0], n[1], n[2])


def scatter_nd(n: OnnxNode, version: int) -> Value:
    return n.emit(e.ScatterND(how=n.attr("reduction", "none")), n[0], n[1], n[2])


def tensor_scatter(n: OnnxNode, version: int) -> Value:
    """A cache with `update` written along `axis` from each sample's own position on."""
    cache, update, mode = n[0], n[1], n.attr("mode", "linear")
    axis = n.axis(n.integer("axis", -2), cache.rank)
    if update.rank != cache.rank:
        n.refuse(f"update {update.shape} of a cache {cache.shape}")
    size, length = cache.shape[axis], update.shape[axis]
    if mode not in ("linear", "circular") or axis == 0 or length > size or not length:
        n.refuse(f"mode {mode!r}, update {update.shape} along axis {axis} of {cache.shape}")
    n.affordable("its table of positions", size)
    along = [-1 if d == axis else 1 for d in range(cache.rank)]
    start = whole(n, 2) if n.has(2) else n.const(np.zeros(cache.shape[0], np.int64), "i64")
    start = n.reshape(start, (cache.shape[0], *[1] * (cache.rank - 1)))
    ahead = n.binary(e.Sub(), n.const(np.arange(size).reshape(along), "i64"), start)
    if mode == "circular":
        ahead = n.emit(e.Mod(), ahead, n.like(size, ahead))
    after, before = n.emit(e.GreaterEqual(), ahead, n.like(0, ahead)), n.emit(e.Less(), ahead, n.like(length, ahead))
    inside = n.expand(n.emit(e.LogicalAnd(), after, before), cache.shape)
    near = n.emit(e.Clamp(0.0, float(length - 1)), n.expand(ahead, cache.shape))
    return n.emit(e.Where(), inside, n.emit(e.GatherElements(axis), update, near), cache)


def reverse_sequence(n: OnnxNode, version: int) -> Value:
    """The first lengths[b] elements along the time axis reversed."""
    x = n[0]
    batch, time = n.integer("batch_axis", 1), n.integer("time_axis", 0)
    if x.rank < 2 or {batch, time} != {0, 1}:
        n.refuse(f"batch axis {batch} and time axis {time} of {x.shape}")
    n.affordable("its table of positions", x.shape[time])
    lengths = n.reshape(whole(n, 1), [x.shape[batch] if d == batch else 1 for d in range(x.rank)])
    step = n.const(np.arange(x.shape[time]).reshape([-1 if d == time else 1 for d in range(x.rank)]), "i64")
    lengths, step = n.broadcast(lengths, step)
    back = n.emit(e.Sub(), n.emit(e.Sub(), lengths, step), n.like(1, step))
    at = n.emit(e.Where(), n.emit(e.Less(), step, lengths), back, step)
    return n.emit(e.GatherElements(time), x, n.expand(at, x.shape))


def top_k(n: OnnxNode, version: int) -> tuple[Value, Value]:
    """By the rank of every element; equal ones keep their order, NaN counts as the largest."""
    x = n[0]
    axis = n.axis(n.integer("axis", -1), x.rank)
    k = int(n.known_scalar(1, "k")) if version >= 10 else n.integer("k", 0)
    if not 0 <= k <= x.shape[axis]:
        n.refuse(f"the {k} largest of {x.shape[axis]}")
    where = n.emit(e.PositionOf(axis, k), n.emit(e.Rank(axis, bool(n.integer("largest", 1))), x))
    return n.emit(e.GatherElements(axis), x, where), where


def running(op: type[e.CumSum] | type[e.CumProd]) -> Converter:
    def convert(n: OnnxNode, version: int) -> Value:
        axis = n.axis(int(n.known_scalar(1, "the axis")), n[0].rank)
        return n.emit(op(axis, bool(n.integer("exclusive", 0)), bool(n.integer("reverse", 0))), n[0])

    return convert


def hardmax(n: OnnxNode, version: int) -> Value:
    """One where the first of the largest stands; before opset 13 among all dimensions from `axis` on."""
    x = n[0]
    axis = n.axis(n.integer("axis", 1 if version < 13 else -1), x.rank)
    flat = x if version >= 13 else n.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    axis = axis if version >= 13 else 1
    n.affordable("its table of positions", flat.shape[axis])
    steps = np.arange(flat.shape[axis]).reshape([-1 if d == axis else 1 for d in range(flat.rank)])
    hot = n.binary(e.Equal(), n.emit(e.ArgMax(axis, True), flat), n.const(steps, "i64"))
    return n.reshape(cast_to(n, hot, x.dtype), x.shape)


def compress(n: OnnxNode, version: int) -> Value:
    x, given = n[0], n.attr("axis")
    kept = np.flatnonzero(n.known(1, "the condition"))
    if given is None:
        x, axis = n.reshape(x, (x.type.size,)), 0
    else:
        axis = n.axis(int(given), x.rank)
    kept = kept[kept < x.shape[axis]]
    return n.emit(e.Gather(axis), x, n.const(kept, "i64"))


def range_(n: OnnxNode, version: int) -> Value:
    dtype = n[0].dtype
    start, limit, delta = (n.known_scalar(i, what) for i, what in enumerate(("start", "limit", "delta")))
    if delta == 0 or not all(isfinite(v) for v in (start, limit, delta)):
        n.refuse(f"start {start}, limit {limit}, delta {delta}")
    if all(isinstance(v, int) for v in (start, limit, delta)):
        count = -((start - limit) // delta)
        count = count if count > 0 else 0
    else:
        count = max(ceil((limit - start) / delta), 0)
    n.affordable("its result", count)
    return n.const(start + np.arange(count).astype(dtypes.to_numpy(dtype)) * delta, dtype, (count,))


def eye_like(n: OnnxNode, version: int) -> Value:
    code = n.integer("dtype", 0)
    if n[0].rank != 2 or (code and code not in DTYPES):
        n.refuse(f"element type {element_name(code)}, shape {n[0].shape}")
    n.affordable("its result", *n[0].shape)
    return n.const(np.eye(n[0].shape[0], n[0].shape[1], n.integer("k", 0)), DTYPES[code] if code else n[0].dtype)


def max_unpool(n: OnnxNode, version: int) -> Value:
    """Values put where MaxPool found them; a larger `output_shape` adds rows of zeros at the ends."""
    x, kernel = n[0], n.ints("kernel_shape")
    rank = x.rank - 2
    strides, pads = n.ints("strides", (1,) * rank), n.ints("pads", (0,) * (2 * rank))
    if not len(kernel) == len(strides) == rank or len(pads) != 2 * rank:
        n.refuse(f"kernel {kernel}, strides {strides}, pads {pads} on {x.shape}")
    spatial = [(x.shape[2 + d] - 1) * strides[d] + kernel[d] - pads[d] - pads[rank + d] for d in range(rank)]
    full = (*x.shape[:2], *spatial)
    zeros = n.like(0, Value(x.type.with_shape((prod(full),))))
    flat = n.emit(e.ScatterElements(), zeros, n.reshape(n[1], (x.type.size,)), n.reshape(x, (x.type.size,)))
    y = n.reshape(flat, full)
    wanted = n.known_ints(2, "the output shape's values") if n.has(2) else full
    if len(wanted) != len(full) or any(w < f for w, f in zip(wanted, full, strict=True)):
        n.refuse(f"output shape {wanted} where the window gives {full}")
    return pad_value(n, y, (*[0] * x.rank, *(w - f for w, f in zip(wanted, full, strict=True))))


INDEX: Mapping[str, Converter] = MappingProxyType(
    {
        "GatherElements": gather_elements,
        "GatherND": gather_nd,
        "Scatter": scatter_elements,
        "ScatterElements": scatter_elements,
        "ScatterND": scatter_nd,
        "TensorScatter": tensor_scatter,
        "ReverseSequence": reverse_sequence,
        "TopK": top_k,
        "CumSum": running(e.CumSum),
        "CumProd": running(e.CumProd),
        "Hardmax": hardmax,
        "Compress": compress,
        "Range": range_,
        "EyeLike": eye_like,
        "MaxUnpool": max_unpool,
    }
)

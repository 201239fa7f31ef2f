"""ATen converters of layers: convolution, dense, pooling, normalisation, softmax, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.aten import Emitter, Value, axis_of, converts, extended
from cuvil_hw.frontend.aten_shape import joined, part, permuted
from cuvil_hw.ops import norm
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.nn import AvgPool, Conv, Linear, MaxPool
from cuvil_hw.types import TensorType


def _batched(e: Emitter, x: Value, spatial: int) -> Value:
    """x with a batch axis, which torch lets one leave out."""
    shape = e.shape(x)
    return e.reshape(x, (1, *shape)) if len(shape) == spatial + 1 else x


def _conv(
    e: Emitter,
    x: Value,
    w: Value,
    b: Value | None,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    if not dtypes.is_float(e.out.dtype):
        e.refuse(f"convolution of {e.out.dtype}; floats only (integers come from quantization)")
    op = Conv(tuple(strides), tuple(pads), tuple(dilations), groups)
    x = _batched(e, x, len(op.strides))
    y = e.op(op, x, w) if b is None else e.op(op, x, w, b)
    return e.reshape(y, e.out.shape)


@converts("convolution")
def convolution(
    e: Emitter,
    x: Value,
    w: Value,
    b: Value | None,
    strides: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    if transposed:
        e.refuse("transposed convolution is not supported; use nearest upsampling and a convolution")
    n = len(e.shape(w)) - 2
    pads = extended(padding, n)
    return _conv(e, x, w, b, extended(strides, n), pads + pads, extended(dilations, n), groups)


@converts("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padding(
    e: Emitter,
    x: Value,
    w: Value,
    b: Value | None,
    strides: Sequence[int],
    padding: str,
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """'same': the odd one of an uneven total goes to the end, as in torch."""
    kernel = e.shape(w)[2:]
    n = len(kernel)
    dilations = extended(dilations, n)
    totals = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilations, strict=True)]
    pads = [t // 2 for t in totals] + [t - t // 2 for t in totals]
    return _conv(e, x, w, b, extended(strides, n), pads, dilations, groups)


def _accumulator(e: Emitter) -> str:
    """Products of plain integer tensors are summed in their own type."""
    return "" if dtypes.is_float(e.out.dtype) else e.out.dtype


@converts("linear")
def linear(e: Emitter, x: Value, w: Value, b: Value | None) -> Value:
    if len(e.shape(w)) == 1:
        w = e.reshape(w, (1, *e.shape(w)))
    op = Linear(acc=_accumulator(e))
    y = e.op(op, x, w) if b is None else e.op(op, x, w, b)
    return e.reshape(y, e.out.shape)


@converts("mm", "bmm", "matmul")
def matmul(e: Emitter, a: Value, b: Value) -> Value:
    if isinstance(b, torch.Tensor) and b.ndim == 2:
        return e.reshape(e.op(Linear(acc=_accumulator(e)), a, b.T), e.out.shape)
    if len(e.shape(a)) == 1:
        a = e.reshape(a, (1, *e.shape(a)))
    if len(e.shape(b)) == 1:
        b = e.reshape(b, (*e.shape(b), 1))
    return e.reshape(e.op(rd.MatMul(acc=_accumulator(e)), a, b), e.out.shape)


@converts("addmm", "baddbmm", "addmv")
def addmm(e: Emitter, c: Value, a: Value, b: Value, beta: float, alpha: float) -> Value:
    """beta·c + alpha·(a @ b)"""
    if beta == alpha == 1 and isinstance(b, torch.Tensor) and b.ndim == 2 and e.shape(c) == e.out.shape[-1:]:
        return e.op(Linear(acc=_accumulator(e)), a, b.T, c)
    y = matmul(e, a, b)
    if alpha != 1:
        y = e.op(ew.Mul(), y, e.splat(alpha, e.out))
    if beta == 0:
        return y
    c = e.operand(c, e.out)
    return e.op(ew.Add(), y, c if beta == 1 else e.op(ew.Mul(), c, e.splat(beta, e.out)))


def _window(
    e: Emitter, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, n: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """kernel, strides, pads (begin…, end…), dilations and the end cells that exist only because of ceil_mode."""
    k = extended(kernel, n)
    s = extended(stride, n) if stride else k
    p, d = extended(padding, n), extended(dilation, n)
    extra = []
    for size, out, kk, ss, pp, dd in zip(e.shape(x)[-n:], e.out.shape[-n:], k, s, p, d, strict=True):
        extra.append(max(0, (out - 1) * ss + dd * (kk - 1) + 1 - (size + 2 * pp)))
    return k, s, (*p, *(a + b for a, b in zip(p, extra, strict=True))), d, tuple(extra)


def _max_pool(e: Emitter, x: Value, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Value:
    k, s, p, d, _ = _window(e, x, kernel, stride, padding, dilation, n)
    return e.reshape(e.op(MaxPool(k, s, p, d), _batched(e, x, n)), e.out.shape)


def _enter_pools(n: int) -> None:
    @converts(f"max_pool{n}d")
    def max_pool(e: Emitter, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Value:
        return _max_pool(e, x, n, kernel, stride, padding, dilation)

    @converts(f"max_pool{n}d_with_indices")
    def with_indices(
        e: Emitter, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
    ) -> tuple[Value, None]:
        return _max_pool(e, x, n, kernel, stride, padding, dilation), None

    @converts(f"avg_pool{n}d")
    def avg_pool(
        e: Emitter,
        x: Value,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        include_pad: bool,
        divisor: int | None = None,
    ) -> Value:
        k, s, p, d, extra = _window(e, x, kernel, stride, padding, 1, n)
        op = AvgPool(k, s, p, d, include_pad, extra, divisor or 0)
        return e.reshape(e.op(op, _batched(e, x, n)), e.out.shape)

    @converts(f"adaptive_avg_pool{n}d", f"_adaptive_avg_pool{n}d")
    def adaptive_avg(e: Emitter, x: Value, size: Any) -> Value:
        return _adaptive(e, x, n, average=True)

    @converts(f"adaptive_max_pool{n}d")
    def adaptive_max(e: Emitter, x: Value, size: Any) -> tuple[Value, None]:
        return _adaptive(e, x, n, average=False), None


for _n in (1, 2, 3):
    _enter_pools(_n)


def _adaptive(e: Emitter, x: Value, n: int, average: bool) -> Value:
    """Window i of an axis covers floor(i·n/out) to ceil((i+1)·n/out): a plain pool when out divides n, else parts."""
    ins, outs = e.shape(x)[-n:], e.out.shape[-n:]
    if all(o > 0 and i > 0 and i % o == 0 for i, o in zip(ins, outs, strict=True)):
        k = tuple(i // o for i, o in zip(ins, outs, strict=True))
        zero, one = (0,) * (2 * n), (1,) * n
        pool: Op = AvgPool(k, k, zero, one) if average else MaxPool(k, k, zero, one)
        return e.reshape(e.op(pool, _batched(e, x, n)), e.out.shape)
    rank = len(e.out.shape)
    for axis, size, out in zip(range(rank - n, rank), ins, outs, strict=True):
        parts = []
        for i in range(out):
            lo, hi = i * size // out, -(-(i + 1) * size // out)
            op: Op = rd.ReduceMean((axis,), True) if average else rd.ReduceMax((axis,), True)
            parts.append(e.op(op, part(e, x, axis, lo, hi - lo)))
        x = joined(e, parts, axis) if parts else e.refuse("an adaptive pool with an empty output")
    return x


def _channel(e: Emitter, v: Value | None, channels: int, default: float) -> Value:
    return e.splat(default, TensorType((channels,), e.out.dtype)) if v is None else e.cast(v, e.out.dtype)


def _batch_norm(e: Emitter, x: Value, w: Value | None, b: Value | None, mean: Value, var: Value, eps: float) -> Value:
    c = e.shape(x)[1]
    return e.op(
        norm.BatchNorm(eps),
        x,
        _channel(e, w, c, 1),
        _channel(e, b, c, 0),
        _channel(e, mean, c, 0),
        _channel(e, var, c, 1),
    )


@converts("_native_batch_norm_legit_no_training")
def batch_norm(
    e: Emitter, x: Value, w: Value | None, b: Value | None, mean: Value, var: Value, momentum: float, eps: float
) -> tuple[Value, None, None]:
    return _batch_norm(e, x, w, b, mean, var, eps), None, None


@converts(
    "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "native_batch_norm",
)
def batch_norm_training(e: Emitter, *_: Any) -> Value:
    e.refuse(
        "batch norm over the statistics of the batch itself; call model.eval() before torch.export.export, "
        "or keep running statistics (track_running_stats=True)"
    )


@converts("native_dropout")
def native_dropout(e: Emitter, *_: Any) -> Value:
    e.refuse("dropout in training mode; call model.eval() before torch.export.export")


@converts("native_layer_norm")
def layer_norm(
    e: Emitter, x: Value, shape: Sequence[int], w: Value | None, b: Value | None, eps: float
) -> tuple[Value, None, None]:
    kind = TensorType(tuple(shape), e.out.dtype)
    scale = e.splat(1, kind) if w is None else e.cast(w, kind.dtype)
    bias = e.splat(0, kind) if b is None else e.cast(b, kind.dtype)
    return e.op(norm.LayerNorm(len(e.out.shape) - len(shape), eps), x, scale, bias), None, None


@converts("native_group_norm")
def group_norm(
    e: Emitter, x: Value, w: Value | None, b: Value | None, n: int, c: int, hw: int, groups: int, eps: float
) -> tuple[Value, None, None]:
    return e.op(norm.GroupNorm(groups, eps), x, _channel(e, w, c, 1), _channel(e, b, c, 0)), None, None


@converts("instance_norm")
def instance_norm(
    e: Emitter,
    x: Value,
    w: Value | None,
    b: Value | None,
    mean: Value | None,
    var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Value:
    c = e.shape(x)[1]
    if not use_input_stats and mean is not None and var is not None:
        return _batch_norm(e, x, w, b, mean, var, eps)
    return e.op(norm.InstanceNorm(eps), x, _channel(e, w, c, 1), _channel(e, b, c, 0))


@converts("_softmax", "softmax.int")
def softmax(e: Emitter, x: Value, dim: int, *_: Any) -> Value:
    return _softmax(e, rd.Softmax(axis_of(dim, len(e.out.shape))), x)


@converts("_log_softmax", "log_softmax.int")
def log_softmax(e: Emitter, x: Value, dim: int, *_: Any) -> Value:
    return _softmax(e, rd.LogSoftmax(axis_of(dim, len(e.out.shape))), x)


@converts("_safe_softmax")
def safe_softmax(e: Emitter, x: Value, dim: int, *_: Any) -> Value:
    return _empty_rows_zero(e, e.cast(x, e.out.dtype), axis_of(dim, len(e.out.shape)))


def _empty_rows_zero(e: Emitter, x: Value, axis: int) -> Value:
    """Softmax that gives 0, not NaN, where all of a row is -infinity."""
    kind = e.type(x)
    top = e.op(rd.ReduceMax((axis,), True), x)
    empty = e.broadcast(e.op(ew.Equal(), top, e.splat(-math.inf, e.type(top))), kind.shape)
    return e.op(ew.Where(), empty, e.splat(0, kind), e.op(rd.Softmax(axis), x))


def _softmax(e: Emitter, op: Op, x: Value) -> Value:
    x = e.cast(x, e.out.dtype)
    if e.out.shape:
        return e.op(op, x)
    return e.reshape(e.op(op, e.reshape(x, (1,))), ())


@converts("scaled_dot_product_attention")
def attention(
    e: Emitter,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> Value:
    """softmax(q·kᵀ·scale + mask)·v. A boolean mask says what takes part; a row where nothing does gives 0."""
    if dropout or gqa:
        e.refuse("attention with dropout or grouped queries")
    qs, ks = e.shape(q), e.shape(k)
    scores_type = TensorType((*np.broadcast_shapes(qs[:-2], ks[:-2]), qs[-2], ks[-2]), e.out.dtype)
    factor = 1 / math.sqrt(qs[-1]) if scale is None else scale
    q = e.op(ew.Mul(), q, e.splat(factor, e.type(q)))
    rank = len(ks)
    scores: Value = e.op(rd.MatMul(), q, permuted(e, k, (*range(rank - 2), rank - 1, rank - 2)))
    if causal:
        mask = torch.ones(qs[-2], ks[-2], dtype=torch.bool).tril()
    last = len(scores_type.shape) - 1
    if mask is None:
        return e.op(rd.MatMul(), e.op(rd.Softmax(last), scores), v)
    low = e.splat(-math.inf, scores_type)
    if e.type(mask).dtype == "bool":
        mask = e.operand(mask, TensorType(scores_type.shape, "bool"))
        scores = e.op(ew.Where(), mask, scores, low)
    else:
        scores = e.op(ew.Add(), scores, e.operand(mask, scores_type))
    # A causal row always has its first column; any other mask may leave a row empty.
    weights: Value = e.op(rd.Softmax(last), scores) if causal else _empty_rows_zero(e, scores, last)
    return e.op(rd.MatMul(), weights, v)

"""ATen converters of layers: dense, normalisation, softmax, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axis_of, converts
from cuvil_hw.frontend.torch.aten.reduce import reduced
from cuvil_hw.frontend.torch.aten.shape import permuted
from cuvil_hw.ops import norm
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.nn import Linear
from cuvil_hw.types import TensorType


def _accumulator(e: AtenEmitter) -> str:
    """Products of plain integer tensors are summed in i64, which holds their last bits, and then wrap in their type."""
    return "" if dtypes.is_float(e.out.dtype) else "i64"


@converts("linear")
def linear(e: AtenEmitter, x: Value, w: Value, b: Value | None) -> Value:
    if len(e.shape(w)) == 1:
        w = e.reshape(w, (1, *e.shape(w)))
    op = Linear(acc=_accumulator(e))
    if b is not None and op.acc:
        b = e.cast(b, op.acc)
    y = e.op(op, x, w) if b is None else e.op(op, x, w, b)
    return e.reshape(e.cast(y, e.out.dtype), e.out.shape)


@converts("mm", "bmm", "matmul")
def matmul(e: AtenEmitter, a: Value, b: Value) -> Value:
    if isinstance(b, torch.Tensor) and b.ndim == 2:
        y: Value = e.op(Linear(acc=_accumulator(e)), a, b.T)
        return e.reshape(e.cast(y, e.out.dtype), e.out.shape)
    if len(e.shape(a)) == 1:
        a = e.reshape(a, (1, *e.shape(a)))
    if len(e.shape(b)) == 1:
        b = e.reshape(b, (*e.shape(b), 1))
    y = e.op(rd.MatMul(acc=_accumulator(e)), a, b)
    return e.reshape(e.cast(y, e.out.dtype), e.out.shape)


@converts("addmm", "baddbmm", "addmv")
def addmm(e: AtenEmitter, c: Value, a: Value, b: Value, beta: float, alpha: float) -> Value:
    """beta·c + alpha·(a @ b)"""
    plain = beta == alpha == 1 and dtypes.is_float(e.out.dtype)
    if plain and isinstance(b, torch.Tensor) and b.ndim == 2 and e.shape(c) == e.out.shape[-1:]:
        return e.op(Linear(), a, b.T, c)
    y = matmul(e, a, b)
    if alpha != 1:
        y = e.op(ew.Mul(), y, e.splat(alpha, e.out))
    if beta == 0:
        return y
    c = e.operand(c, e.out)
    return e.op(ew.Add(), y, c if beta == 1 else e.op(ew.Mul(), c, e.splat(beta, e.out)))


def channel(e: AtenEmitter, v: Value | None, channels: int, default: float) -> Value:
    return e.splat(default, TensorType((channels,), e.out.dtype)) if v is None else e.cast(v, e.out.dtype)


def _batch_norm(
    e: AtenEmitter, x: Value, w: Value | None, b: Value | None, mean: Value, var: Value, eps: float
) -> Value:
    c = e.shape(x)[1]
    return e.op(
        norm.BatchNorm(eps),
        x,
        channel(e, w, c, 1),
        channel(e, b, c, 0),
        channel(e, mean, c, 0),
        channel(e, var, c, 1),
    )


@converts("_native_batch_norm_legit_no_training")
def batch_norm(
    e: AtenEmitter, x: Value, w: Value | None, b: Value | None, mean: Value, var: Value, momentum: float, eps: float
) -> tuple[Value, None, None]:
    return _batch_norm(e, x, w, b, mean, var, eps), None, None


@converts("_native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    e: AtenEmitter, x: Value, w: Value | None, b: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, None, None]:
    """A layer that keeps no statistics: those of the batch are meant in inference too."""
    kind = e.type(x)
    c, axes = kind.shape[1], [d for d in range(len(kind.shape)) if d != 1]
    wide = [1, c, *[1] * (len(kind.shape) - 2)]
    low = e.op(ew.Sub(), x, e.broadcast(reduced(e, rd.ReduceMean, x, axes, True), kind.shape))
    variance = reduced(e, rd.ReduceMean, e.op(ew.Mul(), low, low), axes, True)
    spread = e.op(ew.Sqrt(), e.op(ew.Add(), variance, e.splat(eps, e.type(variance))))
    y = e.op(ew.Div(), low, e.broadcast(spread, kind.shape))
    for op, p, default in ((ew.Mul(), w, 1), (ew.Add(), b, 0)):
        if p is not None:
            y = e.op(op, y, e.broadcast(e.reshape(channel(e, p, c, default), wide), kind.shape))
    return y, None, None


@converts(
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "native_batch_norm",
)
def batch_norm_training(e: AtenEmitter, *_: Any) -> Value:
    e.refuse(
        "batch norm over the statistics of the batch itself; call model.eval() first, "
        "or keep running statistics (track_running_stats=True)"
    )


@converts("native_dropout")
def native_dropout(e: AtenEmitter, *_: Any) -> Value:
    e.refuse("dropout in training mode; call model.eval() first")


@converts("native_layer_norm")
def layer_norm(
    e: AtenEmitter, x: Value, shape: Sequence[int], w: Value | None, b: Value | None, eps: float
) -> tuple[Value, None, None]:
    kind = TensorType(tuple(shape), e.out.dtype)
    scale = e.splat(1, kind) if w is None else e.cast(w, kind.dtype)
    bias = e.splat(0, kind) if b is None else e.cast(b, kind.dtype)
    return e.op(norm.LayerNorm(len(e.out.shape) - len(shape), eps), x, scale, bias), None, None


@converts("native_group_norm")
def group_norm(
    e: AtenEmitter, x: Value, w: Value | None, b: Value | None, n: int, c: int, hw: int, groups: int, eps: float
) -> tuple[Value, None, None]:
    return e.op(norm.GroupNorm(groups, eps), x, channel(e, w, c, 1), channel(e, b, c, 0)), None, None


@converts("instance_norm")
def instance_norm(
    e: AtenEmitter,
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
    return e.op(norm.InstanceNorm(eps), x, channel(e, w, c, 1), channel(e, b, c, 0))


@converts("_softmax", "softmax.int")
def softmax(e: AtenEmitter, x: Value, dim: int, *_: Any) -> Value:
    return _softmax(e, rd.Softmax(axis_of(dim, len(e.out.shape))), x)


@converts("_log_softmax", "log_softmax.int")
def log_softmax(e: AtenEmitter, x: Value, dim: int, *_: Any) -> Value:
    return _softmax(e, rd.LogSoftmax(axis_of(dim, len(e.out.shape))), x)


@converts("_safe_softmax")
def safe_softmax(e: AtenEmitter, x: Value, dim: int, *_: Any) -> Value:
    return _empty_rows_zero(e, e.cast(x, e.out.dtype), axis_of(dim, len(e.out.shape)))


def _empty_rows_zero(e: AtenEmitter, x: Value, axis: int) -> Value:
    """Softmax that gives 0, not NaN, where all of a row is -infinity."""
    kind = e.type(x)
    top = e.op(rd.ReduceMax((axis,), True), x)
    empty = e.broadcast(e.op(ew.Equal(), top, e.splat(-math.inf, e.type(top))), kind.shape)
    return e.op(ew.Where(), empty, e.splat(0, kind), e.op(rd.Softmax(axis), x))


def _softmax(e: AtenEmitter, op: Op, x: Value) -> Value:
    x = e.cast(x, e.out.dtype)
    if e.out.shape:
        return e.op(op, x)
    return e.reshape(e.op(op, e.reshape(x, (1,))), ())


def _per_query_head(e: AtenEmitter, x: Value, heads: int) -> Value:
    """Keys or values (…, H, S, E), each head repeated for its group of query heads."""
    *lead, own, steps, size = e.shape(x)
    apart = e.reshape(x, (*lead, own, 1, steps, size))
    return e.reshape(e.broadcast(apart, (*lead, own, heads // own, steps, size)), (*lead, heads, steps, size))


@converts("scaled_dot_product_attention")
def attention(
    e: AtenEmitter,
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
    if dropout:
        e.refuse("attention with dropout; call model.eval() first")
    if gqa:
        k, v = (_per_query_head(e, t, e.shape(q)[-3]) for t in (k, v))
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

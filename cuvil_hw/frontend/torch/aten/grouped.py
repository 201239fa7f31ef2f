"""ATen converters of ops on groups of rows: experts' products, bags of embeddings, histograms."""

from __future__ import annotations

import math
from typing import Any

import torch

from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.emitter import TABLE, AtenEmitter, Value, converts
from cuvil_hw.frontend.torch.aten.index import within
from cuvil_hw.frontend.torch.aten.nn import matmul
from cuvil_hw.frontend.torch.aten.reduce import reduced
from cuvil_hw.frontend.torch.aten.shape import part
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.shape import Gather
from cuvil_hw.types import TensorType

SUM, MEAN, MAX = range(3)  # modes of embedding_bag


def _groups(e: AtenEmitter, ends: Value, rows: int) -> Value:
    """For each row the number of groups that end before or at it: its group's, where `ends` (groups,) never falls."""
    shape = (rows, e.shape(ends)[0])
    at = e.broadcast(torch.arange(rows)[:, None], shape)
    ended = e.op(ew.LessEqual(), e.broadcast(e.reshape(e.cast(ends, "i64"), (1, shape[1])), shape), at)
    return reduced(e, rd.ReduceSum, e.cast(ended, "i64"), [1])


@converts("_grouped_mm")
def grouped_mm(
    e: AtenEmitter, x: Value, w: Value, ends: Value | None, bias: Value | None = None, dtype: Any = None
) -> Value:
    """x (S, K), rows sorted by group; w (groups, K, N); `ends` (groups,): where each group's rows end. Each row's
    product with its group's matrix; 0 behind the last end."""
    if len(e.shape(w)) == 3 == len(e.shape(x)) and ends is None:
        return matmul(e, x, w)
    if len(e.shape(x)) != 2 or len(e.shape(w)) != 3 or ends is None or bias is not None:
        e.refuse(
            "groups along another dimension than the rows; with transformers, "
            "model.set_experts_implementation('batched_mm') works"
        )
    rows, count = e.shape(x)[0], e.shape(w)[0]
    group = _groups(e, ends, rows)
    last = e.splat(count - 1, e.type(group))
    chosen = e.op(Gather(0), w, e.op(ew.Minimum(), group, last))
    y = e.op(rd.MatMul(), e.reshape(x, (rows, 1, e.shape(x)[1])), chosen)
    inside = e.broadcast(e.reshape(e.op(ew.LessEqual(), group, last), (rows, 1)), e.out.shape)
    return e.op(ew.Where(), inside, e.reshape(y, e.out.shape), e.splat(0, e.out))


# What transformers takes instead where PyTorch's own can't be traced; of one meaning.
TABLE["transformers.grouped_mm_fallback.default"] = grouped_mm


@converts("histc")
def histc(e: AtenEmitter, x: Value, bins: int, low: float, high: float) -> Value:
    """How many elements lie in each of `bins` equal parts of [low, high]; the last part holds `high` too."""
    kind = TensorType((e.type(x).size,), e.out.dtype)
    flat = e.reshape(e.cast(x, kind.dtype), kind.shape)
    if low == high:
        e.refuse("a histogram between the smallest and the largest element; give min and max")
    scaled = e.op(ew.Div(), e.op(ew.Mul(), e.op(ew.Sub(), flat, e.splat(low, kind)), e.splat(bins, kind)),
                  e.splat(high - low, kind))  # fmt: skip
    place = e.op(ew.Minimum(), e.op(ew.Floor(), scaled), e.splat(bins - 1, kind))
    below, above = e.op(ew.Less(), flat, e.splat(low, kind)), e.op(ew.Greater(), flat, e.splat(high, kind))
    place = e.op(ew.Where(), e.op(ew.LogicalOr(), below, above), e.splat(-1, kind), place)
    shape = (kind.size, bins)
    numbers = e.broadcast(e.cast(torch.arange(bins)[None], kind.dtype), shape)
    hits = e.op(ew.Equal(), e.broadcast(e.reshape(place, (kind.size, 1)), shape), numbers)
    return e.cast(reduced(e, rd.ReduceSum, e.cast(hits, "i64"), [0]), e.out.dtype)


@converts("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    e: AtenEmitter,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    factors: Value | None,
    include_last_offset: bool,
    padding: int,
) -> tuple[Value, None, None, None]:
    """Rows of `weight` summed, averaged or maximised bag by bag; bag i starts at offsets[i]. Empty bags give 0."""
    bags, wide = e.out.shape
    within(e, indices, e.shape(weight)[0])
    count, rows = e.shape(indices)[0], e.op(Gather(0), weight, indices)
    within(e, offsets, count + 1)
    if factors is not None:
        rows = e.op(ew.Mul(), rows, e.broadcast(e.reshape(factors, (count, 1)), (count, wide)))
    starts = part(e, offsets, 0, 0, bags)
    group = e.op(ew.Sub(), _groups(e, starts, count), e.splat(1, TensorType((count,), "i64")))
    shape = (bags, count)
    numbers = e.broadcast(torch.arange(bags)[:, None], shape)
    inside = e.op(ew.Equal(), e.broadcast(e.reshape(group, (1, count)), shape), numbers)
    if include_last_offset:  # what follows the last bag's end is nobody's
        end = e.broadcast(e.reshape(e.cast(part(e, offsets, 0, bags, 1), "i64"), (1, 1)), shape)
        before = e.op(ew.Less(), e.broadcast(torch.arange(count)[None], shape), end)
        inside = e.op(ew.LogicalAnd(), inside, before)
    if padding >= 0:
        kept = e.op(ew.LogicalNot(), e.op(ew.Equal(), indices, e.splat(padding, e.type(indices))))
        inside = e.op(ew.LogicalAnd(), inside, e.broadcast(e.reshape(kept, (1, count)), shape))
    return _pooled(e, rows, inside, mode), None, None, None


def _pooled(e: AtenEmitter, rows: Value, inside: Value, mode: int) -> Value:
    """rows (n, D), inside (bags, n) → (bags, D)."""
    (bags, count), wide = e.shape(inside), e.shape(rows)[1]
    full = TensorType((bags, count, wide), e.out.dtype)
    mask = e.broadcast(e.reshape(inside, (bags, count, 1)), full.shape)
    chosen = e.broadcast(e.reshape(rows, (1, count, wide)), full.shape)
    if mode == MAX:
        top = reduced(e, rd.ReduceMax, e.op(ew.Where(), mask, chosen, e.splat(-math.inf, full)), [1])
        filled = reduced(e, rd.ReduceMax, e.cast(inside, "i8"), [1])
        some = e.broadcast(e.reshape(e.cast(filled, "bool"), (bags, 1)), e.out.shape)
        return e.op(ew.Where(), some, top, e.splat(0, e.out))
    total = reduced(e, rd.ReduceSum, e.op(ew.Where(), mask, chosen, e.splat(0, full)), [1])
    if mode == SUM:
        return total
    sizes = e.op(ew.Maximum(), reduced(e, rd.ReduceSum, e.cast(inside, "i64"), [1]),
                 e.splat(1, TensorType((bags,), "i64")))  # fmt: skip
    return e.op(ew.Div(), total, e.broadcast(e.reshape(e.cast(sizes, e.out.dtype), (bags, 1)), e.out.shape))

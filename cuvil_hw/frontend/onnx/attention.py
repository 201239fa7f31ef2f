"""Converters of ONNX Runtime's fused attention: Attention, MultiHeadAttention, QAttention.

Variants that cache keys and values of earlier calls are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.dynamic import integer_product, scaled
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.linear import product
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Value
from cuvil_hw.frontend.onnx.shape import cut


def heads(n: OnnxNode, x: Value, count: int) -> Value:
    """(B, S, H·D) → (B, H, S, D)"""
    batch, steps, wide = x.shape
    if count < 1 or wide % count:
        n.refuse(f"{wide} features in {count} heads")
    return n.transpose(n.reshape(x, (batch, steps, count, wide // count)), (0, 2, 1, 3))


def masked(n: OnnxNode, mask: Value, batch: int, steps: int, total: int, like: Value) -> Value:
    """The mask as a term to add to scores (B, H, S, T): `mask_filter_value` where the mask is 0. Forms of the mask:
    (B,) lengths, (B, T) or (B, S, T)."""
    shape = mask.shape
    if shape == (batch,):
        place = n.expand(n.const(np.arange(total)[None], "i32"), (batch, total))
        length = n.expand(n.reshape(cast_to(n, mask, "i32"), (batch, 1)), (batch, total))
        keeps = n.reshape(n.emit(e.Less(), place, length), (batch, 1, 1, total))
    elif shape in ((batch, total), (batch, steps, total)):
        keeps = n.reshape(cast_to(n, mask, "bool"), (batch, 1, 1 if mask.rank == 2 else steps, total))
    else:
        n.refuse(f"a mask of shape {shape} for {batch} rows of {total} keys")
    fill = n.number("mask_filter_value", -10000.0)
    return n.emit(e.Where(), keeps, n.like(0, Value(like.type.with_shape(keeps.shape))),
                  n.like(fill, Value(like.type.with_shape(keeps.shape))))  # fmt: skip


def attend(n: OnnxNode, q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None) -> Value:
    """softmax(q · kᵀ · scale + mask + bias) · v of (B, S, H·D); `mask` as in `masked`, `bias` broadcast to scores."""
    count, (batch, steps, wide), total = n.integer("num_heads", 0), q.shape, k.shape[1]
    q, k, v = (heads(n, x, count) for x in (q, k, v))
    given = n.number("scale", 0.0)
    scale = given if given else 1 / math.sqrt(wide // count)
    scores = n.emit(e.MatMul(), q, n.transpose(k, (0, 1, 3, 2)))
    scores = n.emit(e.Mul(), scores, n.like(scale, scores))
    for extra in (masked(n, mask, batch, steps, total, scores) if mask is not None else None, bias):
        scores = scores if extra is None else n.binary(e.Add(), scores, extra)
    if n.integer("unidirectional", 0):
        later = np.triu(np.ones((steps, total), np.bool_), 1 + total - steps)
        lowest = n.like(float(np.finfo(np.float16 if scores.dtype == "f16" else np.float32).min), scores)
        scores = n.emit(e.Where(), n.expand(n.const(later, "bool"), scores.shape), lowest, scores)
    y = n.transpose(n.emit(e.MatMul(), n.emit(e.Softmax(3), scores), v), (0, 2, 1, 3))
    return n.reshape(y, (batch, steps, y.shape[2] * y.shape[3]))


def thirds(n: OnnxNode, joined: Value) -> tuple[Value, Value, Value]:
    """Query, key and value of (B, S, Q + K + V)."""
    sizes = n.ints("qkv_hidden_sizes") or (joined.shape[2] // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != joined.shape[2] or sizes[0] != sizes[1]:
        n.refuse(f"features {sizes} of query, key and value in {joined.shape[2]}")
    starts = (0, sizes[0], 2 * sizes[0])
    batch, steps = joined.shape[:2]
    q, k, v = (cut(n, joined, (0, 0, s), (batch, steps, w)) for s, w in zip(starts, sizes, strict=True))
    return q, k, v


def stateless(n: OnnxNode, past: Sequence[int]) -> None:
    if any(n.has(i) for i in past) or any(n.wanted[1:]):
        n.refuse("keys and values of earlier calls; export the model without a cache")
    if n.integer("do_rotary", 0):
        n.refuse("rotary embedding inside attention")


def attention(n: OnnxNode, version: int) -> Value:
    stateless(n, (4, 6))
    joined = product(n, n[0], n[1])
    joined = n.binary(e.Add(), joined, n[2]) if n.has(2) else joined
    return attend(n, *thirds(n, joined), n.get(3), n.get(5))


def q_attention(n: OnnxNode, version: int) -> Value:
    """Input, weights, bias, input scale, weight scale, mask, input zero point, weight zero point."""
    stateless(n, (8,))
    y = integer_product(n, n[0], n[1], n.get(6), n.get(7))
    return attend(n, *thirds(n, scaled(n, y, n.reshape(n[3], ()), n[4], n[2])), n.get(5), None)


def multi_head_attention(n: OnnxNode, version: int) -> Value:
    stateless(n, (6, 7, 8, 9))
    if not n.has(1) or not n.has(2) or any(n[i].rank != 3 for i in range(3)):
        n.refuse("query, key and value packed into one, or apart by heads")
    parts = [n[i] for i in range(3)]
    if n.has(3):
        ends = np.cumsum([0, *(p.shape[2] for p in parts)])
        biases = [cut(n, n[3], (int(s),), (p.shape[2],)) for s, p in zip(ends, parts, strict=False)]
        parts = [n.binary(e.Add(), p, b) for p, b in zip(parts, biases, strict=True)]
    q, k, v = parts
    return attend(n, q, k, v, n.get(4), n.get(5))


ATTENTION: Mapping[str, Converter] = MappingProxyType(
    {"Attention": attention, "QAttention": q_attention, "MultiHeadAttention": multi_head_attention}
)

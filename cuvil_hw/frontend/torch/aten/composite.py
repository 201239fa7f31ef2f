"""ATen converters of ops that torch itself makes of simpler ones.

A model in which every op has a converter is traced once; another one goes through torch's decompositions, a second
trace that takes as long as the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten import nn, shape
from cuvil_hw.frontend.torch.aten.conv import convolution
from cuvil_hw.frontend.torch.aten.emitter import TABLE, AtenEmitter, Value, converts
from cuvil_hw.ops import norm

# What needs no converter: their results follow from numbers and are folded, or there is nothing to compute.
WITHOUT = frozenset(
    """
    aten._assert_tensor_metadata.default aten.arange.default aten.arange.start aten.arange.start_step
    aten.empty.memory_format aten.eye.default
    aten.full.default aten.linspace.default aten.ones.default aten.scalar_tensor.default aten.zeros.default
    """.split()
)


@converts("conv1d", "conv2d", "conv3d")
def conv(
    e: AtenEmitter,
    x: Value,
    w: Value,
    b: Value | None,
    strides: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    return convolution(e, x, w, b, strides, padding, dilations, False, (0,), groups)


@converts("batch_norm")
def batch_norm(
    e: AtenEmitter,
    x: Value,
    w: Value | None,
    b: Value | None,
    mean: Value | None,
    var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Value | None:
    if not training and mean is not None and var is not None:
        return nn.batch_norm(e, x, w, b, mean, var, momentum, eps)[0]
    if mean is not None or var is not None:
        return nn.batch_norm_training(e)
    return nn.batch_norm_of_batch(e, x, w, b, True, momentum, eps)[0]


@converts("layer_norm")
def layer_norm(
    e: AtenEmitter, x: Value, extents: Sequence[int], w: Value | None, b: Value | None, eps: float, cudnn: bool
) -> Value:
    return nn.layer_norm(e, x, extents, w, b, eps)[0]


@converts("group_norm")
def group_norm(
    e: AtenEmitter, x: Value, groups: int, w: Value | None, b: Value | None, eps: float, cudnn: bool
) -> Value:
    channels = e.shape(x)[1]
    return e.op(norm.GroupNorm(groups, eps), x, nn.channel(e, w, channels, 1), nn.channel(e, b, channels, 0))


@converts("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(e: AtenEmitter, x: Value, p: float, train: bool) -> Value:
    return nn.native_dropout(e) if train and p else x


@converts("to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as")
def to(e: AtenEmitter, x: Value, *_: Any) -> Value:
    """The node's own result says what is meant."""
    return e.cast(x, e.out.dtype)


@converts("contiguous")
def contiguous(e: AtenEmitter, x: Value, *_: Any) -> Value:
    return x


@converts("reshape_as", "view_as")
def reshape_as(e: AtenEmitter, x: Value, *_: Any) -> Value:
    return e.reshape(x, e.out.shape)


@converts("expand_as")
def expand_as(e: AtenEmitter, x: Value, _: Value) -> Value:
    return e.broadcast(x, e.out.shape)


@converts("concat", "concatenate")
def concat(e: AtenEmitter, parts: Sequence[Value], dim: int) -> Value:
    return shape.cat(e, parts, dim)


@converts("ones_like", "new_ones")
def ones_like(e: AtenEmitter, *_: Any) -> Value:
    return e.splat(1, e.out)


@converts("zeros_like", "new_zeros")
def zeros_like(e: AtenEmitter, *_: Any) -> Value:
    return e.splat(0, e.out)


@converts("fill.Scalar", "fill.Tensor", "zero")
def fill(e: AtenEmitter, x: Value, value: Value | float | int | bool = 0) -> Value:
    return e.operand(value, e.out)


@converts("meshgrid", "meshgrid.indexing")
def meshgrid(e: AtenEmitter, parts: Sequence[Value], indexing: str = "ij") -> list[Value]:
    """Each vector along an axis of its own; "xy" exchanges the first two."""
    axes = [1, 0, *range(2, len(parts))] if indexing == "xy" and len(parts) > 1 else range(len(parts))
    shapes = ([-1 if d == axis else 1 for d in range(len(parts))] for axis in axes)
    made = zip(parts, shapes, e.results, strict=True)
    return [e.broadcast(e.reshape(v, (prod(e.shape(v)) if n < 0 else n for n in s)), r.shape) for v, s, r in made]


@converts("outer")
def outer(e: AtenEmitter, a: Value, b: Value) -> Value:
    column = e.reshape(e.cast(a, e.out.dtype), (e.out.shape[0], 1))
    return e.op(ew.Mul(), e.broadcast(column, e.out.shape), e.operand(b, e.out))


COMPOSITE = frozenset(name for name, converter in TABLE.items() if converter.__module__ == __name__)

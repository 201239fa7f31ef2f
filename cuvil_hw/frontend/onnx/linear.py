"""Converters of matrix products and normalisations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Value
from cuvil_hw.ops.nn import Linear
from cuvil_hw.ops.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm
from cuvil_hw.ops.reduce import MatMul, ReduceMean


def is_weight(v: Value) -> bool:
    """A constant matrix, or one behind a dequantize."""
    return v.rank == 2 and (v.array is not None or v.quantized is not None)


def matmul(n: OnnxNode, version: int) -> Value:
    return product(n, n[0], n[1])


def product(n: OnnxNode, a: Value, b: Value, x_zp: int = 0, w_zp: tuple[int, ...] = (0,)) -> Value:
    """NumPy's matmul; a constant matrix on the right makes it a linear layer. Narrow integers give i32; those of 32 and
    64 bits keep their type, in which sums wrap."""
    if not a.rank or not b.rank:
        n.refuse(f"operands {a.shape} and {b.shape}: scalars have no matrix product")
    if b.rank == 1:
        return n.reshape(product(n, a, n.reshape(b, (b.shape[0], 1)), x_zp, w_zp), a.shape[:-1])
    if a.rank == 1 and not is_weight(b):
        y = product(n, n.reshape(a, (1, a.shape[0])), b, x_zp, w_zp)
        return n.reshape(y, (*y.shape[:-2], y.shape[-1]))
    acc = accumulator(a)
    if is_weight(b):
        return whole(n, n.emit(Linear(x_zp, w_zp, acc), a, n.transpose(b, (1, 0))), a)
    return whole(n, n.emit(MatMul(x_zp, w_zp, acc) if acc else MatMul(), a, b), a)


def accumulator(x: Value) -> str:
    """`acc` of a product of x: none for floats."""
    width = dtypes.int_width(x.dtype)
    if width is None:
        return ""
    return "i64" if width[1] >= 32 else "i32"


def whole(n: OnnxNode, y: Value, x: Value) -> Value:
    """The sums `y` of products of x, in the type that ONNX gives them."""
    return cast_to(n, y, x.dtype) if y.dtype == "i64" else y


def gemm(n: OnnxNode, version: int) -> Value:
    """alpha · A' · B' + beta · C."""
    a, b, c = n[0], n[1], n.get(2)
    alpha, beta = n.number("alpha", 1.0), n.number("beta", 1.0)
    if a.rank != 2 or b.rank != 2:
        n.refuse(f"operands {a.shape} and {b.shape} must be matrices")
    if dtypes.is_int(a.dtype) and (alpha != int(alpha) or beta != int(beta)):
        n.refuse(f"alpha {alpha} and beta {beta} on integers")
    a = n.transpose(a, (1, 0)) if n.integer("transA", 0) else a
    if is_weight(b):
        weight = b if n.integer("transB", 0) else n.transpose(b, (1, 0))
        if alpha != 1 and weight.array is not None:
            weight, alpha = n.emit(e.Mul(), weight, n.like(alpha, weight)), 1.0
        op = Linear(acc=accumulator(a))
        bias = _bias(n, c, weight.shape[0], beta) if alpha == 1 else None
        if bias is not None:
            return whole(n, n.emit(op, a, weight, cast_to(n, bias, op.acc or bias.dtype)), a)
        y = whole(n, n.emit(op, a, weight), a)
    else:
        y = product(n, a, n.transpose(b, (1, 0)) if n.integer("transB", 0) else b)
    y = y if alpha == 1 else n.emit(e.Mul(), y, n.like(alpha, y))
    if c is None or beta == 0:
        return y
    c = c if beta == 1 else n.emit(e.Mul(), c, n.like(beta, c))
    return n.emit(e.Add(), y, n.expand(c, y.shape))


def _bias(n: OnnxNode, c: Value | None, features: int, beta: float) -> Value | None:
    """C as one value per output feature, or None when it isn't that."""
    if c is None or (beta != 1 and c.array is None):
        return None
    if c.array is not None and (c.type.size == 1 or c.shape in ((features,), (1, features))):
        scaled = c if beta == 1 else n.emit(e.Mul(), c, n.like(beta, c))
        assert scaled.array is not None
        return n.const(np.broadcast_to(scaled.array.reshape(-1), (features,)), c.dtype)
    return n.reshape(c, (features,)) if c.shape in ((features,), (1, features)) else None


def batch_norm(n: OnnxNode, version: int) -> Value:
    if n.integer("training_mode", 0) or any(n.wanted[1:]):
        n.refuse("training mode; export the model in inference mode")
    if not n.integer("spatial", 1):
        n.refuse("spatial = 0: statistics per element")
    x = n[0]
    return n.emit(BatchNorm(n.number("epsilon", 1e-5)), x, *(cast_to(n, n[i], x.dtype) for i in range(1, 5)))


def layer_norm(n: OnnxNode, version: int) -> tuple[Value, ...]:
    """Also the mean and 1/deviation, when something uses them."""
    x, eps = n[0], n.number("epsilon", 1e-5)
    axis = n.axis(n.integer("axis", -1), x.rank)
    inner = x.shape[axis:]
    scale = n.expand(n[1], inner)
    bias = (n.expand(n[2], inner),) if n.has(2) else ()
    y = n.emit(LayerNorm(axis, eps), x, scale, *bias)
    if not any(n.wanted[1:]):
        return (y,)
    axes = tuple(range(axis, x.rank))
    wide = cast_to(n, x, "f32") if x.dtype == "f16" else x
    mean = n.emit(ReduceMean(axes, True), wide)
    centred = n.binary(e.Sub(), wide, mean)
    variance = n.emit(ReduceMean(axes, True), n.emit(e.Mul(), centred, centred))
    inverse = n.emit(e.Reciprocal(), n.emit(e.Sqrt(), n.emit(e.Add(), variance, n.like(eps, variance))))
    return y, mean, inverse


def rms_norm(n: OnnxNode, version: int) -> Value:
    """x / sqrt(mean(x²) + eps) · scale, in at least f32."""
    x, eps = n[0], n.number("epsilon", 1e-5)
    axis = n.axis(n.integer("axis", -1), x.rank)
    wide = cast_to(n, x, "f32") if x.dtype == "f16" else x
    mean = n.emit(ReduceMean(tuple(range(axis, x.rank)), True), n.emit(e.Mul(), wide, wide))
    root = n.emit(e.Sqrt(), n.emit(e.Add(), mean, n.like(eps, mean)))
    normal = cast_to(n, n.binary(e.Div(), wide, root), x.dtype)
    return n.emit(e.Mul(), normal, n.expand(cast_to(n, n[1], x.dtype), x.shape))


def instance_norm(n: OnnxNode, version: int) -> Value:
    return n.emit(InstanceNorm(n.number("epsilon", 1e-5)), n[0], n[1], n[2])


def group_norm(n: OnnxNode, version: int) -> Value:
    """Opset 18 has scale and bias per group, 21 per channel."""
    x, groups = n[0], n.integer("num_groups", 1)
    channels = x.shape[1] if x.rank > 1 else 0
    if groups < 1 or channels % groups:
        n.refuse(f"{groups} groups of {channels} channels")

    def per_channel(v: Value) -> Value:
        if v.shape == (channels,) and (version >= 21 or groups == channels):
            return v
        if v.shape != (groups,):
            n.refuse(f"scale or bias of shape {v.shape} with {groups} groups and {channels} channels")
        return n.reshape(n.expand(n.reshape(v, (groups, 1)), (groups, channels // groups)), (channels,))

    scale, bias = per_channel(n[1]), per_channel(n[2])
    return n.emit(GroupNorm(groups, n.number("epsilon", 1e-5)), x, scale, bias)


LINEAR: Mapping[str, Converter] = MappingProxyType(
    {
        "Gemm": gemm,
        "MatMul": matmul,
        "BatchNormalization": batch_norm,
        "LayerNormalization": layer_norm,
        "RMSNormalization": rms_norm,
        "InstanceNormalization": instance_norm,
        "GroupNormalization": group_norm,
    }
)

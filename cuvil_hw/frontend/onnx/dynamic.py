"""Converters of integer products, and of dynamic quantization, where scale and zero point depend on the data of each
call.

A zero point that is known at import becomes an attribute of the product; any other is subtracted first, with one more
bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.linear import is_weight, product
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Value
from cuvil_hw.frontend.onnx.window import conv_value


def centred(n: OnnxNode, x: Value, zero: Value) -> Value:
    """x - zero, exactly; `zero` broadcasts to x."""
    width = dtypes.int_width(x.dtype)
    if width is None or zero.dtype != x.dtype:
        n.refuse(f"a zero point of {zero.dtype} for {x.dtype}")
    return n.emit(e.Sub(f"i{width[1] + 1}"), x, n.expand(zero, x.shape))


def integer_product(n: OnnxNode, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """(a - a_zero) · (b - b_zero) in i32. Zero points: one value, one for each row of a, one for each column of b."""
    a_zp = 0
    b_zp: tuple[int, ...] = (0,)
    if a_zero is not None:
        if a_zero.array is not None and a_zero.type.size == 1:
            a_zp = int(a_zero.array.item())
        elif a_zero.rank == 1 and a_zero.type.size > 1:
            a = centred(n, a, n.reshape(a_zero, (a_zero.type.size, 1)))
        else:
            a = centred(n, a, n.reshape(a_zero, ()) if a_zero.type.size == 1 else a_zero)
    if b_zero is not None:
        if b_zero.array is not None and (b_zero.type.size == 1 or (is_weight(b) and b_zero.type.size == b.shape[1])):
            b_zp = tuple(int(v) for v in b_zero.array.reshape(-1))
        else:
            b = centred(n, b, n.reshape(b_zero, ()) if b_zero.type.size == 1 else b_zero)
    return product(n, a, b, a_zp, b_zp)


def matmul_integer(n: OnnxNode, version: int) -> Value:
    return integer_product(n, n[0], n[1], n.get(2), n.get(3))


def conv_integer(n: OnnxNode, version: int) -> Value:
    """Integers with zero points into i32; padding holds the zero point of x."""
    x, w, x_zp = n[0], n[1], 0
    w_zp: tuple[int, ...] = (0,)
    if n.has(2):
        if n[2].type.size != 1:
            n.refuse(f"{n[2].type.size} zero points for x")
        if n[2].array is not None:
            x_zp = int(n.known_scalar(2, "the zero point of x"))
        else:
            x = centred(n, x, n.reshape(n[2], ()))
    if n.has(3):
        if n[3].array is not None:
            w_zp = n.known_ints(3, "the zero points of w")
        else:
            w = centred(n, w, n.reshape(n[3], () if n[3].type.size == 1 else (n[3].type.size, *[1] * (w.rank - 1))))
    return conv_value(n, x, w, None, x_zp, w_zp)


def scaled(n: OnnxNode, y: Value, a_scale: Value, b_scale: Value, bias: Value | None) -> Value:
    """y · (a_scale · b_scale) + bias, floats of the scales' type."""
    scale = n.binary(e.Mul(), a_scale, b_scale)
    real = n.binary(e.Mul(), cast_to(n, y, scale.dtype), scale)
    return real if bias is None else n.binary(e.Add(), real, bias)


def matmul_integer_to_float(n: OnnxNode, version: int) -> Value:
    y = integer_product(n, n[0], n[1], n.get(4), n.get(5))
    return scaled(n, y, n[2], n[3], n.get(6))


def quantized_by_range(n: OnnxNode, x: Value) -> tuple[Value, Value, Value]:
    """(u8 values, scale, zero point): the range of x, extended to contain 0, is mapped to the range of u8. If x is all
    zeros, the scale is 1 as in ONNX Runtime; the ONNX specification says 0."""
    zero = n.const(0, x.dtype)
    axes = tuple(range(x.rank))
    lo = n.emit(e.Minimum(), n.emit(e.ReduceMin(axes, False), x), zero)
    hi = n.emit(e.Maximum(), n.emit(e.ReduceMax(axes, False), x), zero)
    step = n.emit(e.Div(), n.emit(e.Sub(), hi, lo), n.const(255, x.dtype))
    scale = n.emit(e.Where(), n.emit(e.Equal(), step, zero), n.const(1, x.dtype), step)
    place = n.emit(e.Round(), n.emit(e.Div(), n.emit(e.Neg(), lo), scale))
    place = n.emit(e.Clamp(0.0, 255.0), place)
    ratio = n.emit(e.Round(), n.emit(e.Div(), x, n.expand(scale, x.shape)))
    q = n.emit(e.Clamp(0.0, 255.0), n.emit(e.Add(), ratio, n.expand(place, x.shape)))
    return n.emit(e.Cast("u8"), q), scale, n.emit(e.Cast("u8"), place)


def dynamic_quantize_linear(n: OnnxNode, version: int) -> tuple[Value, ...]:
    if not n[0].type.size:
        n.refuse(f"the range of {n[0].type}, which has no elements")
    return quantized_by_range(n, n[0])


def dynamic_product(n: OnnxNode, x: Value, b: Value, scale: Value, zero: Value | None, bias: Value | None) -> Value:
    """x · ((b - zero) · scale) + bias with x quantized by its range."""
    q, x_scale, x_zero = quantized_by_range(n, x)
    return scaled(n, integer_product(n, q, b, x_zero, zero), x_scale, scale, bias)


def dynamic_quantize_matmul(n: OnnxNode, version: int) -> Value:
    return dynamic_product(n, n[0], n[1], n[2], n.get(3), n.get(4))


DYNAMIC: Mapping[str, Converter] = MappingProxyType(
    {
        "MatMulInteger": matmul_integer,
        "ConvInteger": conv_integer,
        "DynamicQuantizeLinear": dynamic_quantize_linear,
    }
)

# Those that ONNX itself doesn't have.
MICROSOFT_DYNAMIC: Mapping[str, Converter] = MappingProxyType(
    {"MatMulIntegerToFloat": matmul_integer_to_float, "DynamicQuantizeMatMul": dynamic_quantize_matmul}
)

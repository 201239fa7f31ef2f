"""Converters of quantized ONNX: QDQ nodes, and QOperator nodes as dequantize → float operator → quantize.

Scales and zero points must be constants. Dequantized constants stay integers behind a dequantize: passes need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.linear import product
from cuvil_hw.frontend.onnx.node import DTYPES, Converter, Node, Value, element_name
from cuvil_hw.frontend.onnx.window import conv_value
from cuvil_hw.ops.integer import Dequantize, Quantize


def _scales(n: Node, i: int, x: Value, axis: int) -> tuple[float, ...]:
    """Scales from operand `i`: one, or one per channel of x along `axis`."""
    if n.integer("block_size", 0) or (n[i].rank > 1 and n[i].type.size > 1):
        n.refuse("blocked quantization; only per-tensor and per-channel scales are supported")
    values = n.known(i, "scales").reshape(-1)
    if values.size > 1 and not (0 <= axis < x.rank and values.size == x.shape[axis]):
        n.refuse(f"{values.size} scales for axis {axis} of {x.shape}")
    return tuple(float(v) for v in values)


def _axis(n: Node, x: Value) -> int:
    axis = n.integer("axis", 1)
    return axis + x.rank if axis < 0 else axis


def quantize_linear(n: Node, version: int) -> Value:
    x, axis = n[0], _axis(n, n[0])
    dtype = n[2].dtype if n.has(2) else "u8"
    if (to := n.integer("output_dtype", 0)) and not n.has(2):
        if to not in DTYPES:
            n.refuse(f"quantizes to element type {element_name(to)}")
        dtype = DTYPES[to]
    zero = n.known_ints(2, "zero points") if n.has(2) else (0,)
    return n.emit(Quantize(_scales(n, 1, x, axis), zero, dtype, axis), cast_to(n, x, "f32"))


def dequantize_linear(n: Node, version: int) -> Value:
    x, axis = n[0], _axis(n, n[0])
    zero = n.known_ints(2, "zero points") if n.has(2) else (0,)
    y = n.emit(Dequantize(_scales(n, 1, x, axis), zero, axis), x)
    to = n.integer("output_dtype", 0)
    if to and to not in DTYPES:
        n.refuse(f"dequantizes to element type {element_name(to)}")
    return cast_to(n, y, DTYPES[to] if to else n[1].dtype)


def _real(n: Node, i: int, axis: int) -> Value:
    """Operands i, i+1, i+2 (integers, scales, zero points) as a float value."""
    return n.emit(Dequantize(_scales(n, i + 1, n[i], axis), n.known_ints(i + 2, "zero points"), axis), n[i])


def _requantize(n: Node, y: Value, i: int) -> Value:
    """`y` by the scale and zero point of operands i and i+1."""
    if n[i].type.size != 1:
        n.refuse("output scales per channel")
    return n.emit(Quantize(_scales(n, i, y, 0), n.known_ints(i + 1, "zero points"), n[i + 1].dtype), y)


def qlinear_conv(n: Node, version: int) -> Value:
    x, w = _real(n, 0, 1), _real(n, 3, 0)
    bias = None
    if n.has(8):
        x_scale = np.float32(n.known_scalar(1, "the scale of x"))
        scales = x_scale * n.known(4, "scales").astype(np.float32).reshape(-1)  # ONNX: bias scale = x scale · w scale
        bias = n.emit(Dequantize(tuple(float(s) for s in scales), (0,), 0), n[8])
    return _requantize(n, conv_value(n, x, w, bias), 6)


def qlinear_matmul(n: Node, version: int) -> Value:
    a, b = _real(n, 0, max(0, n[0].rank - 2)), _real(n, 3, n[3].rank - 1)
    return _requantize(n, product(n, a, b), 6)


def qlinear_add(n: Node, version: int) -> Value:
    return _requantize(n, n.binary(e.Add(), _real(n, 0, 0), _real(n, 3, 0)), 6)


QUANTIZED: Mapping[str, Converter] = MappingProxyType(
    {
        "QuantizeLinear": quantize_linear,
        "DequantizeLinear": dequantize_linear,
        "QLinearConv": qlinear_conv,
        "QLinearMatMul": qlinear_matmul,
    }
)

# Operators that ONNX Runtime's quantizer and optimizer write.
MICROSOFT: Mapping[str, Converter] = MappingProxyType(
    {
        "QuantizeLinear": quantize_linear,
        "DequantizeLinear": dequantize_linear,
        "QLinearAdd": qlinear_add,
    }
)

"""Converters of QOperator nodes, which ONNX Runtime's quantizer writes: dequantize → float operator → quantize.

Each operand is a triple of integers, scale and zero point; the result has its own scale and zero point. Passes later
turn this into integer arithmetic. Absent zero points are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import ELEMENTWISE
from cuvil_hw.frontend.onnx.linear import is_weight, product
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Value
from cuvil_hw.frontend.onnx.quantized import scales
from cuvil_hw.frontend.onnx.reduce import REDUCE
from cuvil_hw.frontend.onnx.window import average_pool, conv_value, global_average_pool
from cuvil_hw.ops.integer import Dequantize, Quantize


def real(n: OnnxNode, i: int, axis: int = 0, zero: int | None = None, factor: float = 1.0) -> Value:
    """Operands i, i+1, i+2 (integers, scales, zero points) as a float value, times `factor`. `zero`: the position of
    the zero points where it isn't i+2."""
    at = i + 2 if zero is None else zero
    zeros = n.known_ints(at, "zero points") if n.has(at) else (0,)
    steps = tuple(float(np.float32(s) * np.float32(factor)) for s in scales(n, i + 1, n[i], axis))
    return n.emit(Dequantize(steps, zeros, axis), n[i])


def requantized(n: OnnxNode, y: Value, i: int) -> Value:
    """`y` quantized by the scale and zero point in operands i and i+1; without a zero point, to the type of the first
    operand."""
    if n[i].type.size != 1:
        n.refuse("output scales per channel")
    zero = n.known_ints(i + 1, "zero points") if n.has(i + 1) else (0,)
    return n.emit(Quantize(scales(n, i, y, 0), zero, n[i + 1].dtype if n.has(i + 1) else n[0].dtype), y)


def channels_first(n: OnnxNode, x: Value) -> Value:
    """x with channels first, if the node says `channels_last`."""
    return n.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1))) if n.integer("channels_last", 0) else x


def channels_as_given(n: OnnxNode, y: Value) -> Value:
    return n.transpose(y, (0, *range(2, y.rank), 1)) if n.integer("channels_last", 0) else y


def of(n: OnnxNode, convert: Converter, *values: Value, version: int) -> Value:
    """The result of `convert` for the node with these operands instead."""
    result = convert(replace(n, inputs=values, wanted=(True,)), version)
    return result if isinstance(result, Value) else result[0]


def qlinear_conv(n: OnnxNode, version: int) -> Value:
    if n.integer("channels_last", 0):
        n.refuse("channels_last, which ONNX Runtime's layout optimization writes; save the model before it")
    x, w = real(n, 0, 1), real(n, 3, 0)
    return requantized(n, conv_value(n, x, w, _bias(n, 8, 1, 4)), 6)


def _bias(n: OnnxNode, i: int, x_scale: int, w_scale: int, factor: float = 1.0) -> Value | None:
    """The integer bias of operand `i`; its scale is that of x times that of w, as ONNX defines it."""
    if not n.has(i):
        return None
    steps = np.float32(factor) * np.float32(n.known_scalar(x_scale, "the scale of x"))
    each = steps * n.known(w_scale, "scales").astype(np.float32).reshape(-1)
    bias = n[i] if n[i].rank == 1 or n[i].type.size == 1 else n.reshape(n[i], (n[i].type.size,))
    if each.size > 1:
        bias = n.expand(n.reshape(bias, (bias.type.size,)), (each.size,))
    return n.emit(Dequantize(tuple(float(s) for s in each), (0,), 0), bias)


def qlinear_matmul(n: OnnxNode, version: int) -> Value:
    a, b = real(n, 0, max(0, n[0].rank - 2)), real(n, 3, n[3].rank - 1)
    return requantized(n, product(n, a, b), 6)


def q_gemm(n: OnnxNode, version: int) -> Value:
    """alpha · A' · B' + C, C on the scale alpha · a_scale · b_scale; floats where no output zero point is given."""
    alpha, turned = n.number("alpha", 1.0), bool(n.integer("transB", 0))
    if n[0].rank != 2 or n[3].rank != 2:
        n.refuse(f"operands {n[0].shape} and {n[3].shape} must be matrices")
    a, b = real(n, 0, factor=alpha), real(n, 3, 0 if turned else 1)
    a = n.transpose(a, (1, 0)) if n.integer("transA", 0) else a
    features = b.shape[0 if turned else 1]
    bias = _bias(n, 6, 1, 4, alpha)
    if n.has(6) and n[6].type.size not in (1, features):
        n.refuse(f"a C of shape {n[6].shape}; one value, or one for each of {features} columns, expected")
    if is_weight(b) and bias is not None:
        weight = b if turned else n.transpose(b, (1, 0))
        y = n.emit(e.Linear(), a, weight, n.expand(bias, (features,)))
    else:
        y = product(n, a, n.transpose(b, (1, 0)) if turned else b)
        y = y if bias is None else n.binary(e.Add(), y, bias)
    return requantized(n, y, 7) if n.has(8) else y


def qlinear_binary(op: e.Add | e.Mul) -> Converter:
    return lambda n, version: requantized(n, n.binary(op, real(n, 0), real(n, 3)), 6)


def qlinear_unary(name: str) -> Converter:
    """An activation of one operand, with the attributes of ONNX's operator `name`."""
    return lambda n, version: requantized(n, of(n, ELEMENTWISE[name], real(n, 0), version=version), 3)


def qlinear_softmax(n: OnnxNode, version: int) -> Value:
    """`opset`: of the Softmax that it stands for; before 13 all axes from `axis` on were one."""
    return requantized(n, of(n, REDUCE["Softmax"], real(n, 0), version=n.integer("opset", 13)), 3)


def qlinear_average_pool(n: OnnxNode, version: int) -> Value:
    x = channels_first(n, real(n, 0))
    return requantized(n, channels_as_given(n, of(n, average_pool, x, version=19)), 3)


def qlinear_global_average_pool(n: OnnxNode, version: int) -> Value:
    x = channels_first(n, real(n, 0))
    return requantized(n, channels_as_given(n, of(n, global_average_pool, x, version=version)), 3)


def qlinear_reduce_mean(n: OnnxNode, version: int) -> Value:
    """Axes are an attribute whatever the opset."""
    return requantized(n, of(n, REDUCE["ReduceMean"], real(n, 0), version=13), 3)


def qlinear_concat(n: OnnxNode, version: int) -> Value:
    """Scale and zero point of the result come first, then each operand with its own."""
    if len(n.inputs) < 5 or len(n.inputs) % 3 != 2:
        n.refuse(f"{len(n.inputs)} operands; a scale and a zero point, then three for each tensor expected")
    parts = [real(n, i) for i in range(2, len(n.inputs), 3)]
    if len({v.rank for v in parts}) != 1:
        n.refuse(f"concatenates {', '.join(str(v.shape) for v in parts)}")
    axis = n.axis(n.integer("axis", 0), parts[0].rank)
    y = parts[0] if len(parts) == 1 else n.emit(e.Concat(axis), *parts)
    return requantized(n, y, 0)


def qlinear_where(n: OnnxNode, version: int) -> Value:
    return requantized(n, n.emit(e.Where(), *n.broadcast(n[0], real(n, 1), real(n, 4))), 7)


QOPERATOR: Mapping[str, Converter] = MappingProxyType({"QLinearConv": qlinear_conv, "QLinearMatMul": qlinear_matmul})

# Those that ONNX itself doesn't have.
QLINEAR: Mapping[str, Converter] = MappingProxyType(
    {
        **QOPERATOR,
        "QGemm": q_gemm,
        "QLinearAdd": qlinear_binary(e.Add()),
        "QLinearMul": qlinear_binary(e.Mul()),
        "QLinearSigmoid": qlinear_unary("Sigmoid"),
        "QLinearLeakyRelu": qlinear_unary("LeakyRelu"),
        "QLinearSoftmax": qlinear_softmax,
        "QLinearAveragePool": qlinear_average_pool,
        "QLinearGlobalAveragePool": qlinear_global_average_pool,
        "QLinearReduceMean": qlinear_reduce_mean,
        "QLinearConcat": qlinear_concat,
        "QLinearWhere": qlinear_where,
    }
)

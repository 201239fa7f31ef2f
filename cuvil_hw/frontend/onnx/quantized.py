"""Converters of QuantizeLinear and DequantizeLinear.

Where scales and zero points are constants, one each or one per channel, these are the ops `quantize` and `dequantize`;
else the same arithmetic as ops on floats. Dequantized constants stay integers behind a dequantize: passes need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import DTYPES, Converter, OnnxNode, Value, element_name
from cuvil_hw.frontend.onnx.shape import cut
from cuvil_hw.ops.integer import Dequantize, Quantize


def scales(n: OnnxNode, i: int, x: Value, axis: int) -> tuple[float, ...]:
    """Scales from operand `i`: one, or one per channel of x along `axis`."""
    if n.integer("block_size", 0) or (n[i].rank > 1 and n[i].type.size > 1):
        n.refuse("blocked quantization; only per-tensor and per-channel scales are supported")
    values = n.known(i, "scales").reshape(-1)
    if values.size > 1 and not (0 <= axis < x.rank and values.size == x.shape[axis]):
        n.refuse(f"{values.size} scales for axis {axis} of {x.shape}")
    return tuple(float(v) for v in values)


def _axis(n: OnnxNode, x: Value) -> int:
    axis = n.integer("axis", 1)
    return axis + x.rank if axis < 0 else axis


def _varies(n: OnnxNode) -> bool:
    """Whether scale or zero point are known only at run time, or differ from block to block."""
    unknown = n[1].array is None or (n.has(2) and n[2].array is None)
    return unknown or bool(n.integer("block_size", 0)) or (n[1].rank > 1 and n[1].type.size > 1)


def _spread(n: OnnxNode, p: Value, shape: tuple[int, ...], axis: int) -> Value:
    """A scale or zero point of one value, one per channel or one per block, for every element."""
    if p.type.size == 1:
        return n.expand(n.reshape(p, ()), shape)
    if p.rank == 1:
        if not 0 <= axis < len(shape) or p.shape != shape[axis : axis + 1]:
            n.refuse(f"{p.shape} scales or zero points for axis {axis} of {shape}")
        along = [p.shape[0] if d == axis else 1 for d in range(len(shape))]
        return n.expand(n.reshape(p, along), shape)
    block = n.integer("block_size", 0)
    blocks = -(-shape[axis] // block) if block > 0 else 0
    if p.shape != (*shape[:axis], blocks, *shape[axis + 1 :]):
        n.refuse(f"scales {p.shape} for blocks of {block} along axis {axis} of {shape}")
    apart = n.reshape(p, (*p.shape[: axis + 1], 1, *p.shape[axis + 1 :]))
    wide = n.expand(apart, (*p.shape[: axis + 1], block, *p.shape[axis + 1 :]))
    wide = n.reshape(wide, (*shape[:axis], blocks * block, *shape[axis + 1 :]))
    return cut(n, wide, [0] * len(shape), shape)


def _quantize_varying(n: OnnxNode, x: Value, axis: int, dtype: str) -> Value:
    """Quantize by ops on floats: f32 division and rounding, then exact in f64."""
    if dtypes.is_float(dtype) or dtype in ("i64", "u64"):
        n.refuse(f"quantizes to {dtype}")
    ratio = n.emit(e.Div(), cast_to(n, x, "f32"), cast_to(n, _spread(n, n[1], x.shape, axis), "f32"))
    q = cast_to(n, n.emit(e.Round(), ratio), "f64")
    zero = cast_to(n, _spread(n, n[2], x.shape, axis), "f64") if n.has(2) else n.like(0, q)
    q = n.emit(e.Where(), n.emit(e.IsNan(), q), zero, n.emit(e.Add(), q, zero))
    lo, hi = dtypes.int_range(dtype)
    return n.emit(e.Cast(dtype), n.emit(e.Clamp(float(lo), float(hi)), q))


def quantize_linear(n: OnnxNode, version: int) -> Value:
    x, axis = n[0], _axis(n, n[0])
    if n.integer("precision", 0) not in (0, onnx.TensorProto.FLOAT):
        n.refuse(f"divides in {element_name(n.integer('precision', 0))}")
    dtype = n[2].dtype if n.has(2) else "u8"
    if (to := n.integer("output_dtype", 0)) and not n.has(2):
        if to not in DTYPES:
            n.refuse(f"quantizes to element type {element_name(to)}")
        dtype = DTYPES[to]
    if _varies(n):
        return _quantize_varying(n, x, axis, dtype)
    zero = n.known_ints(2, "zero points") if n.has(2) else (0,)
    return n.emit(Quantize(scales(n, 1, x, axis), zero, dtype, axis), cast_to(n, x, "f32"))


def dequantize_linear(n: OnnxNode, version: int) -> Value:
    x, axis = n[0], _axis(n, n[0])
    if _varies(n):
        q = cast_to(n, x, "i64")
        if n.has(2):
            q = n.emit(e.Sub(), q, cast_to(n, _spread(n, n[2], x.shape, axis), "i64"))
        y = n.emit(e.Mul(), cast_to(n, q, "f32"), cast_to(n, _spread(n, n[1], x.shape, axis), "f32"))
    else:
        zero = n.known_ints(2, "zero points") if n.has(2) else (0,)
        y = n.emit(Dequantize(scales(n, 1, x, axis), zero, axis), x)
    to = n.integer("output_dtype", 0)
    if to and to not in DTYPES:
        n.refuse(f"dequantizes to element type {element_name(to)}")
    return cast_to(n, y, DTYPES[to] if to else n[1].dtype)


QUANTIZED: Mapping[str, Converter] = MappingProxyType(
    {"QuantizeLinear": quantize_linear, "DequantizeLinear": dequantize_linear}
)

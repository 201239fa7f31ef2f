"""Converters of the QONNX dialect: quantizers of any width whose results are floats.

Quant becomes `quantize` and `dequantize` in its rounding mode if its scale is positive, and its zero point and width
are whole, constant, and per tensor or per channel (one signed bit: mode "sign"). Otherwise it becomes float ops with
the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import Array, Converter, OnnxNode, Value
from cuvil_hw.ops import base
from cuvil_hw.ops.integer import Dequantize, Quantize

MOST_SIGNS = 15  # thresholds that become signs: up to 4 bits
DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")


@dataclass(frozen=True)
class IntegerRange:
    """Integers of one width: their dtype, and the values that can occur."""

    dtype: str
    lo: int
    hi: int


def range_of(n: OnnxNode, bits: float, signed: bool, narrow: bool) -> IntegerRange:
    if bits != int(bits) or not 1 <= bits <= 32:
        n.refuse(f"a width of {bits} bits; whole ones from 1 to 32 are supported")
    dtype = f"{'i' if signed else 'u'}{int(bits)}"
    lo, hi = dtypes.int_range(dtype)
    return IntegerRange(dtype, lo + (narrow and signed), hi - (narrow and not signed))


MODES: Mapping[str, str] = MappingProxyType(
    {
        "ROUND": "half_even",
        "HALF_EVEN": "half_even",
        "CEIL": "ceil",
        "FLOOR": "floor",
        "UP": "away",
        "DOWN": "to_zero",
        "ROUND_TO_ZERO": "to_zero",
        "HALF_UP": "half_away",
        "HALF_DOWN": "half_zero",
    }
)


def mode_of(n: OnnxNode, default: str) -> str:
    """The rounding mode of a node, by the name that ops use."""
    name = n.attr("rounding_mode", default)
    if name.upper() not in MODES:
        n.refuse(f"rounding mode {name!r}")
    return MODES[name.upper()]


def rounded(n: OnnxNode, x: Value, mode: str) -> Value:
    """x rounded by a mode, as float ops."""
    half = n.like(0.5, x)
    match mode:
        case "half_even":
            return n.emit(e.Round(), x)
        case "ceil":
            return n.emit(e.Ceil(), x)
        case "floor":
            return n.emit(e.Floor(), x)
        case "away":
            size = n.emit(e.Ceil(), n.emit(e.Abs(), x))
        case "to_zero":
            size = n.emit(e.Floor(), n.emit(e.Abs(), x))
        case "half_away":
            size = n.emit(e.Floor(), n.emit(e.Add(), n.emit(e.Abs(), x), half))
        case _:
            size = n.emit(e.Ceil(), n.emit(e.Sub(), n.emit(e.Abs(), x), half))
    return n.emit(e.Mul(), n.emit(e.Sign(), x), size)


def channel_axis(p: Array, x: Value) -> int | None:
    """The axis of x along which a broadcast parameter varies: any for one value, None for several axes."""
    if p.ndim > x.rank:
        return None
    long = [d + x.rank - p.ndim for d, size in enumerate(p.shape) if size > 1]
    if not long:
        return min(1, max(x.rank - 1, 0))
    return long[0] if len(long) == 1 and p.size == x.shape[long[0]] else None


def parameters(n: OnnxNode, *at: int) -> list[Array]:
    """Known scales and zero points, in f32."""
    return [n.known(i, "scale and zero point").astype(np.float32) for i in at]


def positive(n: OnnxNode, *scales: Array) -> None:
    if not all((np.isfinite(s) & (s > 0)).all() for s in scales):
        n.refuse("scales must be positive and finite")


def signs(n: OnnxNode, x: Value, scale: Array, zero: Array) -> Value:
    """scale · (1 - zero) where x ≥ 0, else scale · (-1 - zero). Constants stay integers behind a dequantize."""
    axis = channel_axis(scale, x)
    if axis is not None and not zero.any():
        if x.array is not None:
            q = n.const(np.where(x.array >= 0, 1, -1), "i2")
        else:
            q = n.emit(Quantize((1.0,), (0,), "i2", rounding="sign"), x)
        return n.emit(Dequantize(tuple(map(float, scale.reshape(-1))), (0,), axis), q)
    s, z = (n.expand(n.const(p, "f32"), x.shape) for p in (scale, zero))
    q = n.emit(e.Where(), n.emit(e.GreaterEqual(), x, n.like(0, x)), n.like(1, x), n.like(-1, x))
    return n.emit(e.Mul(), n.emit(e.Sub(), q, z), s)


def scaled(n: OnnxNode, x: Value, scale: Array, zero: Array) -> Value:
    """x / scale + zero"""
    s, z = (n.expand(n.const(p, "f32"), x.shape) for p in (scale, zero))
    return n.emit(e.Add(), n.emit(e.Div(), x, s), z)


def real(n: OnnxNode, q: Value, scale: Array, zero: Array) -> Value:
    """(q - zero) · scale"""
    s, z = (n.expand(n.const(p, "f32"), q.shape) for p in (scale, zero))
    return n.emit(e.Mul(), n.emit(e.Sub(), q, z), s)


def quant(n: OnnxNode, version: int) -> Value:
    """(round(clamp(x / scale + zero point)) - zero point) · scale. One signed bit: the sign instead of rounding."""
    x = cast_to(n, n[0], "f32")
    scale, zero = parameters(n, 1, 2)
    bits, signed = float(n.known_scalar(3, "the width")), bool(n.integer("signed", 1))
    limits = range_of(n, bits, signed, bool(n.integer("narrow", 0)))
    mode = mode_of(n, "ROUND")
    positive(n, scale)
    if signed and bits == 1:
        return signs(n, x if not zero.any() else scaled(n, x, scale, zero), scale, zero)
    whole = bool((zero == np.rint(zero)).all())
    if zero.any():  # wider results could not be told from their zero points in f32
        whole = whole and bits <= 16 and np.abs(zero).max() <= 1 << 16
    axes = {channel_axis(p, x) for p in (scale, zero) if p.size > 1} or {channel_axis(scale, x)}
    if not whole or len(axes) > 1 or None in axes:
        clamped = n.emit(e.Clamp(limits.lo, limits.hi), scaled(n, x, scale, zero))
        return real(n, rounded(n, clamped, mode), scale, zero)
    axis = axes.pop() or 0
    scales, zeros = tuple(map(float, scale.reshape(-1))), tuple(int(z) for z in zero.reshape(-1))
    op = Quantize(scales, zeros, limits.dtype, axis, bool(zero.any()), mode)
    if x.array is not None:
        base.infer(op, [x.type])
        q = n.const(np.clip(base.evaluate(op, [x.array])[0], limits.lo, limits.hi), limits.dtype)
    else:
        q = n.emit(op, x)
        if (limits.lo, limits.hi) != dtypes.int_range(limits.dtype):
            q = n.emit(e.Clamp(float(limits.lo), float(limits.hi)), q)
    return n.emit(Dequantize(scales, zeros, axis), q)


def bipolar(n: OnnxNode, version: int) -> Value:
    """scale where x ≥ 0, else -scale."""
    x = cast_to(n, n[0], "f32")
    if n[1].array is not None:
        return signs(n, x, parameters(n, 1)[0], np.zeros((), np.float32))
    spread = n.expand(cast_to(n, n[1], "f32"), x.shape)
    return n.emit(e.Where(), n.emit(e.GreaterEqual(), x, n.like(0, x)), spread, n.emit(e.Neg(), spread))


def trunc(n: OnnxNode, version: int) -> Value:
    """The highest bits of a quantized value, with q = round(x / scale + zero).

    Operands (x, scale, zero, width, new width): (round'(q / 2^(width - new width)) - zero) · scale. Since version 2 of
    the dialect (x, scale, zero, width, new scale, new width): with p = 2^round(log2(new scale / scale)),
    (round'(clamp(q / p)) - zero / p) · new scale.
    """
    x, mode = cast_to(n, n[0], "f32"), mode_of(n, "FLOOR")
    scale, zero = parameters(n, 1, 2)
    positive(n, scale)
    q = n.emit(e.Round(), scaled(n, x, scale, zero))
    if len(n.inputs) == 5:
        taken, kept = (float(n.known_scalar(i, "a width")) for i in (3, 4))
        power = np.exp2(np.asarray(taken - kept, np.float32))
        return real(n, rounded(n, n.emit(e.Div(), q, n.like(float(power), q)), mode), scale, zero)
    (to,) = parameters(n, 4)
    positive(n, to)
    signed, narrow = bool(n.integer("signed", 1)), bool(n.integer("narrow", 0))
    limits = range_of(n, float(n.known_scalar(5, "the width")), signed, narrow)
    power = np.exp2(np.round(np.log2(to / scale)))
    divided = n.emit(e.Div(), q, n.expand(n.const(power, "f32"), q.shape))
    kept_bits = rounded(n, n.emit(e.Clamp(limits.lo, limits.hi), divided), mode)
    return real(n, kept_bits, to, zero / power)


def multi_threshold(n: OnnxNode, version: int) -> Value:
    """The number of its channel's thresholds that an element reaches, times out_scale plus out_bias. Thresholds (C, T)
    or (1, T)."""
    x, thresholds = cast_to(n, n[0], "f32"), n[1]
    # Where the node doesn't say, the dialect takes tensors of rank 3 as channels last, all others as channels first.
    layout = n.attr("data_layout", "") or ("NWC" if x.rank == 3 else "NC")
    axis = layout.index("C") if "C" in layout else 1
    if axis >= x.rank:
        n.refuse(f"data layout {layout!r} of {x.shape}")
    if thresholds.rank != 2 or thresholds.shape[0] not in (1, x.shape[axis]):
        n.refuse(f"thresholds {thresholds.shape} for axis {axis} of {x.shape}")
    rows = [thresholds.shape[0] if d == axis else 1 for d in range(x.rank)]
    scale, bias = n.number("out_scale", 1.0), n.number("out_bias", 0.0)
    if thresholds.array is not None and 1 <= thresholds.shape[1] <= MOST_SIGNS and scale > 0:
        return _counted(n, x, np.asarray(thresholds.array, np.float32), rows, scale, bias)
    steps = n.reshape(cast_to(n, thresholds, "f32"), (*rows, thresholds.shape[1]))
    reached = n.binary(e.GreaterEqual(), n.reshape(x, (*x.shape, 1)), steps)
    count = n.emit(e.ReduceSum((x.rank,)), cast_to(n, reached, "f32"))
    return _affine(n, count, scale, bias)


def _counted(n: OnnxNode, x: Value, thresholds: Array, rows: list[int], scale: float, bias: float) -> Value:
    """The count as a sum of quantizations to a sign, which is quantized again: integer sums are then simply
    compared."""
    total: Value | None = None
    for column in thresholds.T:
        beyond = n.binary(e.Sub(), x, n.const(column.reshape(rows), "f32"))
        sign = n.emit(Quantize((1.0,), (0,), "i2", rounding="sign"), beyond)
        if thresholds.shape[1] == 1 and bias == -scale / 2:
            return n.emit(Dequantize((scale / 2,), (0,)), sign)
        half = n.emit(Dequantize((0.5,), (0,)), sign)
        total = half if total is None else n.emit(e.Add(), total, half)
    assert total is not None
    count = n.emit(e.Add(), total, n.like(thresholds.shape[1] / 2, total))
    q = n.emit(Quantize((1.0,), (0,), f"u{thresholds.shape[1].bit_length()}"), count)
    zero = -bias / scale
    exact = np.frexp(scale)[0] == 0.5 or bias == 0
    if exact and zero == int(zero) and abs(zero) <= 1 << 16:
        return n.emit(Dequantize((scale,), (int(zero),)), q)
    return _affine(n, n.emit(Dequantize((1.0,), (0,)), q), scale, bias)


def _affine(n: OnnxNode, x: Value, scale: float, bias: float) -> Value:
    return n.emit(e.Add(), n.emit(e.Mul(), x, n.like(scale, x)), n.like(bias, x))


QONNX: Mapping[str, Converter] = MappingProxyType(
    {"Quant": quant, "IntQuant": quant, "BipolarQuant": bipolar, "Trunc": trunc, "MultiThreshold": multi_threshold}
)

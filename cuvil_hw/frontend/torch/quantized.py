"""Converters of PT2E graphs, as torchao's convert_pt2e leaves them: `quantized_decomposed` ops become quantize and
dequantize, which the passes turn into integer arithmetic.

PyTorch's reference multiplies by 1/scale where level1 divides by the scale: results may differ by one step at ties.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cuvil_hw import dtypes
from cuvil_hw.frontend.shared.refusals import Refused
from cuvil_hw.frontend.torch.aten.emitter import TABLE, AtenEmitter, Value, axis_of, dtype_name
from cuvil_hw.ops.elementwise import Clamp
from cuvil_hw.ops.integer import Dequantize, Quantize

_NAMES = "quantized_decomposed"


def numbers(value: Any, what: str) -> np.ndarray[Any, Any]:
    """A scale, zero point or bound that is known: a Python number or a constant tensor, as one row."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().reshape(-1)
    if not isinstance(value, int | float):
        raise Refused(f"its {what} depends on values known only at run time (dynamic quantization)")
    return np.array([value])


def parameters(scale: Any, zero: Any) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """(scales in f32, zero points), of equal length or one. Raises Refused."""
    scales = numbers(scale, "scale").astype(np.float32)
    zeros = np.zeros(1, np.int64) if zero is None else numbers(zero, "zero point")
    if (zeros != np.rint(zeros)).any():
        raise Refused("its zero points aren't whole numbers")
    if not (scales > 0).all() or not np.isfinite(scales).all():
        raise Refused("its scales must be positive and finite")
    equal = len(set(zeros.tolist())) == 1
    return tuple(scales.tolist()), tuple(int(z) for z in (zeros[:1] if equal else zeros))


def quantized(
    e: AtenEmitter, x: Value, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, axis: int
) -> Value:
    scales, zeros = parameters(scale, zero)
    lo, hi = (int(numbers(v, "range")[0]) for v in (low, high))
    name = dtype_name(dtype)
    exact = next((n for n in _of_width(name) if dtypes.int_range(n) == (lo, hi)), None)
    q = e.op(Quantize(scales, zeros, exact or name, axis), e.cast(x, "f32"))
    least, most = dtypes.int_range(exact or name)
    return q if (max(lo, least), min(hi, most)) == (least, most) else e.op(Clamp(lo, hi), q)


def _of_width(name: str) -> list[str]:
    """Integer types of at most this one's width and of its sign, the widest first."""
    width = dtypes.int_width(name)
    if width is None:
        raise Refused(f"quantizes to {name}, which is no integer type")
    return [f"{name[0]}{bits}" for bits in range(width[1], 1, -1)]


def dequantized(e: AtenEmitter, q: Value, scale: Any, zero: Any, axis: int, out_dtype: torch.dtype | None) -> Value:
    scales, zeros = parameters(scale, zero)
    x: Value = e.op(Dequantize(scales, zeros, axis), q)
    return e.cast(x, dtype_name(out_dtype)) if out_dtype is not None else x


def quantize_tensor(e: AtenEmitter, x: Value, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype) -> Value:
    return quantized(e, x, scale, zero, low, high, dtype, min(1, max(len(e.shape(x)) - 1, 0)))


def dequantize_tensor(
    e: AtenEmitter,
    q: Value,
    scale: Any,
    zero: Any,
    low: Any,
    high: Any,
    dtype: torch.dtype,
    out: torch.dtype | None = None,
) -> Value:
    return dequantized(e, q, scale, zero, min(1, max(len(e.shape(q)) - 1, 0)), out)


def quantize_channel(
    e: AtenEmitter, x: Value, scale: Any, zero: Any, axis: int, low: Any, high: Any, dtype: torch.dtype
) -> Value:
    return quantized(e, x, scale, zero, low, high, dtype, axis_of(axis, len(e.shape(x))))


def dequantize_channel(
    e: AtenEmitter,
    q: Value,
    scale: Any,
    zero: Any,
    axis: int,
    low: Any,
    high: Any,
    dtype: torch.dtype,
    out: torch.dtype | None = None,
) -> Value:
    return dequantized(e, q, scale, zero, axis_of(axis, len(e.shape(q))), out)


for suffix in ("default", "tensor", "tensor2"):
    TABLE[f"{_NAMES}.quantize_per_tensor.{suffix}"] = quantize_tensor
    TABLE[f"{_NAMES}.dequantize_per_tensor.{suffix}"] = dequantize_tensor
TABLE[f"{_NAMES}.quantize_per_channel.default"] = quantize_channel
TABLE[f"{_NAMES}.dequantize_per_channel.default"] = dequantize_channel

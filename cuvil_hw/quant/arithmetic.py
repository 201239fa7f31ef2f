"""Integer arithmetic decided at compile time: rescale parameters from real ratios, and exact bounds of accumulators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError, Refusal, Unsupported
from cuvil_hw.ops.base import ShapeError
from cuvil_hw.ops.integer import Rescale
from cuvil_hw.types import TensorType

Array = npt.NDArray[Any]
MAX_ACCUMULATOR_BITS = 48  # a rescale of 48 bits still has 15 bits of multiplier in its 64


@dataclass(frozen=True, slots=True)
class Interval:
    """All integers from `lo` to `hi`."""

    lo: int
    hi: int

    @staticmethod
    def of(dtype: str) -> Interval:
        return Interval(*dtypes.int_range(dtype))

    def join(self, *others: Interval) -> Interval:
        return Interval(min((self.lo, *(o.lo for o in others))), max((self.hi, *(o.hi for o in others))))

    def within(self, lo: int, hi: int) -> Interval:
        """Values after saturation to [lo, hi]."""
        return Interval(min(max(self.lo, lo), hi), min(max(self.hi, lo), hi))

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.lo - other.hi, self.hi - other.lo)

    def __mul__(self, other: Interval) -> Interval:
        ends = [a * b for a in (self.lo, self.hi) for b in (other.lo, other.hi)]
        return Interval(min(ends), max(ends))


def requantize(
    ratios: Sequence[float],
    kind: TensorType,
    dtype: str,
    input_zp: int = 0,
    output_zp: int = 0,
    axis: int = 1,
    layer: str = "",
) -> Rescale:
    """The rescale of a `kind` tensor by real `ratios` (one, or one per channel along `axis`) with one shared shift.

    The largest multiplier gets 31 bits, or as many as fit 64-bit arithmetic; factors of two common to all multipliers
    are taken out, which changes no result and makes powers of two plain shifts. Raises Unsupported, naming `layer`, for
    a ratio of 2^30 or more, or one that is not positive and finite. """
    largest = max(ratios)
    if not all(math.isfinite(r) and r >= 0 for r in ratios):
        raise _refused(layer, f"scale ratio {largest} is not a finite positive number; check the scales of the model")
    bounds = Interval.of(kind.dtype)
    reach = max(abs(bounds.lo - input_zp), abs(bounds.hi - input_zp))

    def build(multipliers: Sequence[int], shift: int) -> Rescale:
        same = tuple(multipliers[:1]) if len(set(multipliers)) == 1 else tuple(multipliers)
        return Rescale(same, shift, dtype, input_zp, output_zp, axis)

    if reach * largest < 0.5:
        return build([0] * len(ratios), 1)
    exponent = math.frexp(largest)[1]
    for bits in range(31, 0, -1):
        shift = bits - exponent
        if shift < 1:
            break
        multipliers = [round(math.ldexp(r, shift)) for r in ratios]
        if shift > 62 or max(multipliers) >= 1 << 31:
            continue
        while shift > 1 and all(m % 2 == 0 for m in multipliers):
            multipliers, shift = [m // 2 for m in multipliers], shift - 1
        rescale = build(multipliers, shift)
        try:
            rescale.infer(kind)
        except ShapeError:
            continue
        return rescale
    raise _refused(layer, f"scale ratio {largest:.6g} from {kind.dtype} to {dtype} needs more than 64-bit arithmetic")


def _refused(layer: str, reason: str) -> Unsupported:
    return Unsupported([Refusal("rescale", reason, 1, (layer,) if layer else ())])


def dot_bounds(x: Interval, x_zp: int, w: Array, w_zp: Sequence[int], bias: Array | None) -> Interval:
    """Every partial sum, in any order, of b[o] + Σ (x - x_zp) · (w[o] - w_zp[o]) over x in the interval.

    w (O, …) integers, bias (O,) or None. Positive and negative parts are added apart, so that no order of summation
    leaves the interval; it also holds the operands themselves, which are widened to the accumulator's type before they
    meet. """
    if w.size == 0 or w.shape[0] == 0:
        return Interval(0, 0)
    centred = w.astype(np.int64) - np.asarray(w_zp, np.int64).reshape(-1, *[1] * (w.ndim - 1))
    reach = max(abs(x.hi - x_zp), abs(x.lo - x_zp))
    if float(np.abs(centred.astype(np.float64)).max()) * reach * w[0].size >= 2.0**62:
        centred = centred.astype(object)  # sums beyond i64, which `accumulator` then refuses, as Python's integers
    ends = np.stack([centred * (x.hi - x_zp), centred * (x.lo - x_zp)])
    axes = tuple(range(1, w.ndim))
    top = np.maximum(ends.max(axis=0), 0).sum(axis=axes)
    bottom = np.minimum(ends.min(axis=0), 0).sum(axis=axes)
    if bias is not None:
        top, bottom = top + np.maximum(bias, 0), bottom + np.minimum(bias, 0)
    sums = Interval(int(bottom.min()), int(top.max()))
    zeros = [int(z) for z in w_zp]
    operands = [
        x,
        Interval(min(x_zp, 0), max(x_zp, 0)),
        Interval(min(x.lo - x_zp, 0), max(x.hi - x_zp, 0)),
        Interval(int(w.min()), int(w.max())),
        Interval(min(zeros), max(zeros)),
        Interval(int(centred.min()), int(centred.max())),
    ]
    return sums.join(*operands)


def window_bounds(x: Interval, x_zp: int, count: int) -> Interval:
    """Every partial sum of up to `count` terms x - x_zp, and the operands."""
    centred = Interval(x.lo - x_zp, x.hi - x_zp)
    return Interval(min(centred.lo, 0) * count, max(centred.hi, 0) * count).join(x, Interval(x_zp, x_zp), centred)


def accumulator(bounds: Interval, layer: str) -> str:
    """The narrowest dtype that holds `bounds`; CuvilError naming `layer` above 48 bits."""
    bits = max((b if b >= 0 else ~b).bit_length() for b in (bounds.lo, bounds.hi)) + 1
    if bits > MAX_ACCUMULATOR_BITS:
        raise CuvilError(
            f"layer {layer or '(unnamed)'}: its sums reach [{bounds.lo}, {bounds.hi}], which needs an accumulator of "
            f"{bits} bits where {MAX_ACCUMULATOR_BITS} are possible; use a coarser weight scale, or fewer bits for "
            "weights or input"
        )
    return f"i{max(bits, 2)}"


def power_of_two(ratio: float) -> int | None:
    """k when ratio == 2^k exactly."""
    mantissa, exponent = math.frexp(ratio)
    return exponent - 1 if mantissa == 0.5 else None

"""Exact bounds of integer arithmetic, and the types that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_hw.errors import CuvilError
from cuvil_hw.ops.interval import Interval

Array = npt.NDArray[Any]
MAX_ACCUMULATOR_BITS = 48  # of sums of products
MAX_SUM_BITS = 62  # of sums of a few terms, which are only shifted then


def dot_bounds(x: Interval, x_zp: int, w: Array, w_zp: Sequence[int], bias: Array | None) -> Interval:
    """Every partial sum, in any order, of b[o] + Σ (x - x_zp) · (w[o] - w_zp[o]) over x in the interval.

    w (O, …) integers, bias (O,) or None. Positive and negative parts are added apart, so that no order of summation
    leaves the interval; it also holds the operands themselves, which are widened to the accumulator's type before they
    meet."""
    if w.size == 0 or w.shape[0] == 0:
        return Interval(0, 0)
    w = w.astype(object if w.dtype == np.uint64 else np.int64)
    centred = w - np.asarray(w_zp, np.int64).reshape(-1, *[1] * (w.ndim - 1))
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


def accumulator(bounds: Interval, layer: str, limit: int = MAX_ACCUMULATOR_BITS) -> str:
    """The narrowest dtype that holds `bounds`; CuvilError naming `layer` above `limit` bits."""
    bits = max((b if b >= 0 else ~b).bit_length() for b in (bounds.lo, bounds.hi)) + 1
    if bits > limit:
        raise CuvilError(
            f"layer {layer or '(unnamed)'}: its sums reach [{bounds.lo}, {bounds.hi}], which needs an accumulator of "
            f"{bits} bits where {limit} are possible; use a coarser weight scale, or fewer bits for "
            "weights or input"
        )
    return f"i{max(bits, 2)}"

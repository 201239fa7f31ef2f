"""Element types. A dtype is its name: "f32", "i8", "u4", "bool". NumPy only, so that a board can use it.

`iN`/`uN` exist for every width 1-32 and 64; storage is the next NumPy container.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import numpy.typing as npt

FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_INT = re.compile(r"([iu])([1-9][0-9]?)\Z")


@cache
def int_width(dtype: str) -> tuple[bool, int] | None:
    """(signed, bits) of an integer dtype; None for floats and bool."""
    match = _INT.match(dtype)
    if match is None:
        return None
    bits = int(match[2])
    if not (1 <= bits <= 64):
        raise ValueError(f"integer width {bits} is outside 1-64")
    return match[1] == "i", bits


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def is_int(dtype: str) -> bool:
    return int_width(dtype) is not None


def int_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype (or bool)."""
    if dtype == "bool":
        return 0, 1
    width = int_width(dtype)
    if width is None:
        raise ValueError(f"{dtype} is not an integer type")
    signed, bits = width
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


@cache
def to_numpy(dtype: str) -> np.dtype[np.generic]:
    """The NumPy container of `dtype`."""
    if dtype == "bool":
        return np.dtype(np.bool_)
    if dtype in FLOATS:
        return np.dtype(FLOATS[dtype])
    width = int_width(dtype)
    if width is None:
        raise ValueError(f"unknown dtype {dtype!r}")
    signed, bits = width
    container = next(c for c in (8, 16, 32, 64) if bits <= c)
    return np.dtype(f"{'i' if signed else 'u'}{container // 8}")


def from_numpy(dtype: npt.DTypeLike) -> str:
    """The dtype whose container is exactly `dtype`; ValueError for complex, str, object, …"""
    d = np.dtype(dtype)
    if d == np.bool_:
        return "bool"
    if d.kind == "f" and d.itemsize in (2, 4, 8):
        return f"f{d.itemsize * 8}"
    if d.kind in "iu":
        return f"{d.kind}{d.itemsize * 8}"
    raise ValueError(f"NumPy dtype {d} has no Cuvil equivalent")


def smallest_int(lo: int, hi: int) -> str:
    """The narrowest signed integer dtype that holds [lo, hi]."""
    bits = max(int(lo if lo >= 0 else ~lo).bit_length(), int(hi if hi >= 0 else ~hi).bit_length()) + 1
    if bits > 64:
        raise OverflowError(f"[{lo}, {hi}] needs {bits} bits")
    return f"i{bits}"

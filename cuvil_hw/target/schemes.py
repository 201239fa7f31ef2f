"""How numbers are stored: quantization schemes, and their names as users write them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError

RANGES = ("minmax", "percentile", "mse")
INNER_BITS, INDEX_BITS = 16, 10  # of sums and products between tables; of those that index a table of 8-bit schemes


@dataclass(frozen=True, slots=True)
class Grid:
    """Integers of type `dtype`; q stands for the real number (q - zero) · scale."""

    scale: float
    zero: int
    dtype: str


def _f32(value: float) -> float:
    """The value as f32, in which scales are stored and applied."""
    return float(np.float32(value))


@dataclass(frozen=True, slots=True)
class Int8:
    """Integers of `bits` bits (2 to 8; 8 by default).

    Weights are symmetric, with a scale per output channel or per tensor. Activations have a zero point, so that zero is
    exact, and cover a range taken from the statistics: "minmax" (everything seen), "percentile" (99.9 % of it) or "mse"
    (the clipping with the smallest mean squared error). With 8 bits, values that only sums, products and tables read
    get more bits (`inner`), such as the state of a recurrent layer.
    """

    bits: int = 8
    per_channel: bool = True
    ranges: str = "minmax"

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise CuvilError(f"Int8 takes 2 to 8 bits, not {self.bits}")
        if self.ranges not in RANGES:
            raise CuvilError(f"ranges is one of {', '.join(RANGES)}, not {self.ranges!r}")

    @property
    def dtype(self) -> str:
        return f"i{self.bits}"

    def inner(self, tables: bool) -> int:
        """Bits of values that no layer reads; `tables`: one of their readers is a table, which limits its index. Errors
        in a recurrent state accumulate over its steps, so 8 bits are too few there; no layer's product becomes wider by
        this."""
        return self.bits if self.bits < 8 else INDEX_BITS if tables else INNER_BITS

    @property
    def needs_data(self) -> bool:
        """Whether the grids depend on observed values."""
        return True

    @property
    def needs_histograms(self) -> bool:
        """Whether the grids need histograms, not just the extremes of observed values."""
        return self.ranges != "minmax"

    def activation(self, lo: float, hi: float, bits: int | None = None) -> Grid:
        """The grid for values in [lo, hi], with `bits` bits (by default the scheme's); zero is on it."""
        lo, hi = min(lo, 0.0), max(hi, 0.0)
        dtype = self.dtype if bits is None else f"i{bits}"
        qlo, qhi = dtypes.int_range(dtype)
        scale = _f32((hi - lo) / (qhi - qlo))
        if not math.isfinite(scale) or scale < 2.0**-100:
            return Grid(1.0 if hi == lo else 2.0**-100, 0, dtype)
        return Grid(scale, max(qlo, min(qhi, round(qlo - lo / scale))), dtype)

    def weight_scale(self, absmax: float) -> float:
        """The scale of weights of magnitude up to `absmax`; symmetric, so the lowest integer isn't used."""
        scale = _f32(absmax / dtypes.int_range(self.dtype)[1])
        return scale if scale >= 2.0**-100 else 1.0


@dataclass(frozen=True, slots=True)
class Fixed:
    """fixed<W, I>: W bits, I of them before the binary point (sign included); step 2^-(W-I), saturating.

    Weights and activations use the same grid, whatever the statistics; biases use the finer grid of the sums.
    """

    width: int
    integer: int

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 24 or not -16 <= self.integer <= 40 or not -16 <= self.width - self.integer <= 40:
            raise CuvilError(
                f"fixed<{self.width},{self.integer}>: width must be 2 to 24, integer bits within 16 of [0, width]"
            )

    @property
    def dtype(self) -> str:
        return f"i{self.width}"

    @property
    def needs_data(self) -> bool:
        """Whether the grids depend on observed values."""
        return False

    @property
    def needs_histograms(self) -> bool:
        return False

    @property
    def step(self) -> float:
        return math.ldexp(1.0, self.integer - self.width)

    def activation(self, lo: float, hi: float) -> Grid:
        return Grid(self.step, 0, self.dtype)

    def weight_scale(self, absmax: float) -> float:
        return self.step


@dataclass(frozen=True, slots=True)
class NarrowFloat:
    """Floats of 16 bits instead of f32. `dtype`: "f16" or "bf16"; `name`: as users write it."""

    dtype: str
    name: str


Scheme = Int8 | Fixed
NARROW_FLOATS = {
    spelling: NarrowFloat(dtype, name)
    for dtype, name in (("f16", "float16"), ("bf16", "bfloat16"))
    for spelling in (dtype, name)
}
_FIXED = re.compile(r"(?:ap_)?fixed\s*<\s*(\d+)\s*,\s*(-?\d+)\s*>\Z")
_INT = re.compile(r"int([2-8])\Z")


def parse_precision(text: str) -> Scheme | NarrowFloat | None:
    """What a precision asks for. Raises CuvilError for any other text.

    - "float32" (or "f32", "float"): None, floats stay as they are
    - "float16", "bfloat16" (or "f16", "bf16"): a NarrowFloat
    - "int8" (or int2 to int7), "fixed<16,6>": a scheme
    """
    given: object = text  # annotations stop no caller
    if not isinstance(given, str):
        raise CuvilError(f"precision is a {type(given).__name__}, expected text such as 'int8' or 'fixed<16,6>'")
    name = text.strip().lower()
    if name in ("float32", "f32", "float"):
        return None
    if name in NARROW_FLOATS:
        return NARROW_FLOATS[name]
    if match := _INT.match(name):
        return Int8(int(match[1]))
    if match := _FIXED.match(name):
        return Fixed(int(match[1]), int(match[2]))
    raise CuvilError(
        f"unknown precision {text!r}; use float32, float16, bfloat16, int8 (int2…int8), or fixed<W,I> such as "
        "fixed<16,6>"
    )

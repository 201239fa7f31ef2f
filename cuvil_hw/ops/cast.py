"""Conversions between element types, of values and of bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Expr, Tensor, binary, bitcast, cast
from cuvil_hw.ops.base import Array, Op, Splat, container
from cuvil_hw.ops.elementwise import wrap, wraps
from cuvil_hw.ops.interval import Interval
from cuvil_hw.types import TensorType


def truncate(x: Array, dtype: str) -> Array:
    """Floats converted to an integer dtype: rounded towards zero, saturating, NaN gives 0."""
    lo, hi = dtypes.int_range(dtype)
    t = np.trunc(x.astype(np.float64))
    below, above = t < lo, t >= float(hi + 1)  # a power of two: exact in f64, as hi isn't for 64 bits
    inner = np.where(below | above | np.isnan(t), 0, t).astype(np.uint64 if lo == 0 else np.int64)
    inner = np.where(below, inner.dtype.type(lo), inner)
    return container(np.where(above, inner.dtype.type(hi), inner), dtype)


@dataclass(frozen=True)
class Cast(Op):
    """Conversion. Float → integer truncates towards zero, saturates, NaN gives 0; integer → integer wraps; anything →
    bool is x ≠ 0 (NaN is true); bool → number is 0 or 1; → float rounds to nearest even, overflow gives ±inf."""

    mnemonic: ClassVar[str] = "cast"
    elementwise: ClassVar[bool] = True
    costs_nothing = scales_scores = True
    dtype: str

    def infer(self, x: TensorType) -> TensorType:
        known = self.dtype == "bool" or dtypes.is_float(self.dtype) or dtypes.is_int(self.dtype)
        self.want(known, f"unknown dtype {self.dtype!r}")
        return x.with_dtype(self.dtype)

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return True

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval | None:
        full = Interval.of(self.dtype)
        return ranges[0] if full.lo <= ranges[0].lo and ranges[0].hi <= full.hi else None

    def evaluate(self, x: Array) -> Array:
        if self.dtype == "bool":
            return np.asarray(x != 0)
        if dtypes.is_float(self.dtype):
            return dtypes.convert(x, self.dtype)
        return truncate(x, self.dtype) if np.issubdtype(x.dtype, np.floating) else wrap(x, self.dtype)

    def compute(self, x: Tensor) -> Tensor:
        def at(*i: Expr) -> Expr:
            if self.dtype == "bool" and x.dtype != "bool":
                return binary("ne", x[i], 0)
            return cast(x[i], self.dtype)

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class Bitcast(Op):
    """The bits of each element as another type of the same width: 8, 16, 32 or 64 bits. Floats are IEEE 754's, integers
    two's complement; a NaN keeps its payload."""

    mnemonic: ClassVar[str] = "bitcast"
    elementwise: ClassVar[bool] = True
    by_bits: ClassVar[bool] = True
    dtype: str

    def infer(self, x: TensorType) -> TensorType:
        for dtype in (x.dtype, self.dtype):
            self.want(dtypes.is_float(dtype) or wraps(dtype), f"no bits of {dtype}: only types of 8, 16, 32 or 64 bits")
        have, want = (dtypes.to_numpy(dtype).itemsize for dtype in (x.dtype, self.dtype))
        self.want(have == want, f"{x.dtype} has {8 * have} bits, {self.dtype} has {8 * want}")
        return x.with_dtype(self.dtype)

    def evaluate(self, x: Array) -> Array:
        return x.view(dtypes.to_numpy(self.dtype))

    def compute(self, x: Tensor) -> Tensor:
        return Tensor(self.infer(x.type), lambda *i: bitcast(x[i], self.dtype))

"""The one integer arithmetic: quantize, dequantize, rescale, table. Bits are defined here; no target may differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.ir.expr import Expr, Tensor, binary, cast, const, lookup, saturate, select, unary
from cuvil_hw.ops.base import Array, Op, container
from cuvil_hw.types import TensorType

FAR = float(1 << 40)


def along(values: tuple[float, ...] | tuple[int, ...], rank: int, axis: int, dtype: str) -> Array:
    """A per-tensor (one value) or per-channel (along `axis`) parameter, shaped to broadcast."""
    array = np.asarray(values, dtype=dtypes.to_numpy(dtype))
    if array.size == 1:
        return array.reshape(())
    return array.reshape([-1 if d == axis else 1 for d in range(rank)])


def channel(values: tuple[float, ...] | tuple[int, ...], i: tuple[Expr, ...], axis: int, dtype: str) -> Expr:
    """The parameter that belongs to index `i`."""
    return const(values[0], dtype) if len(values) == 1 else lookup(values, i[axis], dtype)


def _short(*values: int) -> bool:
    """Whether all fit in 17 bits. Sums of two such numbers are exact in f32; where one summand is a larger f32, the
    sum, rounded or not, lies outside of every 16-bit range, on the same side."""
    return all(-(1 << 16) <= v <= 1 << 16 for v in values)


@dataclass(frozen=True)
class _PerChannel(Op):
    """Shared checks of ops whose parameters are per tensor or per channel along `axis`."""

    elementwise: ClassVar[bool] = True
    def check(self, x: TensorType, axis: int, **params: tuple[float, ...] | tuple[int, ...]) -> None:
        for name, values in params.items():
            self.want(len(values) > 0, f"{name} is empty")
            if len(values) > 1:
                self.want(0 <= axis < x.rank, f"axis {axis} is outside rank {x.rank}")
                self.want(len(values) == x.shape[axis], f"{len(values)} {name} for {x.shape[axis]} channels")


@dataclass(frozen=True)
class Quantize(_PerChannel):
    """real → integer: saturate(round_half_even(x / scale) + zero_point). NaN becomes the zero point.

    With `zero_first`: saturate(round_half_even(x / scale + zero_point)), the sum rounded to f32, as in QONNX: beside an
    odd zero point other ties go up.
    """

    mnemonic: ClassVar[str] = "quantize"
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    dtype: str
    axis: int = 1
    zero_first: bool = False

    def infer(self, x: TensorType) -> TensorType:
        self.want(dtypes.is_float(x.dtype), f"quantizes floats, not {x.dtype}")
        width = dtypes.int_width(self.dtype)
        self.want(width is not None and width[1] <= 32, f"{self.dtype} is not an integer type of up to 32 bits")
        self.want(all(s > 0 and np.isfinite(s) for s in self.scale), "scales must be positive and finite")
        self.check(x, self.axis, scale=self.scale, zero_point=self.zero_point)
        return x.with_dtype(self.dtype)

    def evaluate(self, x: Array) -> Array:
        lo, hi = dtypes.int_range(self.dtype)
        scale = along(self.scale, x.ndim, self.axis, "f32")
        if self.zero_first:
            zero = along(self.zero_point, x.ndim, self.axis, "i64")
            q = np.rint(np.divide(x, scale, dtype=np.float32) + zero.astype(np.float32)).astype(np.float64)
            return container(np.clip(np.where(np.isnan(q), zero, q), lo, hi), self.dtype)
        if _short(lo, hi, *self.zero_point):
            short = np.rint(np.divide(x, scale, dtype=np.float32))
            zero = along(self.zero_point, x.ndim, self.axis, "f32")
            short = short + zero if zero.any() else short
            if not np.isnan(short.min(initial=0)):
                return container(np.clip(short, lo, hi), self.dtype)
        zero = along(self.zero_point, x.ndim, self.axis, "i64").astype(np.float64)
        q = np.rint(np.asarray(x, np.float32) / scale).astype(np.float64) + zero
        return container(np.clip(np.where(np.isnan(q), zero, q), lo, hi), self.dtype)

    def compute(self, x: Tensor) -> Tensor:
        lo, hi = dtypes.int_range(self.dtype)

        def scaled(*i: Expr) -> Expr:
            ratio = binary("div", cast(x[i], "f32"), channel(self.scale, i, self.axis, "f32"))
            if self.zero_first:
                ratio = ratio + channel(self.zero_point, i, self.axis, "f32")
            return unary("round", ratio)

        def short(*i: Expr) -> Expr:
            zero = channel(self.zero_point, i, self.axis, "f32")
            q = scaled(*i) if self.zero_first else scaled(*i) + zero
            q = select(unary("isnan", q), zero, q)
            return cast(binary("min", binary("max", q, float(lo)), float(hi)), self.dtype)

        def long(*i: Expr) -> Expr:
            # Beyond 2^40 no zero point brings a value back into range. The cast makes NaN 0.
            ratio, zero = scaled(*i), channel(self.zero_point, i, self.axis, "i64")
            q = cast(binary("min", binary("max", ratio, -FAR), FAR), "i64")
            q = select(unary("isnan", ratio), zero, q) if self.zero_first else q + zero
            return cast(binary("min", binary("max", q, lo), hi), self.dtype)

        at = short if _short(lo, hi, *self.zero_point) else long
        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class Dequantize(_PerChannel):
    """integer → real: (q - zero_point) · scale, in f32."""

    mnemonic: ClassVar[str] = "dequantize"
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 1

    def infer(self, x: TensorType) -> TensorType:
        self.want(dtypes.is_int(x.dtype), f"dequantizes integers, not {x.dtype}")
        self.check(x, self.axis, scale=self.scale, zero_point=self.zero_point)
        return x.with_dtype("f32")

    def evaluate(self, x: Array) -> Array:
        if x.dtype.itemsize <= 2 and _short(*self.zero_point):
            values = x.astype(np.float32)
            zero = along(self.zero_point, x.ndim, self.axis, "f32")
            values = values - zero if zero.any() else values
            return values * along(self.scale, x.ndim, self.axis, "f32")
        zero = along(self.zero_point, x.ndim, self.axis, "i64")
        return (x.astype(np.int64) - zero).astype(np.float32) * along(self.scale, x.ndim, self.axis, "f32")

    def compute(self, x: Tensor) -> Tensor:
        def at(*i: Expr) -> Expr:
            centred = cast(x[i], "i64") - channel(self.zero_point, i, self.axis, "i64")
            return cast(centred, "f32") * channel(self.scale, i, self.axis, "f32")

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class Rescale(_PerChannel):
    """TOSA RESCALE with one shift: saturate(((x - input_zp) · multiplier + 2^(shift-1)) >> shift) + output_zp).

    Ties round towards +infinity. `multiplier` is per tensor or per channel along `axis`, 0 ≤ m < 2^31; 1 ≤ shift ≤ 62.
    `output_zp` is added before saturation. The product can't overflow: its width is that of x plus 33 bits at most.
    """

    mnemonic: ClassVar[str] = "rescale"
    multiplier: tuple[int, ...]
    shift: int
    dtype: str
    input_zp: int = 0
    output_zp: int = 0
    axis: int = 1

    def infer(self, x: TensorType) -> TensorType:
        width = dtypes.int_width(x.dtype)
        self.want(width is not None, f"rescales integers, not {x.dtype}")
        self.want(dtypes.is_int(self.dtype), f"{self.dtype} is not an integer type")
        self.check(x, self.axis, multiplier=self.multiplier)
        self.want(all(0 <= m < 1 << 31 for m in self.multiplier), "multipliers must lie in [0, 2^31)")
        self.want(1 <= self.shift <= 62, f"shift {self.shift} is out of range")
        self.want(self.work_bits(x.dtype) <= 64, f"a {x.dtype} input would need more than 64 bits")
        return x.with_dtype(self.dtype)

    def work_bits(self, dtype: str) -> int:
        """Bits that hold every intermediate value for an input of `dtype`, exactly."""
        lo, hi = dtypes.int_range(dtype)
        zlo, zhi = dtypes.int_range(self.dtype)
        centred = max(abs(lo - self.input_zp), abs(hi - self.input_zp))
        product = centred * max(self.multiplier) + (1 << (self.shift - 1))
        shifted = (product >> self.shift) + 1 + abs(self.output_zp)
        return max(abs(lo), hi, abs(self.input_zp), centred, product, shifted, abs(zlo), zhi).bit_length() + 1

    def evaluate(self, x: Array) -> Array:
        m = along(self.multiplier, x.ndim, self.axis, "i64")
        product = (x.astype(np.int64) - self.input_zp) * m + (np.int64(1) << (self.shift - 1))
        lo, hi = dtypes.int_range(self.dtype)
        return container(np.clip((product >> self.shift) + self.output_zp, lo, hi), self.dtype)

    def compute(self, x: Tensor) -> Tensor:
        wide = f"i{self.work_bits(x.dtype)}"

        def at(*i: Expr) -> Expr:
            v = cast(x[i], wide)
            v = v - const(self.input_zp, wide) if self.input_zp else v
            v = v * channel(self.multiplier, i, self.axis, wide) + const(1 << (self.shift - 1), wide)
            v = binary("shr", v, const(self.shift, wide))
            return saturate(v + const(self.output_zp, wide) if self.output_zp else v, self.dtype)

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class Lut(Op):
    """An activation as a table: values[x - lowest value of x's type]. x has at most 12 bits."""

    mnemonic: ClassVar[str] = "lut"
    elementwise: ClassVar[bool] = True
    values: tuple[int, ...]
    dtype: str

    def infer(self, x: TensorType) -> TensorType:
        width = dtypes.int_width(x.dtype)
        self.want(width is not None and width[1] <= 12, f"indexes by integers of up to 12 bits, not {x.dtype}")
        lo, hi = dtypes.int_range(x.dtype)
        self.want(len(self.values) == hi - lo + 1, f"{len(self.values)} values for a {x.dtype} index")
        vlo, vhi = dtypes.int_range(self.dtype)
        self.want(all(vlo <= v <= vhi for v in self.values), f"values outside {self.dtype}")
        return x.with_dtype(self.dtype)

    def evaluate(self, x: Array) -> Array:
        lo, _ = dtypes.int_range("bool" if x.dtype == np.bool_ else f"i{(len(self.values) - 1).bit_length()}")
        offset = lo if np.issubdtype(x.dtype, np.signedinteger) else 0
        return np.asarray(self.values, dtypes.to_numpy(self.dtype))[x.astype(np.int64) - offset]

    def compute(self, x: Tensor) -> Tensor:
        lo, _ = dtypes.int_range(x.dtype)
        at = lambda *i: lookup(self.values, cast(cast(x[i], "i16") - const(lo, "i16"), "index"), self.dtype)  # noqa: E731
        return Tensor(self.infer(x.type), at)

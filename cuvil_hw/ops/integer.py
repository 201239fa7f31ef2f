"""All integer arithmetic of quantized models: quantize, dequantize, rescale, table. Defined to the bit; every target
gives the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Expr, Tensor, binary, cast, const, lookup, saturate, select, unary
from cuvil_hw.ops.base import Array, Op, container
from cuvil_hw.ops.interval import Interval
from cuvil_hw.ops.rounding import MODES, NEAREST, round_expr, rounded, shift_expr, shifted
from cuvil_hw.types import TensorType

FAR = float(1 << 40)


def along(values: tuple[float, ...] | tuple[int, ...], rank: int, axis: int, dtype: str) -> Array:
    """A per-tensor (one value) or per-channel (along `axis`) parameter, shaped to broadcast."""
    array = np.asarray(values, dtype=dtypes.to_numpy(dtype))
    if array.size == 1:
        return array.reshape(())
    return array.reshape([-1 if d == axis else 1 for d in range(rank)])


def channel(values: tuple[float, ...] | tuple[int, ...], i: tuple[Expr, ...], axis: int, dtype: str) -> Expr:
    """The parameter for index `i`."""
    return const(values[0], dtype) if len(values) == 1 else lookup(values, i[axis], dtype)


def _short(*values: int) -> bool:
    """Whether all values fit in 17 bits. The sum of two such numbers is exact in f32. If one summand is a larger f32,
    the sum, rounded or not, lies outside every 16-bit range, on the same side."""
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
    """real → integer: saturate(round(x / scale) + zero_point). NaN becomes the zero point, or -1 with "sign".

    `rounding`: one of rounding.MODES. With `zero_first`: saturate(round(x / scale + zero_point)), the sum rounded to
    f32, as in QONNX: beside an odd zero point other ties go up, and signs are those of the sum.
    """

    mnemonic: ClassVar[str] = "quantize"
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    dtype: str
    axis: int = 1
    zero_first: bool = False
    rounding: str = "half_even"

    def infer(self, x: TensorType) -> TensorType:
        self.want(dtypes.is_float(x.dtype), f"quantizes floats, not {x.dtype}")
        width = dtypes.int_width(self.dtype)
        self.want(width is not None and width[1] <= 32, f"{self.dtype} is not an integer type of up to 32 bits")
        self.want(all(s > 0 and np.isfinite(s) for s in self.scale), "scales must be positive and finite")
        self.want(self.rounding in MODES, f"rounding is one of {', '.join(MODES)}, not {self.rounding!r}")
        self.check(x, self.axis, scale=self.scale, zero_point=self.zero_point)
        return x.with_dtype(self.dtype)

    def evaluate(self, x: Array) -> Array:
        lo, hi = dtypes.int_range(self.dtype)
        scale = along(self.scale, x.ndim, self.axis, "f32")
        if self.zero_first:
            zero = along(self.zero_point, x.ndim, self.axis, "i64")
            q = np.divide(x, scale, dtype=np.float32) + zero.astype(np.float32)
            q = rounded(q, self.rounding).astype(np.float64)
            return container(np.clip(np.where(np.isnan(q), zero, q), lo, hi), self.dtype)
        if _short(lo, hi, *self.zero_point):
            short = rounded(np.divide(x, scale, dtype=np.float32), self.rounding)
            zero = along(self.zero_point, x.ndim, self.axis, "f32")
            short = short + zero if zero.any() else short
            if not np.isnan(short.min(initial=0)):
                return container(np.clip(short, lo, hi), self.dtype)
        zero = along(self.zero_point, x.ndim, self.axis, "i64").astype(np.float64)
        q = rounded(np.asarray(x, np.float32) / scale, self.rounding).astype(np.float64) + zero
        return container(np.clip(np.where(np.isnan(q), zero, q), lo, hi), self.dtype)

    def compute(self, x: Tensor) -> Tensor:
        lo, hi = dtypes.int_range(self.dtype)

        def scaled(*i: Expr) -> Expr:
            ratio = binary("div", cast(x[i], "f32"), channel(self.scale, i, self.axis, "f32"))
            if self.zero_first:
                ratio = ratio + channel(self.zero_point, i, self.axis, "f32")
            return round_expr(ratio, self.rounding)

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
        self.want(all(s >= 0 and np.isfinite(s) for s in self.scale), "scales must be finite and not negative")
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
    """saturate(round(((x - input_zp) · multiplier + offset) / 2^shift) + output_zp), exact on integers.

    `rounding`: one of rounding.MODES. `multiplier`, `shift` (0 to 62) and `offset` are per tensor or per channel along
    `axis`. `output_zp` is added before saturation. No intermediate value needs more than 64 bits. (TOSA RESCALE is the
    case of one shift, half_up, no offset.)

    `guard`: a multiplier that only approximates a real ratio moves values that should be ties, or whole numbers,
    slightly off. If `guard` > 0, the number is first rounded (half_up) to that many fractional bits, which restores
    them.
    """

    mnemonic: ClassVar[str] = "rescale"
    version: ClassVar[int] = 2
    multiplier: tuple[int, ...]
    shift: tuple[int, ...]
    dtype: str
    input_zp: int = 0
    output_zp: int = 0
    axis: int = 1
    rounding: str = "half_even"
    offset: tuple[int, ...] = (0,)
    guard: int = 0

    def infer(self, x: TensorType) -> TensorType:
        width = dtypes.int_width(x.dtype)
        self.want(width is not None, f"rescales integers, not {x.dtype}")
        self.want(dtypes.is_int(self.dtype), f"{self.dtype} is not an integer type")
        self.want(self.rounding in MODES, f"rounding is one of {', '.join(MODES)}, not {self.rounding!r}")
        self.check(x, self.axis, multiplier=self.multiplier, shift=self.shift, offset=self.offset)
        low = 1 if any(self.shift) else 0
        for shift in self.shift:
            self.want(low <= shift <= 62, f"shift {shift} is out of range")
        self.want(0 <= self.guard < max(1, min(self.shift)), f"{self.guard} guard bits of {min(self.shift)}")
        self.want(self.work_bits(x.dtype) <= 64, f"a {x.dtype} input would need more than 64 bits")
        return x.with_dtype(self.dtype)

    @property
    def channels(self) -> list[tuple[int, int, int]]:
        """(multiplier, shift, offset) of each channel; one entry where all are per tensor."""
        count = max(map(len, (self.multiplier, self.shift, self.offset)))
        spread = (v if len(v) > 1 else v * count for v in (self.multiplier, self.shift, self.offset))
        return list(zip(*spread, strict=True))

    def work_bits(self, dtype: str) -> int:
        """Bits that hold every intermediate value for an input of `dtype`, exactly."""
        lo, hi = dtypes.int_range(dtype)
        zlo, zhi = dtypes.int_range(self.dtype)
        centred = max(abs(lo - self.input_zp), abs(hi - self.input_zp))
        most = max(abs(lo), hi, abs(self.input_zp), centred, abs(zlo), zhi, *map(abs, self.multiplier))
        half = self.rounding in NEAREST
        for m, s, c in set(self.channels):
            sums = centred * abs(m) + abs(c) + (((1 << s) - 1) if not half or self.guard else (1 << s) >> 1)
            most = max(most, sums, abs(c), (sums >> s) + 1 + abs(self.output_zp))
        return most.bit_length() + 1

    def has_ties(self, dtype: str) -> bool:
        """Whether some value of `dtype` gives a number exactly halfway between two integers."""
        lo, hi = dtypes.int_range(dtype)
        lo, hi = lo - self.input_zp, hi - self.input_zp
        return any(_reaches_tie(m, s, c, lo, hi) for m, s, c in set(self.channels))

    def saturates(self, dtype: str) -> bool:
        """Whether some value of `dtype` may leave the range of the result."""
        lo, hi = (end - self.output_zp for end in dtypes.int_range(self.dtype))
        if self.rounding == "sign":
            return lo > -1 or hi < 1
        ends = [end - self.input_zp for end in dtypes.int_range(dtype)]
        floors = {(end * m + c >> s, s > 0) for m, s, c in set(self.channels) for end in ends}
        return any(low < lo or low + rest > hi for low, rest in floors)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval:
        ends = []  # it is monotone in x for each channel
        for m, s, c in set(self.channels):
            one = replace(self, multiplier=(m,), shift=(s,), offset=(c,))
            ends += [int(v) for v in one.evaluate(np.asarray([ranges[0].lo, ranges[0].hi], np.int64))]
        return Interval(min(ends), max(ends))

    def evaluate(self, x: Array) -> Array:
        m, s, c = (along(v, x.ndim, self.axis, "i64") for v in (self.multiplier, self.shift, self.offset))
        v = (x.astype(np.int64) - self.input_zp) * m + c
        if self.guard:
            v, s = shifted(v, s - self.guard, "half_up"), np.asarray(self.guard, np.int64)
        lo, hi = dtypes.int_range(self.dtype)
        return container(np.clip(shifted(v, s, self.rounding) + self.output_zp, lo, hi), self.dtype)

    def compute(self, x: Tensor) -> Tensor:
        wide = f"i{self.work_bits(x.dtype)}"
        may_saturate = self.saturates(x.dtype)
        mode = self.rounding
        if mode in NEAREST and not self.guard and not self.has_ties(x.dtype):
            mode = "half_up"  # the same without ties, and the cheapest

        def at(*i: Expr) -> Expr:
            def parameter(values: tuple[int, ...]) -> Expr:
                return channel(values, i, self.axis, wide)

            v = cast(x[i], wide)
            v = v - const(self.input_zp, wide) if self.input_zp else v
            if set(self.multiplier) != {1}:
                v = v * parameter(self.multiplier)
            if self.guard:  # the offset and half of what is cut off, as one number
                cut = [(c, s - self.guard) for _, s, c in self.channels]
                v = v + parameter(tuple(c + ((1 << s) >> 1) for c, s in cut))
                v = binary("shr", v, parameter(tuple(s - self.guard for s in self.shift)))
                v = shift_expr(v, lambda f: const(f(self.guard), wide), mode)
            elif mode == "half_up" and any(self.shift):
                v = v + parameter(tuple(c + (1 << (s - 1)) for _, s, c in self.channels))
                v = binary("shr", v, parameter(self.shift))
            else:
                v = v + parameter(self.offset) if any(self.offset) else v
                if any(self.shift) or mode == "sign":
                    v = shift_expr(v, lambda f: parameter(tuple(map(f, self.shift))), mode)
            v = v + const(self.output_zp, wide) if self.output_zp else v
            return saturate(v, self.dtype) if may_saturate else cast(v, self.dtype)

        return Tensor(self.infer(x.type), at)


def _reaches_tie(m: int, shift: int, offset: int, lo: int, hi: int) -> bool:
    """Whether x · m + offset is 2^(shift-1) modulo 2^shift for some x from lo to hi."""
    if shift == 0:
        return False
    wanted = ((1 << (shift - 1)) - offset) % (1 << shift)
    zeros = min((m & -m).bit_length() - 1, shift) if m else shift
    if wanted % (1 << zeros):
        return False
    period = 1 << (shift - zeros)
    x = (wanted >> zeros) * pow(m >> zeros, -1, period) % period
    return lo + (x - lo) % period <= hi


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

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval:
        first = dtypes.int_range(types[0].dtype)[0]
        part = self.values[ranges[0].lo - first : ranges[0].hi - first + 1]
        return Interval(min(part), max(part))

    def evaluate(self, x: Array) -> Array:
        lo, _ = dtypes.int_range("bool" if x.dtype == np.bool_ else f"i{(len(self.values) - 1).bit_length()}")
        offset = lo if np.issubdtype(x.dtype, np.signedinteger) else 0
        return np.asarray(self.values, dtypes.to_numpy(self.dtype))[x.astype(np.int64) - offset]

    def compute(self, x: Tensor) -> Tensor:
        lo, _ = dtypes.int_range(x.dtype)
        at = lambda *i: lookup(self.values, cast(cast(x[i], "i16") - const(lo, "i16"), "index"), self.dtype)  # noqa: E731
        return Tensor(self.infer(x.type), at)

"""Arithmetic with two operands of one shape (broadcasts are ops of their own) and dtype, elementwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Expr, Tensor, binary, cast, const, select, unary
from cuvil_hw.expr.scalar import on_arrays
from cuvil_hw.ops.base import Array, Op, Splat
from cuvil_hw.ops.elementwise import check_dtype, work_dtype, working
from cuvil_hw.ops.interval import Interval
from cuvil_hw.ops.nn import checked, largest
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class BinaryOp(Op):
    """Two operands of one type; the result has it too, unless `result_dtype` says otherwise."""

    elementwise: ClassVar[bool] = True
    pointwise: ClassVar[bool] = True
    takes: ClassVar[str] = "number"

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self.want(a.shape == b.shape, f"shapes differ: {a} and {b}; insert broadcast_to")
        self.want(a.dtype == b.dtype, f"dtypes differ: {a} and {b}; insert cast")
        self.check(a.dtype)
        return a.with_dtype(self.result_dtype(a.dtype))

    def check(self, dtype: str) -> None:
        check_dtype(self, self.takes, dtype)

    def result_dtype(self, dtype: str) -> str:
        return dtype

    def evaluate(self, a: Array, b: Array) -> Array:
        return np.asarray(self.function(working(a), working(b)), a.dtype)

    def compute(self, a: Tensor, b: Tensor) -> Tensor:
        kind, work = self.infer(a.type, b.type), work_dtype(a.dtype)
        return Tensor(kind, lambda *i: cast(self.scalar(cast(a[i], work), cast(b[i], work)), kind.dtype))

    def function(self, a: Array, b: Array) -> Any:
        raise NotImplementedError

    def scalar(self, a: Expr, b: Expr) -> Expr:
        raise NotImplementedError


@dataclass(frozen=True)
class _Ring(BinaryOp):
    """Sum, difference, product. Integers of 8, 16, 32 or 64 bits wrap. If `acc` is set, integers of any width give
    results of that integer type; interval analysis has made it wide enough (`evaluate` raises OverflowError if it
    isn't)."""

    operator: ClassVar[str]
    is_linear = scales_scores = True
    integer_form = "arithmetic"
    acc: str = ""

    def check(self, dtype: str) -> None:
        if self.acc:
            self.want(dtypes.is_int(self.acc), f"acc {self.acc!r} is not an integer type")
        check_dtype(self, "int" if self.acc else "wrapping", dtype)

    def result_dtype(self, dtype: str) -> str:
        return self.acc or dtype

    def evaluate(self, a: Array, b: Array) -> Array:
        if self.acc:
            m, n = largest(a), largest(b)
            wide = np.int64 if max(m, n, m * n if self.mnemonic == "mul" else m + n) < 1 << 63 else object
            return checked(self, np.asarray(on_arrays(self.operator)(a.astype(wide), b.astype(wide))), self.acc)
        return np.asarray(on_arrays(self.operator)(a, b))

    def compute(self, a: Tensor, b: Tensor) -> Tensor:
        kind = self.infer(a.type, b.type)
        return Tensor(kind, lambda *i: binary(self.operator, cast(a[i], kind.dtype), cast(b[i], kind.dtype)))


def is_zero(value: Any | None, dtype: str, negative: bool) -> bool:
    """0; of floats the zero that a sum isn't changed by: −0.0 + 0.0 is 0.0, −0.0 + −0.0 isn't."""
    return (
        value is not None and bool(value == 0) and (not dtypes.is_float(dtype) or bool(np.signbit(value)) is negative)
    )


@dataclass(frozen=True)
class Add(_Ring):
    """a + b."""

    mnemonic = "add"
    operator = "add"

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return is_zero(splat(1), types[1].dtype, negative=True)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval | None:
        a, b = ranges
        return (a + b).join(a, b) if self.acc else None


@dataclass(frozen=True)
class Sub(_Ring):
    """a - b."""

    mnemonic = "sub"
    operator = "sub"

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return is_zero(splat(1), types[1].dtype, negative=False)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval | None:
        a, b = ranges
        return (a - b).join(a, b) if self.acc else None


@dataclass(frozen=True)
class Mul(_Ring):
    """a · b."""

    mnemonic = "mul"
    operator = "mul"

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return bool(splat(1) == 1)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval | None:
        a, b = ranges
        return (a * b).join(a, b) if self.acc else None


@dataclass(frozen=True)
class Div(BinaryOp):
    """a / b. Floats: IEEE. Integers: towards zero; x / 0 = 0, lowest / -1 = lowest."""

    mnemonic, takes = "div", "wrapping"
    is_linear = scales_scores = True

    def function(self, a: Array, b: Array) -> Any:
        if np.issubdtype(a.dtype, np.floating):
            return a / b
        by = _not_minus_one(b)
        q = a // by
        inexact = (a - q * by != 0) & (by != 0)
        q += (inexact & ((a < 0) != (by < 0))).astype(a.dtype)
        return np.where(b == by, q, -a)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return binary("div", a, b) if dtypes.is_float(a.dtype) else guarded("div", a, b, unary("neg", a))

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return bool(splat(1) == 1)


def _not_minus_one(b: Array) -> Array:
    """The divisors with -1 replaced by 1. The lowest integer divided by -1 is out of range: NumPy before 1.23 gives 0,
    or the processor traps."""
    return np.where(b == -1, b.dtype.type(1), b) if b.dtype.kind == "i" else b


def guarded(op: str, a: Expr, b: Expr, by_minus_one: Expr) -> Expr:
    """Integer division or remainder with the two cases replaced that C leaves undefined: division by 0, and the lowest
    integer by -1."""
    plain = binary(op, a, b)
    if a.dtype[0] == "i":
        plain = select(binary("eq", b, -1), by_minus_one, plain)
    return select(binary("eq", b, 0), const(0, a.dtype), plain)


@dataclass(frozen=True)
class Mod(BinaryOp):
    """Remainder of a / b. `fmod`: with the sign of a (C, quotient towards zero); else with the sign of b (Python,
    quotient towards -infinity). Floats: NaN for b = 0 or infinite a. Integers: 0 for b = 0."""

    mnemonic = "mod"
    fmod: bool = False

    def function(self, a: Array, b: Array) -> Any:
        b = _not_minus_one(b)  # the remainder is 0 by both
        return np.fmod(a, b) if self.fmod else np.mod(a, b)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        zero = const(0, a.dtype)
        floats = dtypes.is_float(a.dtype)
        rest = binary("rem", a, b) if floats else guarded("rem", a, b, zero)
        if self.fmod or a.dtype[0] == "u":
            return rest
        negative = binary("lt", b, zero)
        other_sign = binary("ne", binary("lt", rest, zero), negative)
        signed = select(other_sign, rest + b, rest)
        nothing = select(negative, const(-0.0, a.dtype), zero) if floats else zero
        return select(binary("eq", rest, zero), nothing, signed)


@dataclass(frozen=True)
class Pow(BinaryOp):
    """a^b, floats, as C's pow: x^0 = 1 and 1^x = 1 even for NaN; NaN for a negative base with a broken exponent."""

    mnemonic, takes = "pow", "float"

    def function(self, a: Array, b: Array) -> Any:
        return on_arrays("pow")(a, b)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return binary("pow", a, b)


@dataclass(frozen=True)
class Minimum(BinaryOp):
    """The smaller; NaN if either is NaN."""

    mnemonic, monotone = "minimum", "all"
    scales_scores = True

    def function(self, a: Array, b: Array) -> Any:
        return np.minimum(a, b)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return binary("min", a, b)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval:
        a, b = ranges
        return Interval(min(a.lo, b.lo), min(a.hi, b.hi))


@dataclass(frozen=True)
class Maximum(BinaryOp):
    """The larger; NaN if either is NaN."""

    mnemonic, monotone = "maximum", "all"
    scales_scores = True

    def function(self, a: Array, b: Array) -> Any:
        return np.maximum(a, b)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return binary("max", a, b)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval:
        a, b = ranges
        return Interval(max(a.lo, b.lo), max(a.hi, b.hi))

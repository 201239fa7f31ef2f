"""Elementwise ops with one operand. Those with two are in binary.py and logic.py, conversions in cast.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Expr, Tensor, binary, cast, const, select, unary
from cuvil_hw.expr.scalar import on_arrays
from cuvil_hw.ops.base import Array, Op, container
from cuvil_hw.ops.interval import Interval
from cuvil_hw.types import TensorType


def work_dtype(dtype: str) -> str:
    """The dtype to compute in: f16 and bf16 go through f32."""
    return dtypes.record(dtype).work


def working(x: Array) -> Array:
    """`x` in its work_dtype."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def wraps(dtype: str) -> bool:
    """Whether NumPy itself wraps at the width of this integer type: 8, 16, 32 and 64 bits."""
    width = dtypes.int_width(dtype)
    return width is not None and width[1] in (8, 16, 32, 64)


def check_dtype(op: Op, takes: str, dtype: str) -> None:
    """Raises ShapeError unless the op takes `dtype`.

    `takes`: "float", "int", "bool", "number" (float or int), or "wrapping": a float, or an integer of 8, 16, 32 or 64
    bits, for ops whose results may overflow (an array of a narrower type doesn't know the width at which to wrap).
    """
    match takes:
        case "float":
            op.want(dtypes.is_float(dtype), f"takes floats, not {dtype}; cast first")
        case "int":
            op.want(dtypes.is_int(dtype), f"takes integers, not {dtype}")
        case "bool":
            op.want(dtype == "bool", f"takes bool, not {dtype}; compare with zero first")
        case "wrapping":
            op.want(
                dtypes.is_float(dtype) or wraps(dtype),
                f"takes floats and integers of 8, 16, 32 or 64 bits, not {dtype}; cast first",
            )
        case _:
            op.want(dtypes.is_float(dtype) or dtypes.is_int(dtype), f"takes numbers, not {dtype}; cast first")


@dataclass(frozen=True)
class _Unary(Op):
    """Result shape and dtype are those of the operand. Subclasses define the op on arrays (`function`) and on one
    element (`scalar`); both get f16 as f32."""

    elementwise: ClassVar[bool] = True
    pointwise: ClassVar[bool] = True
    takes: ClassVar[str] = "float"

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, self.takes, x.dtype)
        return x

    def evaluate(self, x: Array) -> Array:
        return np.asarray(self.function(working(x)), x.dtype)

    def compute(self, x: Tensor) -> Tensor:
        kind = self.infer(x.type)
        return Tensor(kind, lambda *i: cast(self.scalar(cast(x[i], work_dtype(x.dtype))), kind.dtype))

    def function(self, x: Array) -> Any:
        raise NotImplementedError

    def scalar(self, x: Expr) -> Expr:
        raise NotImplementedError


@dataclass(frozen=True)
class _Plain(_Unary):
    """One scalar operator, by name."""

    operator: ClassVar[str]

    def function(self, x: Array) -> Any:
        return on_arrays(self.operator)(x)

    def scalar(self, x: Expr) -> Expr:
        return unary(self.operator, x)


@dataclass(frozen=True)
class Neg(_Plain):
    """-x; the lowest integer stays itself."""

    mnemonic, takes = "neg", "wrapping"
    is_linear = scales_scores = True
    operator = "neg"


@dataclass(frozen=True)
class Abs(_Unary):
    """|x|; the lowest integer stays itself."""

    mnemonic, takes = "abs", "wrapping"

    def function(self, x: Array) -> Any:
        return np.abs(x)

    def scalar(self, x: Expr) -> Expr:
        if dtypes.is_float(x.dtype):
            return unary("abs", x)
        return select(binary("lt", x, 0), unary("neg", x), x)


@dataclass(frozen=True)
class Exp(_Plain):
    """e^x."""

    mnemonic = "exp"
    operator = "exp"


@dataclass(frozen=True)
class Log(_Plain):
    """Natural logarithm: -inf at ±0, NaN below."""

    mnemonic = "log"
    operator = "log"


@dataclass(frozen=True)
class Sqrt(_Plain):
    """√x, correctly rounded; NaN below zero, √-0 = -0."""

    mnemonic = "sqrt"
    operator = "sqrt"


@dataclass(frozen=True)
class Reciprocal(_Unary):
    """1 / x, correctly rounded; ±inf at ±0."""

    mnemonic = "reciprocal"

    def function(self, x: Array) -> Any:
        return np.ones((), x.dtype) / x

    def scalar(self, x: Expr) -> Expr:
        return binary("div", const(1, x.dtype), x)


@dataclass(frozen=True)
class Tanh(_Plain):
    """Hyperbolic tangent."""

    mnemonic = "tanh"
    operator = "tanh"


@dataclass(frozen=True)
class Sin(_Plain):
    """Sine of radians; NaN at ±inf."""

    mnemonic = "sin"
    operator = "sin"


@dataclass(frozen=True)
class Cos(_Plain):
    """Cosine of radians; NaN at ±inf."""

    mnemonic = "cos"
    operator = "cos"


@dataclass(frozen=True)
class Floor(_Plain):
    """Largest integral value ≤ x."""

    mnemonic = "floor"
    operator = "floor"


@dataclass(frozen=True)
class Ceil(_Plain):
    """Smallest integral value ≥ x."""

    mnemonic = "ceil"
    operator = "ceil"


@dataclass(frozen=True)
class Round(_Plain):
    """Nearest integral value, halves to even."""

    mnemonic = "round"
    operator = "round"


@dataclass(frozen=True)
class Erf(_Plain):
    """Error function, 2/√π ∫₀ˣ e^(-t²) dt."""

    mnemonic = "erf"
    operator = "erf"


@dataclass(frozen=True)
class Sigmoid(_Unary):
    """1 / (1 + e^-x)."""

    mnemonic = "sigmoid"

    def function(self, x: Array) -> Any:
        return np.ones((), x.dtype) / (1 + np.exp(-x))

    def scalar(self, x: Expr) -> Expr:
        return sigmoid(x)


def sigmoid(x: Expr) -> Expr:
    one = const(1, x.dtype)
    return binary("div", one, one + unary("exp", -x))


@dataclass(frozen=True)
class Sign(_Unary):
    """-1, 0 or 1; NaN stays NaN, ±0 gives 0."""

    mnemonic, takes = "sign", "number"

    def function(self, x: Array) -> Any:
        return np.sign(x)

    def scalar(self, x: Expr) -> Expr:
        zero, one = const(0, x.dtype), const(1, x.dtype)
        down = const(-1, x.dtype) if x.dtype[0] != "u" else zero
        sign = select(binary("gt", x, zero), one, select(binary("lt", x, zero), down, zero))
        return select(unary("isnan", x), x, sign) if dtypes.is_float(x.dtype) else sign


@dataclass(frozen=True)
class Relu(_Unary):
    """max(x, 0); NaN stays NaN."""

    mnemonic, takes, monotone = "relu", "number", "first"

    def function(self, x: Array) -> Any:
        return np.maximum(x, np.zeros((), x.dtype))

    def scalar(self, x: Expr) -> Expr:
        return binary("max", x, 0)

    def axis_after(self, axis: int, x: TensorType) -> int | None:
        return axis

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval:
        return ranges[0].within(0, max(ranges[0].hi, 0))


@dataclass(frozen=True)
class Clamp(_Unary):
    """min(max(x, lo), hi): `hi` wins where lo > hi; NaN stays NaN. On integers the bounds must be integral or infinite,
    and leave at least one value of the type."""

    mnemonic, takes, monotone = "clamp", "number", "first"
    scales_scores = True
    lo: float = -math.inf
    hi: float = math.inf

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, self.takes, x.dtype)
        self.want(not math.isnan(self.lo) and not math.isnan(self.hi), "bounds can't be NaN")
        if dtypes.is_int(x.dtype):
            for bound in (self.lo, self.hi):
                self.want(math.isinf(bound) or bound == int(bound), f"bound {bound} of {x.dtype} isn't integral")
            low, high = dtypes.int_range(x.dtype)
            self.want(self.lo <= high and self.hi >= low, f"[{self.lo}, {self.hi}] holds no value of {x.dtype}")
        return x

    def bounds(self, dtype: str) -> tuple[float | int, float | int]:
        """The bounds as values of `dtype`."""
        if dtypes.is_float(dtype):
            return self.lo, self.hi
        low, high = dtypes.int_range(dtype)
        return (low if self.lo <= low else int(self.lo)), (high if self.hi >= high else int(self.hi))

    def function(self, x: Array) -> Any:
        lo, hi = self.bounds(dtypes.from_numpy(x.dtype))
        return np.minimum(np.maximum(x, np.asarray(lo, x.dtype)), np.asarray(hi, x.dtype))

    def scalar(self, x: Expr) -> Expr:
        lo, hi = self.bounds(x.dtype)
        x = x if self.lo == -math.inf else binary("max", x, lo)
        return x if self.hi == math.inf else binary("min", x, hi)

    def axis_after(self, axis: int, x: TensorType) -> int | None:
        return axis

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval:
        lo, hi = self.bounds(types[0].dtype)
        return ranges[0].within(int(lo), int(hi))


@dataclass(frozen=True)
class LogicalNot(_Plain):
    """Not, on bool."""

    mnemonic, takes = "logical_not", "bool"
    operator = "not"


@dataclass(frozen=True)
class BitwiseNot(_Plain):
    """All bits flipped: -1 - x for signed integers."""

    mnemonic, takes = "bitwise_not", "int"
    operator = "not"

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, self.takes, x.dtype)
        self.want(
            wraps(x.dtype) or x.dtype[0] == "i", f"takes unsigned integers of 8, 16, 32 or 64 bits, not {x.dtype}"
        )
        return x


@dataclass(frozen=True)
class IsNan(Op):
    """True where x is NaN."""

    mnemonic: ClassVar[str] = "is_nan"
    elementwise: ClassVar[bool] = True

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, "float", x.dtype)
        return x.with_dtype("bool")

    def evaluate(self, x: Array) -> Array:
        return np.asarray(np.isnan(x))

    def compute(self, x: Tensor) -> Tensor:
        return Tensor(self.infer(x.type), lambda *i: unary("isnan", x[i]))


def wrap(x: Array, dtype: str) -> Array:
    """Integers (or bool) wrapped to an integer dtype of any width, two's complement, in its container."""
    width = dtypes.int_width(dtype)
    if width is None:
        raise ValueError(f"{dtype} is not an integer type")
    signed, bits = width
    shift = np.int64(64 - bits)
    raised = x.astype(np.int64) << shift
    return container(raised >> shift if signed else raised.view(np.uint64) >> np.uint64(shift), dtype)

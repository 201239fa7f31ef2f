"""Trigonometric and hyperbolic functions and their inverses, of one element. Floats; NaN outside their domain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil_hw.expr.nodes import Expr, binary, const, select, unary
from cuvil_hw.ops.base import Array
from cuvil_hw.ops.elementwise import _Plain, _Unary


@dataclass(frozen=True)
class Tan(_Plain):
    """Tangent of radians; NaN at ±inf."""

    mnemonic = "tan"
    operator = "tan"


@dataclass(frozen=True)
class Atan(_Plain):
    """Arc tangent, in [-π/2, π/2]."""

    mnemonic = "atan"
    operator = "atan"


@dataclass(frozen=True)
class Asin(_Unary):
    """Arc sine: atan(x / √((1 - x)(1 + x))), which has no cancellation near ±1."""

    mnemonic = "asin"

    def function(self, x: Array) -> Any:
        return np.arcsin(x)

    def scalar(self, x: Expr) -> Expr:
        one = const(1, x.dtype)
        return unary("atan", binary("div", x, unary("sqrt", (one - x) * (one + x))))


@dataclass(frozen=True)
class Acos(_Unary):
    """Arc cosine: 2 atan √((1 - x) / (1 + x))."""

    mnemonic = "acos"

    def function(self, x: Array) -> Any:
        return np.arccos(x)

    def scalar(self, x: Expr) -> Expr:
        one = const(1, x.dtype)
        return binary("mul", unary("atan", unary("sqrt", binary("div", one - x, one + x))), 2.0)


LARGE = 20.0  # e^-20 is below half a unit in the last place of e^20 in f32; for f64 both forms are exact enough there


def odd(x: Expr, magnitude: Expr) -> Expr:
    """`magnitude` with the sign of x; zeros and NaN are x itself."""
    return select(binary("lt", x, 0.0), -magnitude, select(binary("gt", x, 0.0), magnitude, x))


@dataclass(frozen=True)
class Sinh(_Unary):
    """Hyperbolic sine: (u + u / (u + 1)) / 2 with u = e^|x| - 1; e^(|x|/2) · e^(|x|/2) / 2 for large x."""

    mnemonic = "sinh"

    def function(self, x: Array) -> Any:
        return np.sinh(x)

    def scalar(self, x: Expr) -> Expr:
        a = unary("abs", x)
        u, root = unary("expm1", a), unary("exp", binary("mul", a, 0.5))
        small = binary("mul", u + binary("div", u, binary("add", u, 1.0)), 0.5)
        return odd(x, select(binary("gt", a, LARGE), binary("mul", root, 0.5) * root, small))


@dataclass(frozen=True)
class Cosh(_Unary):
    """Hyperbolic cosine: (e^|x| + e^-|x|) / 2; e^(|x|/2) · e^(|x|/2) / 2 for large x."""

    mnemonic = "cosh"

    def function(self, x: Array) -> Any:
        return np.cosh(x)

    def scalar(self, x: Expr) -> Expr:
        a = unary("abs", x)
        e, root = unary("exp", a), unary("exp", binary("mul", a, 0.5))
        small = binary("mul", e + binary("div", const(1, x.dtype), e), 0.5)
        return select(binary("gt", a, LARGE), binary("mul", root, 0.5) * root, small)


HUGE = 1e8  # where 1 ± x^2 is x^2 in f32 and f64, and x^2 still doesn't overflow


@dataclass(frozen=True)
class Asinh(_Unary):
    """Inverse hyperbolic sine: log1p(a + a² / (1 + √(a² + 1))) with a = |x|; log a + log 2 for huge ones."""

    mnemonic = "asinh"

    def function(self, x: Array) -> Any:
        return np.arcsinh(x)

    def scalar(self, x: Expr) -> Expr:
        a = unary("abs", x)
        square = a * a
        root = unary("sqrt", binary("add", square, 1.0))
        small = unary("log1p", a + binary("div", square, binary("add", root, 1.0)))
        return odd(x, select(binary("gt", a, HUGE), binary("add", unary("log", a), math.log(2)), small))


@dataclass(frozen=True)
class Acosh(_Unary):
    """Inverse hyperbolic cosine, ≥ 0: log1p(t + √t √(t + 2)) with t = x - 1; log x + log 2 for huge ones."""

    mnemonic = "acosh"

    def function(self, x: Array) -> Any:
        return np.arccosh(x)

    def scalar(self, x: Expr) -> Expr:
        t = binary("sub", x, 1.0)
        small = unary("log1p", t + unary("sqrt", t) * unary("sqrt", binary("add", t, 2.0)))
        return select(binary("gt", x, HUGE), binary("add", unary("log", x), math.log(2)), small)


@dataclass(frozen=True)
class Atanh(_Unary):
    """Inverse hyperbolic tangent: log1p(2a / (1 - a)) / 2 with a = |x|; ±inf at ±1."""

    mnemonic = "atanh"

    def function(self, x: Array) -> Any:
        return np.arctanh(x)

    def scalar(self, x: Expr) -> Expr:
        a = unary("abs", x)
        ratio = binary("div", binary("mul", a, 2.0), const(1, x.dtype) - a)
        magnitude = binary("mul", unary("log1p", ratio), 0.5)
        return select(unary("isnan", magnitude), magnitude, odd(x, magnitude))

"""Activation functions of one element beyond the plain ones of ops/elementwise.py. Floats; NaN stays NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil_hw.expr.nodes import Expr, binary, const, select, unary
from cuvil_hw.expr.scalar import erf
from cuvil_hw.ops.base import Array
from cuvil_hw.ops.elementwise import _Unary, check_dtype
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class LeakyRelu(_Unary):
    """x where x ≥ 0, else alpha · x."""

    mnemonic = "leaky_relu"
    alpha: float = 0.01

    def function(self, x: Array) -> Any:
        return np.where(x >= 0, x, x * x.dtype.type(self.alpha))

    def scalar(self, x: Expr) -> Expr:
        return select(binary("ge", x, 0), x, binary("mul", x, self.alpha))


@dataclass(frozen=True)
class Elu(_Unary):
    """x where x > 0, else alpha · (e^x - 1)."""

    mnemonic = "elu"
    alpha: float = 1.0

    def function(self, x: Array) -> Any:
        return np.where(x > 0, x, np.expm1(x) * x.dtype.type(self.alpha))

    def scalar(self, x: Expr) -> Expr:
        return select(binary("gt", x, 0), x, binary("mul", unary("expm1", x), self.alpha))


@dataclass(frozen=True)
class Selu(_Unary):
    """gamma · (x where x > 0, else alpha · (e^x - 1)). Defaults: ONNX Selu-22."""

    mnemonic = "selu"
    alpha: float = 1.6732632423543772
    gamma: float = 1.0507009873554805

    def function(self, x: Array) -> Any:
        return np.where(x > 0, x, np.expm1(x) * x.dtype.type(self.alpha)) * x.dtype.type(self.gamma)

    def scalar(self, x: Expr) -> Expr:
        return binary("mul", select(binary("gt", x, 0), x, binary("mul", unary("expm1", x), self.alpha)), self.gamma)


@dataclass(frozen=True)
class Gelu(_Unary):
    """x · Φ(x): `approximate` "none" is x/2 · (1 + erf(x/√2)), "tanh" x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""

    mnemonic = "gelu"
    approximate: str = "none"

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, self.takes, x.dtype)
        self.want(self.approximate in ("none", "tanh"), f'approximate is "none" or "tanh", not {self.approximate!r}')
        return x

    def function(self, x: Array) -> Any:
        real = x.dtype.type
        if self.approximate == "none":
            return x * real(0.5) * (1 + erf(np.asarray(x * real(math.sqrt(0.5)))))
        return x * real(0.5) * (1 + np.tanh(real(math.sqrt(2 / math.pi)) * (x + real(0.044715) * x * x * x)))

    def scalar(self, x: Expr) -> Expr:
        one, half = const(1, x.dtype), binary("mul", x, 0.5)
        if self.approximate == "none":
            return half * (one + unary("erf", binary("mul", x, math.sqrt(0.5))))
        inner = x + binary("mul", x, 0.044715) * x * x
        return half * (one + unary("tanh", binary("mul", inner, math.sqrt(2 / math.pi))))


@dataclass(frozen=True)
class Silu(_Unary):
    """x / (1 + e^-x); NaN at -inf."""

    mnemonic = "silu"

    def function(self, x: Array) -> Any:
        return x / (1 + np.exp(-x))

    def scalar(self, x: Expr) -> Expr:
        return binary("div", x, const(1, x.dtype) + unary("exp", -x))


@dataclass(frozen=True)
class HardSigmoid(_Unary):
    """min(max(alpha · x + beta, 0), 1). Defaults: ONNX HardSigmoid-22."""

    mnemonic = "hard_sigmoid"
    alpha: float = 0.2
    beta: float = 0.5

    def function(self, x: Array) -> Any:
        real = x.dtype.type
        return np.minimum(np.maximum(x * real(self.alpha) + real(self.beta), real(0)), real(1))

    def scalar(self, x: Expr) -> Expr:
        line = binary("add", binary("mul", x, self.alpha), self.beta)
        return binary("min", binary("max", line, 0.0), 1.0)


@dataclass(frozen=True)
class HardSwish(_Unary):
    """x · min(max(x + 3, 0), 6) / 6; NaN at -inf."""

    mnemonic = "hard_swish"

    def function(self, x: Array) -> Any:
        real = x.dtype.type
        return x * np.minimum(np.maximum(x + real(3), real(0)), real(6)) / real(6)

    def scalar(self, x: Expr) -> Expr:
        return binary("div", x * binary("min", binary("max", binary("add", x, 3.0), 0.0), 6.0), 6.0)


def softplus(x: Expr) -> Expr:
    return binary("max", x, 0.0) + unary("log1p", unary("exp", -unary("abs", x)))


@dataclass(frozen=True)
class Softplus(_Unary):
    """log(1 + e^x), without overflow: max(x, 0) + log1p(e^-|x|)."""

    mnemonic = "softplus"

    def function(self, x: Array) -> Any:
        return np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x)))

    def scalar(self, x: Expr) -> Expr:
        return softplus(x)


@dataclass(frozen=True)
class Mish(_Unary):
    """x · tanh(log(1 + e^x)); NaN at -inf."""

    mnemonic = "mish"

    def function(self, x: Array) -> Any:
        return x * np.tanh(np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x))))

    def scalar(self, x: Expr) -> Expr:
        return x * unary("tanh", softplus(x))

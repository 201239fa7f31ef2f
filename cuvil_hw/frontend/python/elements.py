"""NumPy's element functions by torch, on operands that have the dtypes NumPy's rules give."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from cuvil_hw.frontend.python.trace import current, refuse, where

Tensor = torch.Tensor


def _sign(x: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def _divided(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Of integers by zero NumPy makes 0."""

    def apply(a: Tensor, b: Tensor) -> Tensor:
        if a.is_floating_point():
            return function(a, b)
        zero = b == 0
        made = function(a, torch.where(zero, torch.ones_like(b), b))
        return torch.where(zero, torch.zeros_like(made), made)

    return apply


def _power(a: Tensor, b: Tensor) -> Tensor:
    if not a.is_floating_point():
        current().demand((b >= 0).all(), f"{where()}: Integers to negative integer powers are not allowed.", ValueError)
    return torch.pow(a, b)


def _reciprocal(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        refuse("np.reciprocal", "of integers; convert with astype first")
    return torch.reciprocal(x)


def _heaviside(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), x, torch.heaviside(x, y))


def _whole(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """NumPy rounds booleans, too: to themselves."""
    return lambda x: x.clone() if x.dtype == torch.bool else function(x)


def _absolute(x: Tensor) -> Tensor:
    return x if x.dtype == torch.bool else torch.abs(x)


def _add(a: Tensor, b: Tensor) -> Tensor:
    return torch.logical_or(a, b) if a.dtype == torch.bool else torch.add(a, b)


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    return torch.logical_and(a, b) if a.dtype == torch.bool else torch.mul(a, b)


def _extreme(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: function(*torch.broadcast_tensors(a, b))  # type: ignore[no-untyped-call]


ELEMENTS: Mapping[str, Callable[..., Tensor]] = {
    "add": _add,
    "subtract": torch.sub,
    "multiply": _multiply,
    "divide": torch.div,
    "floor_divide": _divided(torch.floor_divide),
    "remainder": _divided(torch.remainder),
    "fmod": _divided(torch.fmod),
    "power": _power,
    "float_power": torch.pow,
    "negative": torch.neg,
    "positive": torch.clone,
    "absolute": _absolute,
    "fabs": torch.abs,
    "sign": _sign,
    "rint": torch.round,
    "floor": _whole(torch.floor),
    "ceil": _whole(torch.ceil),
    "trunc": _whole(torch.trunc),
    "sqrt": torch.sqrt,
    "square": lambda x: x * x,
    "reciprocal": _reciprocal,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "arcsin": torch.asin,
    "arccos": torch.acos,
    "arctan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "arcsinh": torch.asinh,
    "arccosh": torch.acosh,
    "arctanh": torch.atanh,
    "arctan2": torch.atan2,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "maximum": _extreme(torch.maximum),
    "minimum": _extreme(torch.minimum),
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "logical_not": torch.logical_not,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "invert": torch.bitwise_not,
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "signbit": torch.signbit,
    "copysign": torch.copysign,
    "deg2rad": torch.deg2rad,
    "radians": torch.deg2rad,
    "rad2deg": torch.rad2deg,
    "degrees": torch.rad2deg,
    "heaviside": _heaviside,
    "matmul": torch.matmul,
}

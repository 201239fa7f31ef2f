"""How a real number becomes an integer: the rounding modes of `quantize` and `rescale`, in NumPy and as expressions.

    half_even   nearest, ties to even (ONNX, IEEE 754)       half_up     nearest, ties towards +infinity
    half_away   nearest, ties away from zero                 half_zero   nearest, ties towards zero
    floor, ceil, to_zero, away                               towards -infinity, +infinity, zero, away from zero
    sign        +1 from zero up, -1 below: one signed bit

On integers the number is v / 2^shift: exact at every tie. On floats half_away and half_zero are, as QONNX has them,
sign(x) · floor(|x| + 0.5) and sign(x) · ceil(|x| - 0.5), the sum rounded to the type.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cuvil_hw.expr.nodes import Expr, binary, const, select, unary
from cuvil_hw.ops.base import Array

MODES = ("half_even", "half_up", "half_away", "half_zero", "floor", "ceil", "to_zero", "away", "sign")
NEAREST = ("half_even", "half_up", "half_away", "half_zero")
# Rounding x + n gives n more than rounding x, for every whole n. Of half_even that holds for even ones only.
TRANSLATES = ("half_up", "floor", "ceil")


def rounded(x: Array, mode: str) -> Array:
    """Floats to whole floats of the same type. NaN stays, but its sign is -1."""
    match mode:
        case "half_even":
            return np.asarray(np.rint(x))
        case "half_up":
            low = np.floor(x)
            return np.asarray(low + (x - low >= 0.5))
        case "half_away":
            return np.asarray(np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x))
        case "half_zero":
            return np.asarray(np.copysign(np.ceil(np.abs(x) - x.dtype.type(0.5)), x))
        case "floor":
            return np.asarray(np.floor(x))
        case "ceil":
            return np.asarray(np.ceil(x))
        case "to_zero":
            return np.asarray(np.trunc(x))
        case "away":
            return np.asarray(np.copysign(np.ceil(np.abs(x)), x))
    return np.where(x >= 0, 1, -1).astype(x.dtype)


def round_expr(x: Expr, mode: str) -> Expr:
    """`rounded` as an expression on f32."""

    half = const(0.5, x.dtype)

    def with_sign(size: Callable[[Expr], Expr]) -> Expr:
        whole = size(unary("abs", x))
        return select(binary("lt", x, 0.0), unary("neg", whole), whole)

    match mode:
        case "half_even":
            return unary("round", x)
        case "half_up":
            low = unary("floor", x)
            return low + select(binary("ge", binary("sub", x, low), half), const(1.0, x.dtype), const(0.0, x.dtype))
        case "half_away":
            return with_sign(lambda size: unary("floor", size + half))
        case "half_zero":
            return with_sign(lambda size: unary("ceil", binary("sub", size, half)))
        case "floor" | "ceil":
            return unary(mode, x)
        case "to_zero" | "away":
            return with_sign(lambda size: unary("floor" if mode == "to_zero" else "ceil", size))
    return select(binary("ge", x, 0.0), const(1.0, x.dtype), const(-1.0, x.dtype))


def shifted(v: Array, shift: Array, mode: str) -> Array:
    """v / 2^shift rounded; int64, shift ≥ 0. What is added to v must not overflow: below 2^shift."""
    if mode == "sign":
        return np.where(v >= 0, np.int64(1), np.int64(-1))
    whole = (np.int64(1) << shift) - 1  # all ones below the point
    half = (whole + 1) >> 1
    below = np.maximum(half - 1, 0)
    match mode:
        case "half_even":
            add: Array = below + ((v >> shift) & 1) * (shift > 0)
        case "half_up":
            add = half
        case "half_away":
            add = np.where(v < 0, below, half)
        case "half_zero":
            add = np.where(v < 0, half, below)
        case "ceil":
            add = whole
        case "to_zero":
            add = np.where(v < 0, whole, 0)
        case "away":
            add = np.where(v > 0, whole, 0)
        case _:
            add = np.zeros_like(whole)
    return np.asarray((v + add) >> shift)


def shift_expr(v: Expr, parameter: Callable[[Callable[[int], int]], Expr], mode: str) -> Expr:
    """`shifted` as an expression. `parameter(f)`: f(shift), a constant or looked up by channel; shift ≥ 1."""
    shift = parameter(lambda s: s)

    def whole() -> Expr:
        return parameter(lambda s: (1 << s) - 1)

    def half() -> Expr:
        return parameter(lambda s: 1 << (s - 1))

    def below() -> Expr:
        return parameter(lambda s: (1 << (s - 1)) - 1)

    zero = const(0, v.dtype)
    match mode:
        case "sign":
            return select(binary("ge", v, zero), const(1, v.dtype), const(-1, v.dtype))
        case "half_even":
            v = v + below() + binary("and", binary("shr", v, shift), const(1, v.dtype))
        case "half_up":
            v = v + half()
        case "half_away":
            v = v + select(binary("lt", v, zero), below(), half())
        case "half_zero":
            v = v + select(binary("lt", v, zero), half(), below())
        case "ceil":
            v = v + whole()
        case "to_zero":
            v = v + select(binary("lt", v, zero), whole(), zero)
        case "away":
            v = v + select(binary("gt", v, zero), whole(), zero)
    return binary("shr", v, shift)

"""Powers of integers as ops, exact modulo 2^width. What front ends share."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.ops.base import Op
from cuvil_hw.types import TensorType

V = TypeVar("V")
Made = TypeVar("Made", covariant=True)


class Emits(Protocol[Made]):
    """Where the ops go; values are the front end's own."""

    def op(self, op: Op, *values: Any) -> Made: ...

    def splat(self, value: int, kind: TensorType) -> Made: ...


def fixed_power(e: Emits[V], x: V, exponent: int, kind: TensorType) -> V:
    """x^exponent for a known exponent ≥ 0, by repeated squaring. `kind`: type of x and of the result."""
    result: V | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else e.op(ew.Mul(), result, x)
        exponent >>= 1
        x = e.op(ew.Mul(), x, x) if exponent else x
    return e.splat(1, kind) if result is None else result


def power(e: Emits[V], x: V, n: V, kind: TensorType, base: int | None = None) -> V:
    """x^n, all of type `kind`. A negative n gives PyTorch's result: 1 for x = 1, ±1 for x = -1, 0 for all others, 0
    included. `base`: the value of all elements of x, if they are one known number."""
    shifts = base is not None and base > 0 and base & (base - 1) == 0
    made = _shifted(e, base, n, kind) if base is not None and shifts else _product(e, x, n, kind)
    return made if kind.dtype[0] == "u" else _negative_too(e, x, n, made, kind)


def _width(kind: TensorType) -> tuple[bool, int]:
    return dtypes.int_width(kind.dtype) or (False, 0)


def _shifted(e: Emits[V], base: int, n: V, kind: TensorType) -> V:
    """base^n for n ≥ 0 and a power of two, as a shift. Beyond the width nothing is left."""
    step = base.bit_length() - 1
    if step == 0:
        return e.splat(1, kind)
    bits = e.op(ew.Mul(), e.op(ew.Minimum(), n, e.splat(_width(kind)[1], kind)), e.splat(step, kind))
    return e.op(ew.ShiftLeft(), e.splat(1, kind), bits)


def _product(e: Emits[V], square: V, n: V, kind: TensorType) -> V:
    """square^n for n ≥ 0: the product of square^(2^k) over the bits k of n."""
    one = e.splat(1, kind)
    signed, width = _width(kind)
    result: V = one
    for k in range(width - signed):
        square = e.op(ew.Mul(), square, square) if k else square
        bit = e.op(ew.BitwiseAnd(), e.op(ew.ShiftRight(), n, e.splat(k, kind)) if k else n, one)
        factor = e.op(ew.Where(), e.op(ew.Equal(), bit, one), square, one)
        result = e.op(ew.Mul(), result, factor) if k else factor
    return result


def _negative_too(e: Emits[V], x: V, n: V, made: V, kind: TensorType) -> V:
    one, zero, minus = e.splat(1, kind), e.splat(0, kind), e.splat(-1, kind)
    odd = e.op(ew.Equal(), e.op(ew.BitwiseAnd(), n, one), one)
    other = e.op(ew.Where(), e.op(ew.Equal(), x, minus), e.op(ew.Where(), odd, minus, one), zero)
    inverse = e.op(ew.Where(), e.op(ew.Equal(), x, one), one, other)
    return e.op(ew.Where(), e.op(ew.Less(), n, zero), inverse, made)


__all__ = ["Emits", "fixed_power", "power"]

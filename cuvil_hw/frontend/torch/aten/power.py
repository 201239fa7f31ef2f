"""ATen converters of powers. Those of integers are exact modulo 2^width, as torch's."""

from __future__ import annotations

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.elementwise import Operand, apply
from cuvil_hw.frontend.torch.aten.emitter import Emitter, Value, converts


@converts("pow.Tensor_Scalar")
def pow_scalar(e: Emitter, x: Value, exponent: float) -> Value:
    """Small exponents as the products that torch itself uses."""
    x = e.cast(x, e.out.dtype)
    if exponent == 1:
        return x
    if exponent in (2, 3):
        square = e.op(ew.Mul(), x, x)
        return square if exponent == 2 else e.op(ew.Mul(), square, x)
    if not dtypes.is_float(e.out.dtype):
        return _fixed_power(e, x, int(exponent))
    if exponent in (0.5, -0.5, -1):
        y: Value = e.op(ew.Sqrt(), x) if exponent != -1 else x
        return e.op(ew.Reciprocal(), y) if exponent < 0 else y
    return apply(e, ew.Pow(), x, exponent, e.out.dtype)


@converts("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(e: Emitter, x: Operand, exponent: Operand) -> Value:
    if dtypes.is_float(e.out.dtype):
        return apply(e, ew.Pow(), x, exponent, e.out.dtype)
    base = e.wrapped(x, e.out.dtype)
    n = e.operand(exponent, e.out)
    made = _shifted(e, base, n) if isinstance(base, int) and base > 0 and base & (base - 1) == 0 else None
    return _negative_too(e, base, n, made if made is not None else _power(e, base, n))


def _fixed_power(e: Emitter, x: Value, exponent: int) -> Value:
    low, high = dtypes.int_range(e.out.dtype)
    if exponent < 0:
        e.refuse("integers to negative integer powers, which torch doesn't allow; convert to floats first")
    if not low <= exponent <= high:
        e.refuse(f"the exponent {exponent} is outside {e.out.dtype}, which torch doesn't allow")
    result: Value | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else e.op(ew.Mul(), result, x)
        exponent >>= 1
        x = e.op(ew.Mul(), x, x) if exponent else x
    return e.splat(1, e.out) if result is None else result


def _shifted(e: Emitter, base: int, n: Value) -> Value:
    """base^n for n ≥ 0 and a power of two, as a shift. Beyond the width nothing is left."""
    step = base.bit_length() - 1
    if step == 0:
        return e.splat(1, e.out)
    bits = e.op(ew.Mul(), e.op(ew.Minimum(), n, e.splat(_width(e), e.out)), e.splat(step, e.out))
    return e.op(ew.ShiftLeft(), e.splat(1, e.out), bits)


def _power(e: Emitter, base: Operand, n: Value) -> Value:
    """base^n for n ≥ 0: the product of base^(2^k) over the bits k of n."""
    one = e.splat(1, e.out)
    square = e.operand(base, e.out)
    signed, width = dtypes.int_width(e.out.dtype) or (False, 0)
    result: Value = one
    for k in range(width - signed):
        square = e.op(ew.Mul(), square, square) if k else square
        bit = e.op(ew.BitwiseAnd(), e.op(ew.ShiftRight(), n, e.splat(k, e.out)) if k else n, one)
        factor = e.op(ew.Where(), e.op(ew.Equal(), bit, one), square, one)
        result = e.op(ew.Mul(), result, factor) if k else factor
    return result


def _negative_too(e: Emitter, base: Operand, n: Value, made: Value) -> Value:
    """`made` where n ≥ 0; else what torch makes of 1/base^-n: 1 for 1, ±1 for -1, 0 for all others, 0 too."""
    if e.out.dtype[0] == "u":
        return made
    one, zero, x = e.splat(1, e.out), e.splat(0, e.out), e.operand(base, e.out)
    odd = e.op(ew.Equal(), e.op(ew.BitwiseAnd(), n, one), one)
    minus = e.splat(-1, e.out)
    other = e.op(ew.Where(), e.op(ew.Equal(), x, minus), e.op(ew.Where(), odd, minus, one), zero)
    inverse = e.op(ew.Where(), e.op(ew.Equal(), x, one), one, other)
    return e.op(ew.Where(), e.op(ew.Less(), n, zero), inverse, made)


def _width(e: Emitter) -> int:
    return (dtypes.int_width(e.out.dtype) or (False, 0))[1]

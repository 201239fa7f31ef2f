"""ATen converters of powers. Those of integers are exact modulo 2^width, as torch's."""

from __future__ import annotations

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.powers import fixed_power, power
from cuvil_hw.frontend.torch.aten.elementwise import Operand, apply
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, converts


@converts("pow.Tensor_Scalar")
def pow_scalar(e: AtenEmitter, x: Value, exponent: float) -> Value:
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
def pow_tensor(e: AtenEmitter, x: Operand, exponent: Operand) -> Value:
    if dtypes.is_float(e.out.dtype):
        return apply(e, ew.Pow(), x, exponent, e.out.dtype)
    base = e.wrapped(x, e.out.dtype)
    known = base if isinstance(base, int) else None
    return power(e, e.operand(base, e.out), e.operand(exponent, e.out), e.out, known)


def _fixed_power(e: AtenEmitter, x: Value, exponent: int) -> Value:
    low, high = dtypes.int_range(e.out.dtype)
    if exponent < 0:
        e.refuse("integers to negative integer powers, which torch doesn't allow; convert to floats first")
    if not low <= exponent <= high:
        e.refuse(f"the exponent {exponent} is outside {e.out.dtype}, which torch doesn't allow")
    return fixed_power(e, x, exponent, e.out)

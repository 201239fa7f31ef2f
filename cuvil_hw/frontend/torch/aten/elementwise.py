"""ATen converters of element-by-element ops: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import math
from typing import Any

import torch

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, converts
from cuvil_hw.ops.base import Op
from cuvil_hw.types import TensorType

Operand = Value | float | int | bool

UNARY: dict[str, Op] = {
    "neg": ew.Neg(),
    "abs": ew.Abs(),
    "exp": ew.Exp(),
    "log": ew.Log(),
    "sqrt": ew.Sqrt(),
    "reciprocal": ew.Reciprocal(),
    "tanh": ew.Tanh(),
    "sigmoid": ew.Sigmoid(),
    "erf": ew.Erf(),
    "sin": ew.Sin(),
    "cos": ew.Cos(),
    "relu": ew.Relu(),
    "silu": ew.Silu(),
    "hardswish": ew.HardSwish(),
    "hardsigmoid": ew.HardSigmoid(1 / 6, 0.5),
    "mish": ew.Mish(),
    "relu6": ew.Clamp(0.0, 6.0),
}
ROUNDING: dict[str, Op] = {"floor": ew.Floor(), "ceil": ew.Ceil(), "round": ew.Round()}
BINARY: dict[str, Op] = {"mul": ew.Mul(), "minimum": ew.Minimum(), "maximum": ew.Maximum()}
COMPARE: dict[str, Op] = {
    "eq": ew.Equal(),
    "lt": ew.Less(),
    "le": ew.LessEqual(),
    "gt": ew.Greater(),
    "ge": ew.GreaterEqual(),
}
LOGICAL: dict[str, Op] = {"and": ew.LogicalAnd(), "or": ew.LogicalOr(), "xor": ew.LogicalXor()}
BITWISE: dict[str, Op] = {"and": ew.BitwiseAnd(), "or": ew.BitwiseOr(), "xor": ew.BitwiseXor()}


def apply(e: AtenEmitter, op: Op, a: Operand, b: Operand, dtype: str) -> Value:
    """`op` on two operands cast to `dtype` and broadcast to the node's shape."""
    kind = TensorType(e.out.shape, dtype)
    return e.op(op, e.operand(e.wrapped(a, dtype), kind), e.operand(e.wrapped(b, dtype), kind))


def _enter_unary(target: str, op: Op) -> None:
    @converts(target)
    def convert(e: AtenEmitter, x: Value) -> Value:
        return e.op(op, e.cast(x, e.out.dtype))


@converts("sign", "sgn")
def sign(e: AtenEmitter, x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN, since torch subtracts two comparisons."""
    y = e.op(ew.Sign(), x)
    return e.op(ew.Where(), e.op(ew.IsNan(), x), e.splat(0, e.out), y) if dtypes.is_float(e.out.dtype) else y


def _enter_rounding(target: str, op: Op) -> None:
    @converts(target)
    def convert(e: AtenEmitter, x: Value) -> Value:
        return e.op(op, x) if dtypes.is_float(e.out.dtype) else x


def _enter_binary(target: str, op: Op) -> None:
    @converts(target + (".Tensor" if target == "mul" else ""))
    def convert(e: AtenEmitter, a: Operand, b: Operand) -> Value:
        if e.out.dtype == "bool":
            if target in ("mul", "minimum"):
                return apply(e, ew.LogicalAnd(), a, b, "bool")
            return apply(e, ew.LogicalOr(), a, b, "bool")
        return apply(e, op, a, b, e.out.dtype)


def _enter_compare(target: str, op: Op) -> None:
    @converts(f"{target}.Tensor", f"{target}.Scalar")
    def convert(e: AtenEmitter, a: Operand, b: Operand) -> Value:
        dtype = e.common_dtype(a, b)
        return apply(e, op, a, b, "i8" if dtype == "bool" else dtype)


def _enter_logical(target: str) -> None:
    @converts(f"logical_{target}")
    def logical(e: AtenEmitter, a: Operand, b: Operand) -> Value:
        return apply(e, LOGICAL[target], a, b, "bool")

    dunder = f"__{target}__"

    @converts(f"bitwise_{target}.Tensor", f"bitwise_{target}.Scalar", f"{dunder}.Tensor", f"{dunder}.Scalar")
    def bitwise(e: AtenEmitter, a: Operand, b: Operand) -> Value:
        table = LOGICAL if e.out.dtype == "bool" else BITWISE
        return apply(e, table[target], a, b, e.out.dtype)


for _target, _op in UNARY.items():
    _enter_unary(_target, _op)
for _target, _op in ROUNDING.items():
    _enter_rounding(_target, _op)
for _target, _op in BINARY.items():
    _enter_binary(_target, _op)
for _target, _op in COMPARE.items():
    _enter_compare(_target, _op)
for _target in LOGICAL:
    _enter_logical(_target)


@converts("mul.Scalar")
def mul_scalar(e: AtenEmitter, a: Value, b: float) -> Value:
    return apply(e, ew.Mul(), a, b, e.out.dtype)


@converts("ne.Tensor", "ne.Scalar")
def not_equal(e: AtenEmitter, a: Operand, b: Operand) -> Value:
    dtype = e.common_dtype(a, b)
    return e.op(ew.LogicalNot(), apply(e, ew.Equal(), a, b, "i8" if dtype == "bool" else dtype))


@converts("logical_not")
def logical_not(e: AtenEmitter, x: Value) -> Value:
    return e.op(ew.LogicalNot(), e.cast(x, "bool"))


@converts("bitwise_not")
def bitwise_not(e: AtenEmitter, x: Value) -> Value:
    return e.op(ew.LogicalNot() if e.out.dtype == "bool" else ew.BitwiseNot(), x)


@converts("isnan")
def isnan(e: AtenEmitter, x: Value) -> Value:
    return e.op(ew.IsNan(), x) if dtypes.is_float(e.type(x).dtype) else e.splat(False, e.out)


@converts("isinf")
def isinf(e: AtenEmitter, x: Value) -> Value:
    if not dtypes.is_float(e.type(x).dtype):
        return e.splat(False, e.out)
    return e.op(ew.Equal(), e.op(ew.Abs(), x), e.splat(math.inf, e.type(x)))


def _scaled_sum(e: AtenEmitter, op: Op, a: Operand, b: Operand, alpha: float) -> Value:
    """a ± alpha·b"""
    dtype = e.out.dtype
    if dtype == "bool":
        if isinstance(op, ew.Sub):
            e.refuse("subtraction of booleans; use logical_xor")
        return apply(e, ew.LogicalOr(), a, b, dtype)
    if alpha != 1:
        b = e.op(ew.Mul(), e.operand(b, e.out), e.splat(alpha, e.out))
    return apply(e, op, a, b, dtype)


@converts("add.Tensor", "add.Scalar")
def add(e: AtenEmitter, a: Operand, b: Operand, alpha: float) -> Value:
    return _scaled_sum(e, ew.Add(), a, b, alpha)


@converts("sub.Tensor", "sub.Scalar")
def sub(e: AtenEmitter, a: Operand, b: Operand, alpha: float) -> Value:
    return _scaled_sum(e, ew.Sub(), a, b, alpha)


@converts("rsub.Tensor", "rsub.Scalar")
def rsub(e: AtenEmitter, a: Operand, b: Operand, alpha: float) -> Value:
    return _scaled_sum(e, ew.Sub(), b, a, alpha)


@converts("div.Tensor", "div.Scalar")
def div(e: AtenEmitter, a: Operand, b: Operand) -> Value:
    return apply(e, ew.Div(), a, b, e.out.dtype)


@converts("div.Tensor_mode", "div.Scalar_mode")
def div_mode(e: AtenEmitter, a: Operand, b: Operand, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return div(e, a, b)
    x, y = (e.operand(e.wrapped(v, e.out.dtype), e.out) for v in (a, b))
    integer = dtypes.is_int(e.out.dtype)
    if rounding_mode == "trunc":
        q = e.op(ew.Div(), x, y)
        return q if integer else _trunc(e, q)
    return _floor_divide_int(e, x, y) if integer else _floor_divide_float(e, x, y)


@converts("floor_divide")
def floor_divide(e: AtenEmitter, a: Operand, b: Operand) -> Value:
    return div_mode(e, a, b, "floor")


def _trunc(e: AtenEmitter, x: Value) -> Value:
    negative = e.op(ew.Less(), x, e.splat(0, e.type(x)))
    return e.op(ew.Where(), negative, e.op(ew.Ceil(), x), e.op(ew.Floor(), x))


@converts("trunc", "fix")
def trunc(e: AtenEmitter, x: Value) -> Value:
    return _trunc(e, x) if dtypes.is_float(e.out.dtype) else x


def _floor_divide_int(e: AtenEmitter, x: Value, y: Value) -> Value:
    """Truncation, minus one where the remainder is not zero and has not the divisor's sign."""
    zero = e.splat(0, e.out)
    q = e.op(ew.Div(), x, y)
    r = e.op(ew.Sub(), x, e.op(ew.Mul(), q, y))
    other_sign = e.op(ew.LogicalXor(), e.op(ew.Less(), r, zero), e.op(ew.Less(), y, zero))
    inexact = e.op(ew.LogicalNot(), e.op(ew.Equal(), r, zero))
    low = e.op(ew.LogicalAnd(), inexact, other_sign)
    return e.op(ew.Where(), low, e.op(ew.Sub(), q, e.splat(1, e.out)), q)


def _floor_divide_float(e: AtenEmitter, x: Value, y: Value) -> Value:
    """Python's a // b: from the exact remainder, since floor(a / b) is one too large where the quotient rounds up."""
    zero, one = e.splat(0, e.out), e.splat(1, e.out)
    r = e.op(ew.Mod(fmod=True), x, y)
    q = e.op(ew.Div(), e.op(ew.Sub(), x, r), y)
    other_sign = e.op(ew.LogicalXor(), e.op(ew.Less(), r, zero), e.op(ew.Less(), y, zero))
    inexact = e.op(ew.LogicalNot(), e.op(ew.Equal(), r, zero))
    low = e.op(ew.LogicalAnd(), inexact, other_sign)
    q = e.op(ew.Where(), low, e.op(ew.Sub(), q, one), q)
    whole = e.op(ew.Floor(), q)
    short = e.op(ew.Greater(), e.op(ew.Sub(), q, whole), e.splat(0.5, e.out))
    whole = e.op(ew.Where(), short, e.op(ew.Add(), whole, one), whole)
    quotient = e.op(ew.Div(), x, y)
    signed = e.op(ew.Mul(), quotient, zero)  # below 1 it is finite: a zero of its sign
    whole = e.op(ew.Where(), e.op(ew.Equal(), whole, zero), signed, whole)
    return e.op(ew.Where(), e.op(ew.Equal(), y, zero), quotient, whole)


@converts("remainder.Tensor", "remainder.Scalar")
def remainder(e: AtenEmitter, a: Operand, b: Operand) -> Value:
    """With the sign of b; of floats a remainder of zero keeps the sign of a, other than Python's."""
    if not dtypes.is_float(e.out.dtype):
        return apply(e, ew.Mod(fmod=False), a, b, e.out.dtype)
    y, zero = e.operand(b, e.out), e.splat(0, e.out)
    rest = apply(e, ew.Mod(fmod=True), a, b, e.out.dtype)
    other_sign = e.op(ew.LogicalXor(), e.op(ew.Less(), rest, zero), e.op(ew.Less(), y, zero))
    inexact = e.op(ew.LogicalNot(), e.op(ew.Equal(), rest, zero))
    return e.op(ew.Where(), e.op(ew.LogicalAnd(), inexact, other_sign), e.op(ew.Add(), rest, y), rest)


@converts("fmod.Tensor", "fmod.Scalar")
def fmod(e: AtenEmitter, a: Operand, b: Operand) -> Value:
    return apply(e, ew.Mod(fmod=True), a, b, e.out.dtype)


@converts("rsqrt")
def rsqrt(e: AtenEmitter, x: Value) -> Value:
    return e.op(ew.Reciprocal(), e.op(ew.Sqrt(), e.cast(x, e.out.dtype)))


@converts("exp2")
def exp2(e: AtenEmitter, x: Value) -> Value:
    return apply(e, ew.Pow(), 2, x, e.out.dtype)


def _log_base(e: AtenEmitter, x: Value, base: float) -> Value:
    return e.op(ew.Mul(), e.op(ew.Log(), e.cast(x, e.out.dtype)), e.splat(1 / math.log(base), e.out))


@converts("log2")
def log2(e: AtenEmitter, x: Value) -> Value:
    return _log_base(e, x, 2)


@converts("log10")
def log10(e: AtenEmitter, x: Value) -> Value:
    return _log_base(e, x, 10)


@converts("log1p")
def log1p(e: AtenEmitter, x: Value) -> Value:
    """log(u)·x/(u - 1) with u = 1 + x rounded: the error of u cancels (W. Kahan), so that small x keep their digits."""
    x = e.cast(x, e.out.dtype)
    one = e.splat(1, e.out)
    u = e.op(ew.Add(), x, one)
    log = e.op(ew.Log(), u)
    corrected = e.op(ew.Mul(), log, e.op(ew.Div(), x, e.op(ew.Sub(), u, one)))
    large = e.op(ew.Where(), e.op(ew.Equal(), u, x), log, corrected)
    return e.op(ew.Where(), e.op(ew.Equal(), u, one), x, large)


@converts("expm1")
def expm1(e: AtenEmitter, x: Value) -> Value:
    """(u - 1)·x/log(u) with u = exp(x) rounded: the same cancellation as in `log1p`."""
    x = e.cast(x, e.out.dtype)
    one = e.splat(1, e.out)
    u = e.op(ew.Exp(), x)
    v = e.op(ew.Sub(), u, one)
    corrected = e.op(ew.Mul(), v, e.op(ew.Div(), x, e.op(ew.Log(), u)))
    # Where u is far from 1 nothing cancels, and u = 0 or infinity would give NaN.
    far = e.op(ew.Greater(), e.op(ew.Abs(), x), one)
    result = e.op(ew.Where(), far, v, corrected)
    return e.op(ew.Where(), e.op(ew.Equal(), u, one), x, result)


@converts("clamp", "hardtanh")
def clamp(e: AtenEmitter, x: Value, lo: float | None, hi: float | None) -> Value:
    x = e.cast(x, e.out.dtype)
    return e.op(ew.Clamp(-math.inf if lo is None else float(lo), math.inf if hi is None else float(hi)), x)


@converts("clamp_min")
def clamp_min(e: AtenEmitter, x: Value, lo: float) -> Value:
    return clamp(e, x, lo, None)


@converts("clamp_max")
def clamp_max(e: AtenEmitter, x: Value, hi: float) -> Value:
    return clamp(e, x, None, hi)


@converts("clamp.Tensor")
def clamp_tensor(e: AtenEmitter, x: Value, lo: Value | None, hi: Value | None) -> Value:
    x = e.operand(x, e.out)
    if lo is not None:
        x = e.op(ew.Maximum(), x, e.operand(lo, e.out))
    return x if hi is None else e.op(ew.Minimum(), x, e.operand(hi, e.out))


@converts("leaky_relu")
def leaky_relu(e: AtenEmitter, x: Value, slope: float) -> Value:
    return e.op(ew.LeakyRelu(float(slope)), x)


@converts("elu")
def elu(e: AtenEmitter, x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    if input_scale != 1:
        e.refuse(f"input_scale={input_scale}; only 1 is supported")
    return e.op(ew.Elu(float(alpha)) if scale == 1 else ew.Selu(float(alpha), float(scale)), x)


@converts("gelu")
def gelu(e: AtenEmitter, x: Value, approximate: str) -> Value:
    return e.op(ew.Gelu(approximate), x)


@converts("softplus")
def softplus(e: AtenEmitter, x: Value, beta: float, threshold: float) -> Value:
    """log(1 + exp(beta·x)) / beta, and x itself where beta·x > threshold."""
    if beta == 1 and threshold == 20 and e.out.dtype != "f64":  # beyond 20 both branches agree within f32's precision
        return e.op(ew.Softplus(), x)
    scaled = e.op(ew.Mul(), x, e.splat(beta, e.out))
    soft = e.op(ew.Div(), e.op(ew.Softplus(), scaled), e.splat(beta, e.out))
    return e.op(ew.Where(), e.op(ew.Greater(), scaled, e.splat(threshold, e.out)), x, soft)


@converts("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(e: AtenEmitter, condition: Value, a: Operand, b: Operand) -> Value:
    a, b = (_wrapped(x, e.out.dtype) for x in (a, b))
    return _chosen(e, condition, a, b)


def _chosen(e: AtenEmitter, condition: Value, a: Operand, b: Operand) -> Value:
    c = e.operand(condition, TensorType(e.out.shape, "bool"))
    return e.op(ew.Where(), c, e.operand(a, e.out), e.operand(b, e.out))


def _wrapped(x: Operand, dtype: str) -> Operand:
    """A whole number among the operands of `where` as the integer type holds it: -3 is 253 in uint8, as in PyTorch."""
    if isinstance(x, int) and not isinstance(x, bool) and dtypes.is_int(dtype):
        low, high = dtypes.int_range(dtype)
        return (x - low) % (high - low + 1) + low
    return x


@converts("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(e: AtenEmitter, x: Value, mask: Value, value: Operand) -> Value:
    """Unlike `where`, PyTorch refuses a number here that the type can't hold."""
    return _chosen(e, mask, value, x)


@converts("_to_copy")
def to_copy(e: AtenEmitter, x: Value, dtype: torch.dtype | None, *_: Any) -> Value:
    return e.cast(x, e.out.dtype) if dtype is not None else x


@converts("clone", "alias", "detach", "detach_", "lift_fresh", "lift_fresh_copy")
def identity(e: AtenEmitter, x: Value, *_: Any) -> Value:
    """Level1 tensors are values: no copies, no memory formats."""
    return x

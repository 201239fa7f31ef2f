"""ATen converters of functions: trigonometric, hyperbolic, by parts of numbers, shifts of bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from cuvil_hw import dtypes
from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.elementwise import Operand, apply
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, converts
from cuvil_hw.frontend.torch.aten.reduce import reduced, vector_norm
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.reduce import ReduceSum
from cuvil_hw.types import TensorType

FUNCTIONS: dict[str, Op] = {
    "tan": ew.Tan(),
    "asin": ew.Asin(),
    "acos": ew.Acos(),
    "atan": ew.Atan(),
    "sinh": ew.Sinh(),
    "cosh": ew.Cosh(),
    "asinh": ew.Asinh(),
    "acosh": ew.Acosh(),
    "atanh": ew.Atanh(),
}
SHIFTS: dict[str, Op] = {
    "bitwise_left_shift": ew.ShiftLeft(),
    "bitwise_right_shift": ew.ShiftRight(),
    "__lshift__": ew.ShiftLeft(),
    "__rshift__": ew.ShiftRight(),
}


def _enter_function(target: str, op: Op) -> None:
    @converts(target)
    def convert(e: AtenEmitter, x: Value) -> Value:
        return e.op(op, e.cast(x, e.out.dtype))


def _enter_shift(target: str, op: Op) -> None:
    @converts(f"{target}.Tensor", f"{target}.Scalar", f"{target}.Tensor_Scalar", f"{target}.Scalar_Tensor")
    def convert(e: AtenEmitter, x: Operand, by: Operand) -> Value:
        return apply(e, op, x, by, e.out.dtype)


for _target, _op in FUNCTIONS.items():
    _enter_function(_target, _op)
for _target, _op in SHIFTS.items():
    _enter_shift(_target, _op)


def _negative(e: AtenEmitter, x: Value) -> Value:
    """Whether the sign is minus, that of zero too; the sign of NaN is not defined."""
    kind = e.type(x)
    zero = e.splat(0, kind)
    below = e.op(ew.Less(), x, zero)
    if not dtypes.is_float(kind.dtype):
        return below
    minus_zero = e.op(ew.Equal(), e.op(ew.Reciprocal(), x), e.splat(-math.inf, kind))
    return e.op(ew.LogicalOr(), below, minus_zero)


@converts("signbit")
def signbit(e: AtenEmitter, x: Value) -> Value:
    return e.splat(False, e.out) if e.type(x).dtype == "bool" else _negative(e, x)


@converts("copysign.Tensor", "copysign.Scalar")
def copysign(e: AtenEmitter, x: Operand, sign: Operand) -> Value:
    size = e.op(ew.Abs(), e.operand(x, e.out))
    return e.op(ew.Where(), _negative(e, e.operand(sign, e.out)), e.op(ew.Neg(), size), size)


@converts("atan2")
def atan2(e: AtenEmitter, y: Value, x: Value) -> Value:
    """atan of the smaller over the larger side, then turned into the octant: no quotient overflows, signed zeros and
    infinities as in C."""
    y, x = e.operand(y, e.out), e.operand(x, e.out)
    infinity, one, zero = (e.splat(v, e.out) for v in (math.inf, 1, 0))
    down, left = _negative(e, y), _negative(e, x)
    high, wide = e.op(ew.Abs(), y), e.op(ew.Abs(), x)
    steep = e.op(ew.Greater(), high, wide)
    small = e.op(ew.Where(), steep, wide, high)
    large = e.op(ew.Where(), steep, high, wide)
    ratio = e.op(ew.Div(), small, large)
    ratio = e.op(ew.Where(), e.op(ew.Equal(), large, zero), zero, ratio)
    both = e.op(ew.Equal(), small, infinity)
    ratio = e.op(ew.Where(), both, one, ratio)
    angle: Value = e.op(ew.Atan(), ratio)
    angle = e.op(ew.Where(), steep, e.op(ew.Sub(), e.splat(math.pi / 2, e.out), angle), angle)
    angle = e.op(ew.Where(), left, e.op(ew.Sub(), e.splat(math.pi, e.out), angle), angle)
    angle = e.op(ew.Where(), down, e.op(ew.Neg(), angle), angle)
    nan = e.op(ew.LogicalOr(), e.op(ew.IsNan(), y), e.op(ew.IsNan(), x))
    return e.op(ew.Where(), nan, e.splat(math.nan, e.out), angle)


def _without_nan(e: AtenEmitter, op: Op, a: Operand, b: Operand) -> Value:
    """The number where one of two is NaN."""
    x, y = e.operand(a, e.out), e.operand(b, e.out)
    if e.out.dtype == "bool":
        return e.op(ew.LogicalOr() if isinstance(op, ew.Maximum) else ew.LogicalAnd(), x, y)
    best = e.op(op, x, y)
    if not dtypes.is_float(e.out.dtype):
        return best
    best = e.op(ew.Where(), e.op(ew.IsNan(), y), x, best)
    return e.op(ew.Where(), e.op(ew.IsNan(), x), y, best)


@converts("fmax")
def fmax(e: AtenEmitter, a: Value, b: Value) -> Value:
    return _without_nan(e, ew.Maximum(), a, b)


@converts("fmin")
def fmin(e: AtenEmitter, a: Value, b: Value) -> Value:
    return _without_nan(e, ew.Minimum(), a, b)


@converts("ldexp.Tensor")
def ldexp(e: AtenEmitter, x: Value, exponent: Value) -> Value:
    power = e.op(ew.Pow(), e.splat(2, e.out), e.operand(exponent, e.out))
    return e.op(ew.Mul(), e.operand(x, e.out), power)


@converts("addbmm")
def addbmm(e: AtenEmitter, c: Value, a: Value, b: Value, beta: float, alpha: float) -> Value:
    """beta·c + alpha·Σ_n a[n] @ b[n]: one product over n and the inner dimension."""
    batch, rows, inner = e.shape(a)
    acc = "" if dtypes.is_float(e.out.dtype) else "i64"
    wide = e.reshape(e.op(ew.Transpose((1, 0, 2)), a), (rows, batch * inner))
    tall = e.reshape(b, (batch * inner, e.shape(b)[2]))
    y = e.cast(e.op(ew.MatMul(acc=acc), wide, tall), e.out.dtype)
    if alpha != 1:
        y = e.op(ew.Mul(), y, e.splat(alpha, e.out))
    if beta == 0:
        return y
    c = e.operand(c, TensorType(e.out.shape, e.out.dtype))
    return e.op(ew.Add(), y, c if beta == 1 else e.op(ew.Mul(), c, e.splat(beta, e.out)))


@converts("hypot")
def hypot(e: AtenEmitter, a: Value, b: Value) -> Value:
    """The larger side times √(1 + ratio²): no square overflows."""
    x, y = (e.op(ew.Abs(), e.operand(v, e.out)) for v in (a, b))
    large, small = e.op(ew.Maximum(), x, y), e.op(ew.Minimum(), x, y)
    infinity = e.splat(math.inf, e.out)
    ratio = e.op(ew.Div(), small, large)
    y2 = e.op(ew.Add(), e.op(ew.Mul(), ratio, ratio), e.splat(1, e.out))
    length = e.op(ew.Mul(), large, e.op(ew.Sqrt(), y2))
    length = e.op(ew.Where(), e.op(ew.Equal(), large, e.splat(0, e.out)), large, length)
    endless = e.op(ew.LogicalOr(), e.op(ew.Equal(), x, infinity), e.op(ew.Equal(), y, infinity))
    return e.op(ew.Where(), endless, infinity, length)


@converts("dist")
def dist(e: AtenEmitter, a: Value, b: Value, p: float) -> Value:
    """The norm of the difference."""
    kind = TensorType(tuple(np.broadcast_shapes(e.shape(a), e.shape(b))), e.out.dtype)
    difference = e.op(ew.Sub(), e.operand(a, kind), e.operand(b, kind))
    return vector_norm(e, difference, p, None, False, None)


def _norms(e: AtenEmitter, difference: Value, p: float) -> Value:
    return vector_norm(e, difference, p, [-1], False, None)


@converts("cdist", "_cdist_forward", "_euclidean_dist")
def cdist(e: AtenEmitter, a: Value, b: Value, p: float = 2.0, *_: object) -> Value:
    """Distances of every row of a (…, P, M) to every row of b (…, R, M)."""
    rows, others, wide = e.shape(a)[-2], e.shape(b)[-2], e.shape(a)[-1]
    kind = TensorType((*e.out.shape[:-2], rows, others, wide), e.out.dtype)
    x = e.reshape(a, (*e.shape(a)[:-2], rows, 1, wide))
    y = e.reshape(b, (*e.shape(b)[:-2], 1, others, wide))
    return _norms(e, e.op(ew.Sub(), e.operand(x, kind), e.operand(y, kind)), p)


@converts("pdist", "_pdist_forward")
def pdist(e: AtenEmitter, x: Value, p: float) -> Value:
    """Distances of rows i < j."""
    i, j = torch.triu_indices(e.shape(x)[0], e.shape(x)[0], 1)
    return _norms(e, e.op(ew.Sub(), e.op(ew.Gather(0), x, i), e.op(ew.Gather(0), x, j)), p)


@converts("round.decimals")
def round_decimals(e: AtenEmitter, x: Value, decimals: int) -> Value:
    if not dtypes.is_float(e.out.dtype):
        return x
    factor = e.splat(10.0 ** abs(decimals), e.out)
    there, back = (ew.Mul(), ew.Div()) if decimals >= 0 else (ew.Div(), ew.Mul())
    return e.op(back, e.op(ew.Round(), e.op(there, x, factor)), factor)


@converts("_trilinear")
def trilinear(
    e: AtenEmitter,
    a: Value,
    b: Value,
    c: Value,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    summed: Sequence[int],
    unroll: int,
) -> Value:
    """Σ a·b·c over the axes `summed`; each operand lacks the axes of its `expand`."""
    rank = len(e.shape(a)) + len(expand_a)
    shapes = []
    for v, expand in ((a, expand_a), (b, expand_b), (c, expand_c)):
        extents = iter(e.shape(v))
        shapes.append([1 if d in expand else next(extents) for d in range(rank)])
    kind = TensorType(tuple(np.broadcast_shapes(*shapes)), e.out.dtype)
    x, y, z = (e.operand(e.reshape(v, s), kind) for v, s in zip((a, b, c), shapes, strict=True))
    return reduced(e, ReduceSum, e.op(ew.Mul(), e.op(ew.Mul(), x, z), y), list(summed))

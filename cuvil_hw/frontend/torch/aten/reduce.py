"""ATen converters of reductions."""

from __future__ import annotations

import math
from typing import Any

from cuvil_hw import ops as ew
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axes_of, axis_of, converts
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.binary import Div, Mul, Pow, Sub
from cuvil_hw.ops.logic import Equal
from cuvil_hw.types import TensorType

SUMS: dict[str, type[Any]] = {"sum": rd.ReduceSum, "mean": rd.ReduceMean}
EXTREMES: dict[str, tuple[type[Any], type[Any]]] = {"max": (rd.ReduceMax, rd.ArgMax), "min": (rd.ReduceMin, rd.ArgMin)}
TRUTH: dict[str, type[Any]] = {"any": rd.ReduceMax, "all": rd.ReduceMin}


def reduced(e: AtenEmitter, op: type[Any], x: Value, dims: Any, keepdim: bool = False, **attributes: Any) -> Value:
    """A reduction `op` over `dims` (None or []: all dimensions). A tensor without dimensions is reduced as one with a
    single element.
    """
    rank = len(e.shape(x))
    if rank == 0:
        return e.reshape(e.op(op((0,), **attributes), e.reshape(x, (1,))), ())
    return e.op(op(axes_of(dims, rank), bool(keepdim), **attributes), x)


def _enter_sum(target: str, op: type[Any]) -> None:
    @converts(target)
    def over_all(e: AtenEmitter, x: Value, dtype: Any) -> Value:
        return reduced(e, op, e.cast(x, e.out.dtype), None)

    @converts(f"{target}.dim_IntList" if target == "sum" else f"{target}.dim")
    def over_dims(e: AtenEmitter, x: Value, dims: Any, keepdim: bool, dtype: Any) -> Value:
        return reduced(e, op, e.cast(x, e.out.dtype), dims, keepdim)


def _enter_extreme(target: str, value: type[Any], position: type[Any]) -> None:
    @converts(f"a{target}")
    def over_dims(e: AtenEmitter, x: Value, dims: Any, keepdim: bool) -> Value:
        return extreme(e, x, dims, keepdim)

    @converts(target)
    def over_all(e: AtenEmitter, x: Value) -> Value:
        return extreme(e, x, None, False)

    @converts(f"{target}.dim")
    def with_index(e: AtenEmitter, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
        return extreme(e, x, [dim], keepdim), arg(e, _numbers(e, x), dim, keepdim)

    def extreme(e: AtenEmitter, x: Value, dims: Any, keepdim: bool) -> Value:
        return e.cast(reduced(e, value, _numbers(e, x), dims, keepdim), e.out.dtype)

    @converts(f"arg{target}")
    def arg(e: AtenEmitter, x: Value, dim: int | None, keepdim: bool) -> Value:
        shape = e.results[-1].shape
        x = e.reshape(x, (e.type(x).size,) if dim is None or not e.shape(x) else e.shape(x))
        axis = 0 if dim is None else axis_of(dim, len(e.shape(x)))
        return e.reshape(e.op(position(axis, bool(keepdim), False), x), shape)


def _numbers(e: AtenEmitter, x: Value) -> Value:
    return e.cast(x, "i8") if e.type(x).dtype == "bool" else x


def _enter_truth(target: str, op: type[Any]) -> None:
    def truth(e: AtenEmitter, x: Value, dims: Any, keepdim: bool) -> Value:
        if not e.type(x).size:  # of nothing a maximum is the lowest integer, which is no truth value
            return e.splat(op is rd.ReduceMin, e.out)
        flags = e.cast(e.cast(x, "bool"), "i8")
        return e.cast(reduced(e, op, flags, dims, keepdim), e.out.dtype)

    @converts(target, f"_is_{target}_true")
    def over_all(e: AtenEmitter, x: Value) -> Value:
        return truth(e, x, None, False)

    @converts(f"{target}.dim", f"{target}.dims")
    def over_dims(e: AtenEmitter, x: Value, dims: Any, keepdim: bool) -> Value:
        return truth(e, x, dims, keepdim)


for _target, _op in SUMS.items():
    _enter_sum(_target, _op)
for _target, (_value, _position) in EXTREMES.items():
    _enter_extreme(_target, _value, _position)
for _target, _op in TRUTH.items():
    _enter_truth(_target, _op)


@converts("prod")
def prod(e: AtenEmitter, x: Value, dtype: Any) -> Value:
    return reduced(e, rd.ReduceProd, e.cast(x, e.out.dtype), None)


@converts("prod.dim_int")
def prod_dim(e: AtenEmitter, x: Value, dim: int, keepdim: bool, dtype: Any) -> Value:
    return reduced(e, rd.ReduceProd, e.cast(x, e.out.dtype), [dim], keepdim)


def _variance(e: AtenEmitter, x: Value, dims: Any, correction: float | None, keepdim: bool) -> tuple[Value, Value]:
    """Σ (x - mean)² / max(0, n - correction), and the mean."""
    kind = e.type(x)
    axes = axes_of(dims, len(kind.shape))
    mean = reduced(e, rd.ReduceMean, x, dims, True)
    d = e.op(Sub(), x, e.broadcast(mean, kind.shape))
    total = reduced(e, rd.ReduceSum, e.op(Mul(), d, d), dims, keepdim)
    count = math.prod(kind.shape[a] for a in axes)
    degrees = max(0.0, count - (1 if correction is None else correction))
    variance = e.op(Div(), total, e.splat(degrees, e.type(total)))
    return variance, e.reshape(mean, e.out.shape)


@converts("var.correction")
def var(e: AtenEmitter, x: Value, dims: Any, correction: float | None, keepdim: bool) -> Value:
    return _variance(e, x, dims, correction, keepdim)[0]


@converts("std.correction")
def std(e: AtenEmitter, x: Value, dims: Any, correction: float | None, keepdim: bool) -> Value:
    return e.op(ew.Sqrt(), _variance(e, x, dims, correction, keepdim)[0])


@converts("var_mean.correction")
def var_mean(e: AtenEmitter, x: Value, dims: Any, correction: float | None, keepdim: bool) -> tuple[Value, Value]:
    return _variance(e, x, dims, correction, keepdim)


@converts("linalg_vector_norm")
def vector_norm(e: AtenEmitter, x: Value, order: float, dims: Any, keepdim: bool, dtype: Any) -> Value:
    x = e.cast(x, e.out.dtype)
    size = e.op(ew.Abs(), x)
    if math.isinf(order):
        return reduced(e, rd.ReduceMax if order > 0 else rd.ReduceMin, size, dims, keepdim)
    if order == 0:
        zero = e.op(Equal(), x, e.splat(0, e.type(x)))
        return reduced(e, rd.ReduceSum, e.cast(e.op(ew.LogicalNot(), zero), e.out.dtype), dims, keepdim)
    if order == 1:
        return reduced(e, rd.ReduceSum, size, dims, keepdim)
    if order == 2:
        return e.op(ew.Sqrt(), reduced(e, rd.ReduceSum, e.op(Mul(), x, x), dims, keepdim))
    total = reduced(e, rd.ReduceSum, _power(e, size, order), dims, keepdim)
    return _power(e, total, 1 / order)


def _power(e: AtenEmitter, x: Value, exponent: float) -> Value:
    op: Op = Pow()
    return e.op(op, x, e.splat(exponent, TensorType(e.shape(x), e.out.dtype)))

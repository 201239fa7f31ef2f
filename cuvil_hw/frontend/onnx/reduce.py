"""Converters of reductions, argmax and softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw import ops as r
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Value
from cuvil_hw.frontend.onnx.shape import axes_of

Body = Callable[[OnnxNode, Value, tuple[int, ...], bool], Value]


def reduction(body: Body, axes_since: int = 18) -> Converter:
    """`axes_since`: the opset in which axes became an operand."""

    def convert(n: OnnxNode, version: int) -> Value:
        x = n[0]
        given = axes_of(n, version, axes_since)
        if not given and n.integer("noop_with_empty_axes", 0):
            return body(n, x, (), True)
        return body(n, x, n.axes(given or range(x.rank), x.rank), bool(n.integer("keepdims", 1)))

    return convert


def total(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return n.emit(r.ReduceSum(axes, keep), x) if axes else x


def mean(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if not axes:
        return x
    if dtypes.is_float(x.dtype):
        return n.emit(r.ReduceMean(axes, keep), x)
    y = total(n, x, axes, keep)
    count = prod(x.shape[a] for a in axes)
    if not count:
        n.refuse(f"the mean of no integers ({x.shape})")
    return n.emit(e.Div(), y, n.like(count, y))


def highest(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if x.dtype == "bool":
        return cast_to(n, highest(n, cast_to(n, x, "u8"), axes, keep), "bool")
    return n.emit(r.ReduceMax(axes, keep), x) if axes else x


def lowest(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if x.dtype == "bool":
        return cast_to(n, lowest(n, cast_to(n, x, "u8"), axes, keep), "bool")
    return n.emit(r.ReduceMin(axes, keep), x) if axes else x


def multiply(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return n.emit(r.ReduceProd(axes, keep), x) if axes else x


def l1(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return total(n, n.emit(e.Abs(), x), axes, keep)


def sum_square(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return total(n, n.emit(e.Mul(), x, x), axes, keep)


def _floats(n: OnnxNode, x: Value, f: Callable[[Value], Value]) -> Value:
    """f computed in f64 for integers, and truncated back to integers."""
    return f(x) if dtypes.is_float(x.dtype) else cast_to(n, f(cast_to(n, x, "f64")), x.dtype)


def l2(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return _floats(n, x, lambda v: n.emit(e.Sqrt(), sum_square(n, v, axes, keep)))


def log_sum(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return _floats(n, x, lambda v: n.emit(e.Log(), total(n, v, axes, keep)))


def log_sum_exp(n: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """log Σ exp(x - m) + m with m the largest finite value, so that nothing overflows."""

    def stable(v: Value) -> Value:
        if not axes or not all(v.shape[a] for a in axes):
            return n.emit(e.Log(), total(n, n.emit(e.Exp(), v), axes, keep))
        largest = highest(n, v, axes, True)
        infinite = n.emit(e.Equal(), n.emit(e.Abs(), largest), n.like(np.inf, largest))
        shift = n.emit(e.Where(), infinite, n.like(0, largest), largest)
        y = n.emit(e.Log(), total(n, n.emit(e.Exp(), n.binary(e.Sub(), v, shift)), axes, True))
        y = n.emit(e.Add(), y, shift)
        return y if keep else n.reshape(y, [s for i, s in enumerate(y.shape) if i not in axes])

    return _floats(n, x, stable)


def arg(op: type[r.ArgMax] | type[r.ArgMin]) -> Converter:
    def convert(n: OnnxNode, version: int) -> Value:
        axis = n.axis(n.integer("axis", 0), n[0].rank)
        return n.emit(op(axis, bool(n.integer("keepdims", 1)), bool(n.integer("select_last_index", 0))), n[0])

    return convert


def softmax(op: type[r.Softmax] | type[r.LogSoftmax]) -> Converter:
    """Before opset 13 all dimensions from `axis` on are normalised together."""

    def convert(n: OnnxNode, version: int) -> Value:
        x = n[0]
        axis = n.axis(n.integer("axis", 1 if version < 13 else -1), x.rank)
        if version >= 13 or axis == x.rank - 1 or prod(x.shape[axis + 1 :]) == 1:
            return n.emit(op(axis), x)
        flat = n.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
        return n.reshape(n.emit(op(1), flat), x.shape)

    return convert


REDUCE: Mapping[str, Converter] = MappingProxyType(
    {
        "ReduceSum": reduction(total, 13),
        "ReduceMean": reduction(mean),
        "ReduceMax": reduction(highest),
        "ReduceMin": reduction(lowest),
        "ReduceProd": reduction(multiply),
        "ReduceL1": reduction(l1),
        "ReduceL2": reduction(l2),
        "ReduceSumSquare": reduction(sum_square),
        "ReduceLogSum": reduction(log_sum),
        "ReduceLogSumExp": reduction(log_sum_exp),
        "ArgMax": arg(r.ArgMax),
        "ArgMin": arg(r.ArgMin),
        "Softmax": softmax(r.Softmax),
        "LogSoftmax": softmax(r.LogSoftmax),
    }
)

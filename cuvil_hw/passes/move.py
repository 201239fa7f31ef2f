"""Moves quantize and dequantize through ops that only choose or move values. Part of integerize.py.

quantize is monotone, so for relu, clamp, pools of maxima, views and choices quantize(op(x)) == op'(quantize(x))
dequantize is monotone too, so op(dequantize(q)) == dequantize(op'(q)) with the same bits: op' has its real-valued
attributes (bounds, padding) turned into integers.
"""

from __future__ import annotations

import math
from dataclasses import replace as with_fields
from typing import TypeGuard

import numpy as np
from xdsl.ir import Operation, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.elementwise import Clamp, Relu
from cuvil_hw.ops.integer import Quantize
from cuvil_hw.ops.reduce import ArgMax, ArgMin
from cuvil_hw.ops.shape import Pad
from cuvil_hw.passes.edit import Inserter, insert, owner, replace, users
from cuvil_hw.passes.real import Real, quantizer, real


def is_monotone(operation: Operation | None) -> TypeGuard[level1.TensorOp]:
    """Whether the op only moves or chooses elements, so that quantize and dequantize can move through it."""
    return isinstance(operation, level1.TensorOp) and operation.spec.monotone != "none" and len(operation.results) == 1


def keeps_range(operation: Operation | None) -> bool:
    """Whether all result values are elements of the first operand, or bounds of the op: relu, views, pools of
    maxima."""
    return is_monotone(operation) and operation.spec.monotone == "first"


def data_operands(operation: level1.TensorOp) -> list[SSAValue]:
    """The operands that are quantized; others, such as indices, stay as they are."""
    return list(operation.operands) if operation.spec.monotone == "all" else [operation.operands[0]]


def quantize_up(program: Program, operation: level1.TensorOp) -> bool:
    """quantize(op(x)) → op'(quantize(x)), if nothing else reads op(x)."""
    q = quantizer(operation)
    if q is None:
        return False
    inner = owner(operation.operands[0])
    if not is_monotone(inner):
        return False
    if not all(quantizer(user) is not None for user in users(inner.results[0])):
        return False
    put = insert(program, operation)
    moved = [put.op(q, v, loc=level1.loc_of(inner)) for v in data_operands(inner)]
    replace(operation, on_integers(put, inner.op, q, [*moved, *inner.operands[len(moved) :]], level1.loc_of(inner)))
    return True


def on_integers(put: Inserter, op: Op, q: Quantize, operands: list[SSAValue], loc: str) -> SSAValue:
    """`op` applied to tensors quantized by `q`."""
    match op:
        case Relu():
            return clamped(put, operands[0], to_grid(q, 0.0), math.inf, loc)
        case Clamp():
            return clamped(put, operands[0], to_grid(q, op.lo), to_grid(q, op.hi), loc)
        case Pad():
            return put.op(with_fields(op, value=float(to_grid(q, op.value))), *operands, loc=loc)
    return put.op(op, *operands, loc=loc)


def to_grid(q: Quantize, value: float) -> int:
    """The integer that stands for `value`."""
    return int(q.evaluate(np.asarray([value], np.float32))[0])


def clamped(put: Inserter, x: SSAValue, lo: float, hi: float, loc: str) -> SSAValue:
    """Clamp on integers; bounds that are those of the type cost nothing."""
    low, high = dtypes.int_range(level1.type_of(x).dtype)
    bounds = (-math.inf if lo <= low else lo, math.inf if hi >= high else hi)
    return x if bounds == (-math.inf, math.inf) else put.op(Clamp(*bounds), x, loc=loc)


def dequantize_down(program: Program, operation: level1.TensorOp) -> bool:
    """op(dequantize(x)) → dequantize(op'(x))."""
    if issubclass(operation.spec, ArgMax | ArgMin):
        x = real(operation.operands[0])
        if x is None or not x.per_tensor:
            return False
        replace(operation, insert(program, operation).op(operation.op, x.q))
        return True
    if not is_monotone(operation):
        return False
    data = data_operands(operation)
    reals = [real(v) for v in data]
    first = reals[0]
    if first is None or not all(r is not None and r.like(first) for r in reals):
        return False
    zero, axis = first.common_zero, channel_after(operation.op, first)
    if zero is None or axis is None:
        return False
    put = insert(program, operation)
    operands = [*(r.q for r in reals if r is not None), *operation.operands[len(data) :]]
    match operation.op:
        case Relu():
            moved = clamped(put, first.q, zero, math.inf, "")
        case Clamp(lo=lo, hi=hi):
            bounds = [on_grid(first, b, zero) for b in (lo, hi)]
            if bounds[0] is None or bounds[1] is None or not first.per_tensor:
                return False
            moved = clamped(put, first.q, bounds[0], bounds[1], "")
        case Pad(mode="constant") as op:
            value = on_grid(first, op.value, zero)
            low, high = dtypes.int_range(first.type.dtype)
            if value is None or not low <= value <= high or (not first.per_tensor and op.value != 0):
                return False
            moved = put.op(with_fields(op, value=float(value)), *operands)
        case op:
            moved = put.op(op, *operands)
    replace(operation, put.op(with_fields(first.dequantize(), axis=axis), moved))
    return True


def on_grid(x: Real, value: float, zero: int) -> float | None:
    """The integer that represents `value` exactly, as a float; infinities stay; None if there is none."""
    if math.isinf(value):
        return value
    q = value / x.scale[0]
    near = round(q)
    return float(near + zero) if abs(q - near) <= 1e-6 * max(1.0, abs(q)) else None


def channel_after(op: Op, x: Real) -> int | None:
    """The axis along which the parameters of x vary after `op`; None if it mixes the channels."""
    if x.per_tensor:
        return x.axis
    return op.axis_after(x.axis, x.type)

"""Turns layers on quantized tensors into integer layers with wide accumulators. Part of integerize.py.

before: conv (dequantize %x), (dequantize %w), %bias          after: dequantize (conv %x, %w, %b {acc = "i21"})
The scale of the result is s_x · s_w per output channel. A bias that is a multiple of it goes into the accumulator.
All of this is exact. Any other bias, and one that would make the accumulator much wider, is added after the sum
(affine.py puts it into the rescale).
"""

from __future__ import annotations

from dataclasses import replace as with_fields

import numpy as np
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import Array
from cuvil_hw.ops.binary import Add, Mul
from cuvil_hw.ops.integer import Dequantize
from cuvil_hw.ops.interval import Interval, window_bounds
from cuvil_hw.ops.nn import Conv, Linear
from cuvil_hw.ops.pool import AvgPool, SumPool
from cuvil_hw.ops.reduce import MatMul, ReduceMean, ReduceSum
from cuvil_hw.ops.shape import BroadcastTo, Reshape
from cuvil_hw.passes.edit import const_array, insert, replace, static_array
from cuvil_hw.passes.quantize.arithmetic import accumulator, dot_bounds
from cuvil_hw.passes.real import Real, real

MAX_OPERAND_BITS = 24
WIDE_BIAS = 31  # bits of a bias that sums may be widened for
F32_STEP, ON_GRID = 2.0**-23, 2.0**-20  # relative and absolute distance from a grid that is f32's or noise
SAME_SCALE = 1e-5  # relative: scales are stored as f32, their product was rounded once more


def layer(program: Program, operation: level1.TensorOp) -> bool:
    """conv, linear, mat_mul of quantized x and w."""
    op = operation.op
    if not isinstance(op, Conv | Linear | MatMul) or op.acc:
        return False
    x, w = real(operation.operands[0]), real(operation.operands[1])
    if x is None or w is None or not x.per_tensor or max(x.bits, w.bits) > MAX_OPERAND_BITS:
        return False
    out = 0 if not isinstance(op, MatMul) else w.type.rank - 1
    if not w.per_tensor and w.axis != out:
        return False
    scale = x.scale[0] * np.asarray(w.scale)
    zeros = w.zero[:1] if w.common_zero is not None else w.zero
    loc = level1.loc_of(operation)
    bias: Array | None = None
    apart: Array | None = None
    if len(operation.operands) > 2:
        bias = integer_bias(program, operation.operands[2], scale)
        apart = static_array(program, operation.operands[2]) if bias is None else None
        if bias is None and apart is None:
            return False
    weights = const_array(program, w.q)
    acc = accumulator(layer_bounds(op, x.interval, x.zero[0], weights, w.interval, zeros, None, w.type.shape), loc)
    if bias is not None:
        if int(np.abs(bias).max(initial=0)).bit_length() >= max(WIDE_BIAS, dtypes.int_range(acc)[1].bit_length()):
            bias, apart = None, static_array(program, operation.operands[2])
        else:
            acc = accumulator(
                layer_bounds(op, x.interval, x.zero[0], weights, w.interval, zeros, bias, w.type.shape), loc
            )
    put = insert(program, operation)
    operands = [x.q, w.q] if bias is None else [x.q, w.q, put.const(bias, acc)]
    result = put.op(with_fields(op, x_zp=x.zero[0], w_zp=zeros, acc=acc), *operands)
    values = tuple(float(s) for s in (scale[:1] if (scale == scale[0]).all() else scale))
    axis = op.layer_axis % level1.type_of(result).rank
    y = put.op(Dequantize(values, (0,), axis), result)
    if apart is not None:
        spread = np.asarray(apart, np.float32).reshape([-1 if d == axis else 1 for d in range(level1.type_of(y).rank)])
        y = put.op(Add(), y, put.op(BroadcastTo(level1.type_of(y).shape), put.const(spread)))
    replace(operation, y)
    return True


def layer_bounds(
    op: Conv | Linear | MatMul, x: Interval, x_zp: int, w: Array | None, w_range: Interval, w_zp: tuple[int, ...],
    bias: Array | None, shape: tuple[int, ...],
) -> Interval:  # fmt: skip
    """Bounds of the accumulator, with the actual weights where they are constant."""
    if w is not None and not isinstance(op, MatMul):
        return dot_bounds(x, x_zp, w, w_zp, bias)
    if w is not None and w.ndim == 2:
        return dot_bounds(x, x_zp, np.ascontiguousarray(w.T), w_zp, None)
    terms = shape[-2] if isinstance(op, MatMul) else int(np.prod(shape[1:]))
    kind = np.uint64 if w_range.hi >= 1 << 63 else np.int64
    ends = np.asarray([[w_range.lo], [w_range.hi]], kind).repeat(max(terms, 1), axis=1)
    worst = [dot_bounds(x, x_zp, ends, (z,), None) for z in sorted({min(w_zp), max(w_zp)})]
    bounds = worst[0].join(*worst[1:])
    return bounds if bias is None else bounds + Interval(min(int(bias.min()), 0), max(int(bias.max()), 0))


def integer_bias(program: Program, value: SSAValue, scale: Array) -> Array | None:
    """The bias as int64 multiples of s_x · s_w, if it is one within f32's precision; else None."""
    stored = real(value)
    if stored is not None and stored.common_zero is not None:
        q = const_array(program, stored.q)
        if q is not None and np.allclose(stored.scale, scale, rtol=SAME_SCALE, atol=0.0):
            return q.astype(np.int64) - stored.common_zero
    known = static_array(program, value)
    if known is None:
        return None
    exact = np.asarray(known, np.float64) / scale
    near = np.abs(exact - np.rint(exact)) <= np.abs(exact) * F32_STEP + ON_GRID
    return np.rint(exact).astype(np.int64) if near.all() and (np.abs(exact) < 2.0**62).all() else None


def average(program: Program, operation: level1.TensorOp) -> bool:
    """avg_pool and means over spatial dimensions as integer window sums; other means and sums as reduce_sum."""
    op = operation.op
    if not isinstance(op, AvgPool | ReduceMean | ReduceSum):
        return False
    x = real(operation.operands[0])
    if x is None or not x.per_tensor or x.bits > MAX_OPERAND_BITS or (isinstance(op, ReduceSum) and op.acc):
        return False
    if isinstance(op, AvgPool):
        return pool(program, operation, op, x)
    axes = tuple(sorted(op.axes))
    count = int(np.prod([x.type.shape[a] for a in axes]))
    if not axes or count == 0:
        return False
    zero, loc = x.zero[0], level1.loc_of(operation)
    put = insert(program, operation)
    scale = x.scale[0] / count if isinstance(op, ReduceMean) else x.scale[0]
    if x.type.rank >= 3 and axes == tuple(range(2, x.type.rank)):
        n = len(axes)
        acc = accumulator(window_bounds(x.interval, zero, count), loc)
        sums = put.op(SumPool(x.type.shape[2:], (1,) * n, (0,) * 2 * n, (1,) * n, acc, zero), x.q)
        sums = sums if op.keepdims else put.op(Reshape(x.type.shape[:2]), sums)
        replace(operation, put.op(Dequantize((scale,), (0,)), sums))
        return True
    acc = accumulator(window_bounds(x.interval, 0, count), loc)
    sums = put.op(ReduceSum(op.axes, op.keepdims, acc), x.q)
    replace(operation, put.op(Dequantize((scale,), (zero * count,)), sums))
    return True


def pool(program: Program, operation: level1.TensorOp, op: AvgPool, x: Real) -> bool:
    count = int(np.prod(op.kernel))
    acc = accumulator(window_bounds(x.interval, x.zero[0], count), level1.loc_of(operation))
    divisor = op.uniform_divisor(x.type.shape[2:])
    put = insert(program, operation)
    sums = put.op(SumPool(op.kernel, op.strides, op.pads, op.dilations, acc, x.zero[0]), x.q)
    if divisor is not None:
        replace(operation, put.op(Dequantize((x.scale[0] / divisor,), (0,)), sums))
        return True
    counts = np.ones(())
    n = len(op.kernel)
    for d, c in enumerate(op.counts(x.type.shape[2:])):
        counts = counts * np.asarray(c, np.float64).reshape([-1 if e == d else 1 for e in range(n)])
    shape = level1.type_of(sums).shape
    factor = put.op(BroadcastTo(shape), put.const((1 / counts).astype(np.float32)[None, None]))
    replace(operation, put.op(Mul(), put.op(Dequantize(x.scale, (0,)), sums), factor))
    return True

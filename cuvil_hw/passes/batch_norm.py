"""Folds batch norms and per-channel constants into the weights and bias of the layer before; others become mul and add.

before: %1 = conv %x, %w; %2 = batch_norm %1, …         after: %2 = conv %x, %w', %b'
before: %1 = conv %x, %w; %2 = add %1, broadcast(%c)    after: %2 = conv %x, %w, %c
before: %2 = batch_norm %x, …                           after: %2 = add (mul %x, broadcast(%s)), broadcast(%b)

A layer is changed only if nothing else reads its result. Weights kept as dequantize(const) stay so: the magnitude of a
factor goes into their scales, its sign into their integers.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.binary import Add, Mul
from cuvil_hw.ops.integer import Dequantize
from cuvil_hw.ops.norm import BatchNorm
from cuvil_hw.ops.shape import BroadcastTo
from cuvil_hw.passes import dce
from cuvil_hw.passes.edit import (
    Array,
    Inserter,
    const_array,
    insert,
    mnemonic,
    producer,
    replace,
    sole_user,
    static_array,
    until_stable,
)


def run(program: Program) -> None:
    until_stable(program.block, lambda operation: batch_norm(program, operation) or affine(program, operation))
    dce.run(program)


def batch_norm(program: Program, operation: level1.TensorOp) -> bool:
    op = operation.op
    if not isinstance(op, BatchNorm):
        return False
    params = [static_array(program, v) for v in operation.operands[1:]]
    if any(p is None for p in params):
        return False
    scale, bias, mean, var = (np.asarray(p, np.float64) for p in params)
    with np.errstate(all="ignore"):  # a negative variance gives NaN here as it does at run time
        factor = scale / np.sqrt(var + op.eps)
        offset = bias - mean * factor
    x = operation.operands[0]
    kind = level1.type_of(x)
    if kind.rank < 2:
        return False
    put = insert(program, operation)
    folded = into_layer(program, operation, x, factor, offset)
    if folded is None:
        shape = (kind.shape[1], *[1] * (kind.rank - 2))
        spread = [put.op(BroadcastTo(kind.shape), put.const(v.reshape(shape), kind.dtype)) for v in (factor, offset)]
        folded = put.op(Add(), put.op(Mul(), x, spread[0]), spread[1])
    replace(operation, folded)
    deviation = float(np.sqrt(np.square(scale).mean()))
    if deviation > 0 and (mean.any() or (var != 1).any()):  # else it never saw data
        program.notes.setdefault("norms", {})[folded] = deviation  # of what it gave in training, about its means
    return True


def affine(program: Program, operation: level1.TensorOp) -> bool:
    """Fold add, sub, mul or div of a layer's result by a per-channel constant into the layer."""
    name = mnemonic(operation)
    if name not in ("add", "sub", "mul", "div"):
        return False
    for x, c in (operation.operands, reversed(operation.operands)):
        layer = producer(x, "conv", "linear")
        if layer is None or (name in ("sub", "div") and x is not operation.operands[0]):
            continue
        vector = per_channel(program, c, channel_axis(layer), level1.type_of(x).shape)
        if vector is None:
            continue
        one, zero = np.ones_like(vector), np.zeros_like(vector)
        factor = {"mul": vector, "div": 1 / vector if name == "div" and vector.all() else one}.get(name, one)
        offset = {"add": vector, "sub": -vector}.get(name, zero)
        if name == "div" and not vector.all():
            return False
        folded = into_layer(program, operation, x, factor, offset)
        if folded is not None:
            replace(operation, folded)
            return True
    return False


def channel_axis(layer: level1.TensorOp) -> int:
    return layer.spec.layer_axis % level1.type_of(layer.results[0]).rank


def per_channel(program: Program, value: SSAValue, axis: int, shape: tuple[int, ...]) -> Array | None:
    """`value` as one number per channel, in f64, if it varies only along `axis` of `shape`; else None."""
    spread = producer(value, "broadcast_to")
    array = static_array(program, spread.operands[0] if spread is not None else value)
    if array is None:
        return None
    array = np.asarray(array, np.float64).reshape([1] * (len(shape) - array.ndim) + list(array.shape))
    first = array[tuple(slice(None) if d == axis else slice(0, 1) for d in range(array.ndim))]
    if array.size == 0 or not np.array_equal(np.broadcast_to(first, array.shape), array):
        return None
    return np.broadcast_to(first.reshape(-1), (shape[axis],)).copy()


def into_layer(
    program: Program, operation: level1.TensorOp, x: SSAValue, factor: Array, offset: Array
) -> SSAValue | None:
    """x · factor + offset as one layer, when x is a float layer with constant weights that only `operation` reads."""
    layer = producer(x, "conv", "linear")
    kind = level1.type_of(x)
    if layer is None or sole_user(x) is not operation or not dtypes.is_float(kind.dtype):
        return None
    if isinstance(operation.op, BatchNorm) and channel_axis(layer) != 1:
        return None
    scaled = bool((factor != 1).any())
    w, bias = layer.operands[1], np.zeros_like(offset)
    if len(layer.operands) > 2:
        known = static_array(program, layer.operands[2])
        if known is None:
            return None
        bias = np.asarray(known, np.float64)
    put = insert(program, operation)
    if scaled:
        by_factor = multiplied(program, put, w, factor)
        if by_factor is None:
            return None
        w = by_factor
    return put.op(
        layer.op, layer.operands[0], w, put.const(bias * factor + offset, kind.dtype), loc=level1.loc_of(layer)
    )


def multiplied(program: Program, put: Inserter, w: SSAValue, factor: Array) -> SSAValue | None:
    """Constant weights times one factor per output channel, the first dimension."""
    weights = const_array(program, w)
    if weights is not None:
        shaped = factor.reshape(-1, *[1] * (weights.ndim - 1))
        return put.const(weights.astype(np.float64) * shaped, level1.type_of(w).dtype)
    behind = producer(w, "dequantize")
    if behind is None or not isinstance(behind.op, Dequantize):
        return None
    stored, kind = const_array(program, behind.operands[0]), level1.type_of(behind.operands[0])
    if stored is None or any(behind.op.zero_point) or (len(behind.op.scale) > 1 and behind.op.axis != 0):
        return None
    scale = np.abs(factor) * np.asarray(behind.op.scale)
    if not (scale <= np.finfo(np.float32).max).all():
        return None
    dead = scale < np.finfo(np.float32).tiny  # channels that give nothing: f32 holds no such scale
    shaped = np.where(dead, 0, np.sign(factor)).astype(np.int64).reshape(-1, *[1] * (stored.ndim - 1))
    integers = stored.astype(np.int64) * shaped
    lo, hi = dtypes.int_range(kind.dtype)
    width = dtypes.int_width(kind.dtype)
    if integers.size and not lo <= integers.min() <= integers.max() <= hi and width is not None:
        kind = kind.with_dtype(f"i{width[1] + 1}")  # -128 has no opposite of 8 bits
    least = scale[~dead].min(initial=1.0)
    scales = tuple(float(s) for s in np.where(dead, least, scale).astype(np.float32))
    return put.op(Dequantize(scales, (0,), 0), put.const(integers, kind.dtype))

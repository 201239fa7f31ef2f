"""Sums and products of quantized tensors as integer ops. Part of integerize.py.

before: add (dequantize %a), (dequantize %b), read by a quantize
after:  dequantize (add (rescale %a), (rescale %b))      on a common scale with at least 16 fractional bits

The sum is exact where the scales differ by a power of two (so always for fixed<W,I>); else each operand is off by at
most 2^-17 of the larger scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace as with_fields

import numpy as np
from xdsl.ir import SSAValue

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.binary import Add, Mul, Sub
from cuvil_hw.ops.integer import Dequantize, Rescale
from cuvil_hw.ops.shape import BroadcastTo
from cuvil_hw.passes.batch_norm import per_channel
from cuvil_hw.passes.edit import Array, Inserter, insert, mnemonic, producer, replace, static_array, users
from cuvil_hw.passes.real import Real, quantizer, real
from cuvil_hw.quant.arithmetic import Interval, accumulator, power_of_two, requantize

WIDE, FRACTION = 31, 16  # magnitude bits aimed at, fractional bits at least
FACTOR_BITS = 15  # magnitude of a constant factor
ARITHMETIC = (Add, Sub, Mul)  # with an integer form


def scaled(program: Program, operation: level1.TensorOp) -> bool:
    """mul (dequantize %q), positive constant per channel → dequantize with a larger scale: no arithmetic at all."""
    if mnemonic(operation) not in ("mul", "div"):
        return False
    for x, c in (operation.operands, reversed(operation.operands)):
        q = real(x)
        if q is None or q.common_zero is None or (mnemonic(operation) == "div" and x is not operation.operands[0]):
            continue
        kind = level1.type_of(x)
        axis = q.axis if len(q.scale) > 1 else min(1, max(kind.rank - 1, 0))
        factor = per_channel(program, c, axis, kind.shape)
        if factor is None or not (np.isfinite(factor) & (factor > 0)).all():
            continue
        scale = np.asarray(q.scale) * factor if mnemonic(operation) == "mul" else np.asarray(q.scale) / factor
        values = tuple(float(s) for s in (scale[:1] if (scale == scale[0]).all() else scale))
        replace(operation, insert(program, operation).op(Dequantize(values, (q.common_zero,), axis), q.q))
        return True
    return False


def combine(program: Program, operation: level1.TensorOp) -> bool:
    """add, sub, mul whose result is quantized."""
    if not issubclass(operation.spec, ARITHMETIC):
        return False
    if not any(quantizer(u) is not None for u in users(operation.results[0])):
        return False
    sides = [real(v) for v in operation.operands]
    consts = [static_array(program, v) if r is None else None for v, r in zip(operation.operands, sides, strict=True)]
    if any(r is None and c is None for r, c in zip(sides, consts, strict=True)) or sides == [None, None]:
        return False
    if any(r is not None and r.common_zero is None for r in sides):
        return False
    if any(c is not None and not np.isfinite(c).all() for c in consts):
        return False  # no integer is an infinity: the op stays as it is, in floats
    put = insert(program, operation)
    if issubclass(operation.spec, Mul):
        result = product(put, operation, sides, consts)
    else:
        result = total(put, mnemonic(operation), operation.operands, sides, consts, level1.loc_of(operation))
    if result is None:
        return False
    replace(operation, result)
    return True


def reach(side: Real | None, const: Array | None) -> float:
    """The largest magnitude, as a real number."""
    if side is None:
        return float(np.abs(const).max(initial=0.0)) if const is not None else 0.0
    assert side.common_zero is not None
    return max(abs(side.interval.lo - side.common_zero), abs(side.interval.hi - side.common_zero)) * max(side.scale)


def total(
    put: Inserter,
    name: str,
    values: Sequence[SSAValue],
    sides: Sequence[Real | None],
    consts: Sequence[Array | None],
    loc: str,
) -> SSAValue:
    """add or sub, by `name`, of two `values`, each quantized (`sides`) or constant (`consts`)."""
    reals = [s for s in sides if s is not None]
    magnitude = sum(reach(s, c) for s, c in zip(sides, consts, strict=True))
    if not math.isfinite(magnitude):
        raise CuvilError(f"{loc}: a constant or scale is NaN or infinite, which no integer is; correct the model")
    scale = common_scale(reals, len(reals) == 2, magnitude)
    bound = math.ceil(magnitude / scale) + 2
    dtype = accumulator(Interval(-bound, bound), loc)
    plain = len(reals) == 2 and all(r.scale == (scale,) and r.common_zero == 0 for r in reals)
    if plain and reals[0].type.dtype == reals[1].type.dtype:
        operands = [r.q for r in reals]
    else:
        operands = [
            widened(put, s, scale, dtype, loc) if s is not None else on_scale(put, v, c, scale, dtype)
            for v, s, c in zip(values, sides, consts, strict=True)
        ]
    op = Add(dtype) if name == "add" else Sub(dtype)
    return put.op(Dequantize((scale,), (0,)), put.op(op, *operands))


def common_scale(reals: list[Real], both: bool, magnitude: float) -> float:
    """The scale of a sum: the smaller of two scales that differ by a power of two, else a fine fraction of the
    larger."""
    scales = sorted({s for r in reals for s in r.scale})
    shifts = [power_of_two(s / scales[0]) for s in scales]
    if both and all(k is not None and k <= FRACTION for k in shifts):
        return scales[0]
    largest = scales[-1]
    room = WIDE - math.ceil(math.log2(max(magnitude / largest, 1.0) + 1))
    return math.ldexp(largest, -max(FRACTION, min(room, 20)))


def widened(put: Inserter, side: Real, scale: float, dtype: str, loc: str) -> SSAValue:
    """The operand on the common scale, without zero point."""
    zero = side.common_zero
    assert zero is not None
    ratios = [s / scale for s in side.scale]
    return put.op(requantize(ratios, side.type, dtype, zero, 0, side.axis, loc), side.q)


def on_scale(put: Inserter, value: SSAValue, const: Array | None, scale: float, dtype: str) -> SSAValue:
    """A constant on the common scale; what was broadcast stays small."""
    spread = producer(value, "broadcast_to")
    if spread is not None:
        const = static_array(put.program, spread.operands[0])
    assert const is not None
    q = put.const(np.rint(np.asarray(const, np.float64) / scale).astype(np.int64), dtype)
    return q if spread is None else put.op(BroadcastTo(level1.type_of(value).shape), q)


def product(
    put: Inserter, operation: level1.TensorOp, sides: list[Real | None], consts: list[Array | None]
) -> SSAValue | None:
    if any(s is not None and (s.bits > 24 or len(s.scale) > 1) for s in sides):
        return None
    scales, bounds = [], []
    for side, const in zip(sides, consts, strict=True):
        if side is not None:
            assert side.common_zero is not None
            scales.append(side.scale[0])
            bounds.append(side.interval - Interval(side.common_zero, side.common_zero))
        else:
            top = reach(None, const)
            scales.append(2.0 ** (math.frexp(top)[1] - FACTOR_BITS) if top else 1.0)
            bounds.append(Interval(-(1 << FACTOR_BITS), 1 << FACTOR_BITS))
    operand = accumulator(bounds[0].join(bounds[1]), level1.loc_of(operation))
    acc = accumulator((bounds[0] * bounds[1]).join(*bounds), level1.loc_of(operation))
    reals = [s for s in sides if s is not None]
    if len(reals) == 2 and all(r.common_zero == 0 for r in reals) and reals[0].type.dtype == reals[1].type.dtype:
        operands = [r.q for r in reals]
    else:
        operands = [
            centred(put, s, operand) if s is not None else on_scale(put, v, c, scale, operand)
            for v, s, c, scale in zip(operation.operands, sides, consts, scales, strict=True)
        ]
    return put.op(Dequantize((scales[0] * scales[1],), (0,)), put.op(with_fields(Mul(), acc=acc), *operands))


def centred(put: Inserter, side: Real, dtype: str) -> SSAValue:
    """The operand less its zero point, exactly."""
    assert side.common_zero is not None
    return put.op(Rescale((2,), 1, dtype, side.common_zero, 0), side.q)

"""Products of quantized tensors as integer ops. Part of integerize.py.

before: mul (dequantize %a), (dequantize %b), read by a quantize         after: dequantize (mul %a, %b {acc = …})
before: mul (dequantize %a), constants > 0 per channel                   after: dequantize %a, with other scales
"""

from __future__ import annotations

import numpy as np

from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.binary import Mul
from cuvil_hw.ops.integer import Dequantize, Rescale
from cuvil_hw.ops.interval import Interval
from cuvil_hw.passes.batch_norm import per_channel
from cuvil_hw.passes.edit import insert, mnemonic, replace, users
from cuvil_hw.passes.quantize.arithmetic import accumulator
from cuvil_hw.passes.real import quantizer, real


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
    """mul of two quantized tensors whose result is quantized."""
    if not issubclass(operation.spec, Mul) or not any(quantizer(u) is not None for u in users(operation.results[0])):
        return False
    x, y = (real(v) for v in operation.operands)
    if x is None or y is None or any(r.common_zero is None or r.bits > 24 or len(r.scale) > 1 for r in (x, y)):
        return False
    loc = level1.loc_of(operation)
    bounds = [r.interval - Interval(r.zero[0], r.zero[0]) for r in (x, y)]
    narrow = accumulator(bounds[0].join(bounds[1]), loc)
    acc = accumulator((bounds[0] * bounds[1]).join(*bounds), loc)
    put = insert(program, operation)
    if x.common_zero == y.common_zero == 0 and x.type.dtype == y.type.dtype:
        operands = [x.q, y.q]
    else:
        operands = [put.op(Rescale((1,), (0,), narrow, r.zero[0]), r.q) for r in (x, y)]
    product = put.op(Mul(acc), *operands)
    replace(operation, put.op(Dequantize((x.scale[0] * y.scale[0],), (0,)), product))
    return True

"""Removes scales of 0: the values that they dequantize are 0 whatever the integers are. Part of integerize.py, whose
rules divide by scales.

before: dequantize %w {scale = [0.5, 0.0]}        after: dequantize %w' {scale = [0.5, 0.5]}, %w' = zero point there
A channel whose weights are all 0 gets the scale 0 from quantizers that derive the scale from the largest weight.
"""

from __future__ import annotations

import numpy as np

from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import Array
from cuvil_hw.ops.binary import Mul
from cuvil_hw.ops.integer import Dequantize, along
from cuvil_hw.ops.shape import BroadcastTo
from cuvil_hw.passes.edit import const_array, insert, replace, walk
from cuvil_hw.passes.real import Real, real


def run(program: Program) -> None:
    for operation in walk(program.block):
        x = real(operation.results[0]) if isinstance(operation.op, Dequantize) else None
        if x is not None and 0 in x.scale:
            revive(program, operation, x)


def revive(program: Program, operation: level1.TensorOp, x: Real) -> None:
    """The same reals without a scale of 0. Of constants the integers change, else a factor of 0 and 1 follows."""
    other = min((s for s in x.scale if s), default=1.0)
    op = Dequantize(tuple(s or other for s in x.scale), x.zero, x.axis)
    put, kind = insert(program, operation), x.type
    alive = along(tuple(float(s != 0) for s in x.scale), kind.rank, x.axis, "f32")
    q: Array | None = const_array(program, x.q)
    if q is not None:
        zero = along(x.zero, kind.rank, x.axis, "i64")
        replace(operation, put.op(op, put.const(np.where(alive == 1, q, zero), kind.dtype)))
        return
    factor = put.op(BroadcastTo(kind.shape), put.const(alive))
    replace(operation, put.op(Mul(), put.op(op, x.q), factor))

"""Keeps weights that are stored as integers as integers beside floats: the scale is applied to the sum, or to the row
that is looked up.

before: linear %x, (dequantize %w {scale per output}), %b     after: add (mul (linear %x, %w'), scale), %b
before: gather (dequantize %table), %i                        after: dequantize (gather %table, %i)
%w' is %w less its zero point. Only for targets that multiply a float by an integer as fast as by a float.
"""

from __future__ import annotations

from dataclasses import replace as with_fields

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import Array
from cuvil_hw.ops.binary import Add, Mul
from cuvil_hw.ops.integer import along
from cuvil_hw.ops.nn import Linear
from cuvil_hw.ops.shape import BroadcastTo, Gather
from cuvil_hw.passes import dce
from cuvil_hw.passes.edit import const_array, insert, replace, walk
from cuvil_hw.passes.real import Real, real

MAX_BITS = 16  # of a weight less its zero point: exact in f32


def run(program: Program) -> None:
    for operation in walk(program.block):
        if isinstance(operation.op, Linear) and not operation.op.acc:
            linear(program, operation)
        elif isinstance(operation.op, Gather):
            gather(program, operation)
    dce.run(program)


def narrowest(values: Array) -> str | None:
    """The smallest type of whole bytes that holds the values; None above MAX_BITS."""
    for bits in (8, MAX_BITS):
        lo, hi = dtypes.int_range(f"i{bits}")
        if values.size and lo <= values.min() and values.max() <= hi:
            return f"i{bits}"
    return None


def linear(program: Program, operation: level1.TensorOp) -> None:
    x, w = operation.operands[:2]
    stored = real(w)
    q = const_array(program, stored.q) if stored is not None else None
    if stored is None or q is None or level1.type_of(x).dtype != "f32" or not (stored.per_tensor or stored.axis == 0):
        return
    centred = q.astype(np.int64) - along(stored.zero, 2, stored.axis, "i64")
    dtype = narrowest(centred)
    if dtype is None:
        return
    put, shape = insert(program, operation), level1.type_of(operation.results[0]).shape
    y = put.op(operation.op, x, put.const(centred, dtype))
    y = put.op(Mul(), y, put.op(BroadcastTo(shape), put.const(np.asarray(stored.scale, np.float32))))
    if len(operation.operands) > 2:
        y = put.op(Add(), y, put.op(BroadcastTo(shape), operation.operands[2]))
    replace(operation, y)


def gather(program: Program, operation: level1.TensorOp) -> None:
    table: Real | None = real(operation.operands[0])
    if table is None or not table.per_tensor or const_array(program, table.q) is None:
        return
    put = insert(program, operation)
    rows = put.op(operation.op, table.q, operation.operands[1])
    replace(operation, put.op(with_fields(table.dequantize(), axis=0), rows))

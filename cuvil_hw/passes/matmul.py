"""A matrix product with constant right side is a dense layer.

before: %w = const : 64x10; %y = matmul %x, %w        after: %t = const : 10x64; %y = linear %x, %t
A right side kept as dequantize(const) stays quantized: the integers are transposed, its axis follows.
"""

from __future__ import annotations

from dataclasses import replace as with_fields

import numpy as np
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.integer import Dequantize
from cuvil_hw.ops.nn import Linear
from cuvil_hw.passes.edit import Inserter, const_array, insert, producer, replace, walk


def run(program: Program) -> None:
    for operation in walk(program.block):
        if operation.name != level1.PREFIX + "mat_mul":
            continue
        x, w = operation.operands[:2]
        if level1.type_of(w).rank != 2 or not dtypes.is_float(level1.type_of(x).dtype):
            continue
        put = insert(program, operation)
        turned = transposed(put, w)
        if turned is not None:
            replace(operation, put.op(Linear(), x, turned))


def transposed(put: Inserter, w: SSAValue) -> SSAValue | None:
    """The transpose of a constant matrix, possibly behind dequantize."""
    array = const_array(put.program, w)
    if array is not None:
        return put.const(np.ascontiguousarray(array.T), level1.type_of(w).dtype)
    quantized = producer(w, "dequantize")
    if quantized is None:
        return None
    inner = transposed(put, quantized.operands[0])
    op = quantized.op
    assert isinstance(op, Dequantize)
    return None if inner is None else put.op(with_fields(op, axis=1 - op.axis if len(op.scale) > 1 else 0), inner)

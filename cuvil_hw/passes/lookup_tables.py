"""Replaces elementwise arithmetic between one dequantize and one quantize by a table. Part of integerize.py.

before: %1 = dequantize %x; %2 = sigmoid %1; %3 = mul %1, %2; %y = quantize %3        after: %y = lut %x {values = …}
All these ops are evaluated on every value that %x can have, so the table has the bits of the float reference.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import Operation, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops import base
from cuvil_hw.ops.integer import Lut
from cuvil_hw.passes.edit import Array, insert, owner, replace, splat_of
from cuvil_hw.passes.move import keeps_range
from cuvil_hw.passes.real import Real, quantizer, real

MAX_BITS = 12  # of the values that index a table


def fits(operation: Operation | None) -> bool:
    """Whether the op can be part of a table: arithmetic on f32, the same at every index."""
    if not isinstance(operation, level1.TensorOp) or not operation.spec.pointwise or len(operation.results) != 1:
        return False
    return all(level1.type_of(v).dtype == "f32" for v in (*operation.operands, *operation.results))


def costs_nothing(operation: Operation | None) -> bool:
    """Whether the op needs no table by itself, since quantize moves through it: relu, clamp."""
    return fits(operation) and keeps_range(operation)


def tabulate(program: Program, operation: level1.TensorOp) -> bool:
    q = quantizer(operation)
    if q is None:
        return False
    found = cone(program, operation.operands[0])
    if found is None:
        return False
    source, ops = found
    if all(map(costs_nothing, ops)):
        return False
    lo, hi = dtypes.int_range(source.type.dtype)
    grid = np.arange(lo, hi + 1).astype(dtypes.to_numpy(source.type.dtype))
    reals = base.evaluate(source.dequantize(), [grid])[0]
    values: dict[SSAValue, Array] = {}
    for op in ops:
        arrays = []
        for v in op.operands:
            splat = splat_of(program, v)
            arrays.append(
                values[v] if v in values else reals if splat is None else np.full(grid.shape, splat, reals.dtype)
            )
        values[op.results[0]] = base.evaluate(op.op, arrays)[0]
    table = base.evaluate(q, [values[operation.operands[0]]])[0]
    lut = Lut(tuple(int(v) for v in table), q.dtype)
    replace(operation, insert(program, operation).op(lut, source.q, loc=level1.loc_of(ops[-1])))
    return True


def cone(program: Program, root: SSAValue) -> tuple[Real, list[level1.TensorOp]] | None:
    """The f32 elementwise ops that compute `root`, in order, if they read only one narrow quantized tensor and single
    numbers."""
    source: Real | None = None
    order: list[level1.TensorOp] = []
    seen: set[SSAValue] = set()
    # Not by recursion: a cone may be a thousand ops deep.
    todo: list[SSAValue | level1.TensorOp] = [root]
    while todo:
        value = todo.pop()
        if isinstance(value, level1.TensorOp):  # its operands are done
            order.append(value)
            continue
        if value in seen or splat_of(program, value) is not None:
            continue
        seen.add(value)
        leaf = real(value)
        if leaf is not None:
            other = source is not None and not (leaf.q is source.q and leaf.like(source))
            if not leaf.per_tensor or leaf.bits > MAX_BITS or other:
                return None
            source = leaf
            continue
        operation = owner(value)
        if not isinstance(operation, level1.TensorOp) or not fits(operation):
            return None
        todo += [operation, *reversed(operation.operands)]
    return None if source is None or not order else (source, order)

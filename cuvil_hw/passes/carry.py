"""Moves quantize and dequantize out of loops, so that loops carry, slice and stack integers. Part of integerize.py.

before: %h, %x = loop_begin %h0, %xs; %1 = quantize %h; %2 = quantize %x; …; %n = dequantize %q; loop_end %n, %n
after:  %h, %x = loop_begin (quantize %h0), (quantize %xs); …; %1, %2 = loop_end %q, %q; dequantize %1, dequantize %2

A state moves where a step reads it through one quantization only and leaves it on the same grid, so that no bit
changes.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.integer import Quantize
from cuvil_hw.ops.loop import LoopBegin, LoopEnd
from cuvil_hw.passes.edit import insert, replace, users
from cuvil_hw.passes.real import Real, quantizer, real

MOST_BITS = 16  # of what moves: accumulators stay where they are


def loop(program: Program, operation: level1.TensorOp) -> bool:
    """For the loop that `operation` ends: everything that can move, at once."""
    end, begin = operation.op, operation.operands[0].owner
    if not isinstance(end, LoopEnd) or not isinstance(begin, level1.TensorOp):
        return False
    first = begin.op
    assert isinstance(first, LoopBegin)
    n = first.carried
    grids: list[Quantize | None] = [_grid(result) for result in begin.results[1:]]
    exits: list[Real | None] = [_narrow(value) for value in operation.operands[1:]]
    for i in range(n):
        if not _agree(grids[i], exits[i]):
            grids[i] = exits[i] = None
    if not any(grids) and not any(exits):
        return False
    put = insert(program, begin)
    given = [v if q is None else put.op(q, v) for v, q in zip(begin.operands, grids, strict=True)]
    for old, new, q in zip(begin.results, put.ops(first, *given), [None, *grids], strict=True):
        for reader in users(old) if q is not None else ():
            if reader is not operation:
                assert isinstance(reader, level1.TensorOp)
                reader.results[0].replace_all_uses_with(new)  # a quantize, which is left without readers
        old.replace_all_uses_with(new)
    put = insert(program, operation)
    made = [v if x is None else x.q for v, x in zip(operation.operands[1:], exits, strict=True)]
    results = put.ops(end, operation.operands[0], *made)
    floats = [v if x is None else put.op(x.dequantize(), v) for v, x in zip(results, exits, strict=True)]
    replace(operation, *floats)
    if begin.parent is not None and all(r.first_use is None for r in begin.results):
        replace(begin, *begin.results)
    return True


def _grid(value: SSAValue) -> Quantize | None:
    """The one quantization through which a value is read; None where it is read otherwise."""
    found = [quantizer(user) for user in users(value)]
    q = found[0] if found else None
    same = q is not None and len(q.scale) == 1 and q.rounding != "sign" and all(other == q for other in found)
    return q if same else None


def _narrow(value: SSAValue) -> Real | None:
    x = real(value)
    return x if x is not None and x.per_tensor and x.bits <= MOST_BITS else None


def _agree(q: Quantize | None, x: Real | None) -> bool:
    """Whether a state is read on the grid on which a step leaves it."""
    if q is None or x is None:
        return False
    return (x.scale, x.zero[:1], x.type.dtype) == (q.scale, q.zero_point[:1], q.dtype)

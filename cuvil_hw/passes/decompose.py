"""Expands composite ops into smaller ones, for targets that have no form of them as a whole.

before: %1 = softmax %0 {axis = 1}        after: reduce_max, broadcast_to, sub, exp, reduce_sum, broadcast_to, div
"""

from __future__ import annotations

from collections.abc import Callable

from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.base import Op, decompose
from cuvil_hw.ops.cast import Cast
from cuvil_hw.passes.edit import insert, replace, walk
from cuvil_hw.types import TensorType

Wanted = Callable[[Op, tuple[TensorType, ...], tuple[TensorType, ...]], bool]


def every(op: Op, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> bool:
    """Expand every op that has no loops of its own."""
    return op.composite


def run(program: Program, wanted: Wanted = every) -> None:
    """Expand ops for which `wanted(op, operand types, result types)` holds, including those that a decomposition
    produces."""
    again = True
    while again:
        again = False
        for operation in walk(program.block):
            op = operation.op
            types = [tuple(level1.type_of(v) for v in values) for values in (operation.operands, operation.results)]
            if op.composite and wanted(op, types[0], types[1]):
                replace(operation, *decompose(op, insert(program, operation), operation.operands, Cast))
                again = True

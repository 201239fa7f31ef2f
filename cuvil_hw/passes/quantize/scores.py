"""Ops that stay float before a softmax: scaling and masking of attention scores.

before: %1 = mat_mul %q, %k; %2 = mul %1, 0.25; %3 = add %2, %mask; %4 = softmax %3
after quantization: %1 from integers, %2 … %4 on floats, as the softmax is

A mask holds -1e4, -1e9 or -infinity for excluded positions. On a grid that reaches that far, all scores would be one
number; and the softmax computes with floats anyway.
"""

from __future__ import annotations

from xdsl.ir import Operation

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.reduce import LogSoftmax, ReduceMax, ReduceMin, Softmax
from cuvil_hw.passes.edit import users


def scores(program: Program) -> frozenset[Operation]:
    """The ops that only compute inputs of a softmax, directly or through each other, and what is compared with them."""
    found: set[Operation] = set()
    tests: set[Operation] = set()  # comparisons, and extremes that only these read: "is a whole row masked?"
    for operation in reversed(list(program.block.ops)):
        if not isinstance(operation, level1.TensorOp):
            continue
        readers = {u for r in operation.results for u in users(r)}
        floats = any(dtypes.is_float(level1.type_of(r).dtype) for r in operation.results)
        if not floats or (_is_extreme(operation) and readers <= tests):
            tests.add(operation)
        elif operation.spec.scales_scores or operation.spec.moves:
            rest = {u for u in readers if u not in found and not _is_softmax(u)}
            if len(rest) < len(readers) and rest <= tests:
                found |= {operation, *filter(_is_extreme, rest)}
    return frozenset(found)


def _is_softmax(operation: Operation) -> bool:
    return isinstance(operation, level1.TensorOp) and issubclass(operation.spec, Softmax | LogSoftmax)


def _is_extreme(operation: Operation) -> bool:
    return isinstance(operation, level1.TensorOp) and issubclass(operation.spec, ReduceMax | ReduceMin)

"""Loops as the ops of all their steps, one after another, for targets that have no loops around kernels.

before: %i, %h, %x = loop_begin %h0, %xs {steps = 2}; %n = add %h, %x; %hN, %ys = loop_end %i, %n, %n {steps = 2}
after:  %1 = add %h0, (reshape (slice %xs)); %2 = add %1, …; %ys = concat (reshape %1), (reshape %2); %hN is %2
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import Operation, SSAValue

from cuvil_hw.ir import level1
from cuvil_hw.ir.loops import LevelLoop, loops_of
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.shape import Concat, Reshape, Slice
from cuvil_hw.passes.edit import Inserter, erase, insert


def run(program: Program, most: int = 0) -> None:
    """`most`: only loops of at most that many steps which have none within them; 0: all."""
    while loops := [x for x in loops_of(program.block) if not most or (x.first.steps <= most and _flat(x))]:
        unroll(program, loops[0])  # the innermost ones come first


def _flat(loop: LevelLoop) -> bool:
    return all(isinstance(o, Operation) for o in loop.body)


def unroll(program: Program, loop: LevelLoop) -> None:
    put, begin, end = insert(program, loop.end), loop.first, loop.last
    states = [initial for initial, *_ in loop.carried]
    made: list[list[SSAValue]] = []
    for step in range(begin.steps):
        stands: dict[SSAValue, SSAValue] = {
            **{before: state for (_, before, _, _), state in zip(loop.carried, states, strict=True)},
            **{x: element(put, whole, begin.place(n, step)) for n, (whole, x) in enumerate(loop.sliced)},
        }
        if loop.begin.results[0] in {v for o in loop.body if isinstance(o, Operation) for v in o.operands}:
            stands[loop.begin.results[0]] = put.const(np.asarray(step, np.int64))
        for operation in loop.body:
            assert isinstance(operation, Operation), "inner loops are unrolled first"
            program.block.insert_op_before(operation.clone(stands), loop.end)
        results = [stands.get(v, v) for v in loop.end.operands[1:]]
        states, stacked = results[: begin.carried], results[begin.carried :]
        made.append(stacked)
    stacks = []
    for n in range(len(end.reverse)):
        parts = [element_of(put, each[n]) for each in (made[::-1] if end.reverse[n] else made)]
        stacks.append(parts[0] if len(parts) == 1 else put.op(Concat(0), *parts))
    for result, value in zip(loop.end.results, [*states, *stacks], strict=True):
        result.replace_all_uses_with(value)
    for operation in (loop.end, *reversed([o for o in loop.body if isinstance(o, Operation)]), loop.begin):
        erase(operation)


def element(put: Inserter, whole: SSAValue, i: int) -> SSAValue:
    """whole[i]."""
    shape = level1.type_of(whole).shape
    starts, sizes = (i, *[0] * (len(shape) - 1)), (1, *shape[1:])
    return put.op(Reshape(shape[1:]), put.op(Slice(starts, sizes, (1,) * len(shape)), whole))


def element_of(put: Inserter, value: SSAValue) -> SSAValue:
    """The value with an axis of one element in front."""
    return put.op(Reshape((1, *level1.type_of(value).shape)), value)

"""Every op into a group of its own: no fusion.

before: %1 = conv %x, %w, %b; %2 = relu %1
after:  %1 = group "conv_0" (%x, %w, %b) { conv }; %2 = group "relu_1" (%1) { relu }
"""

from __future__ import annotations

from cuvil_hw.ir.program import Program
from cuvil_hw.passes.fuse import Group, computing, emit, split_results


def run(program: Program) -> None:
    split_results(program)
    order = {operation: i for i, operation in enumerate(program.block.ops)}
    for number, operation in enumerate(computing(program.block)):
        emit(program.block, Group([operation], operation), number, order)

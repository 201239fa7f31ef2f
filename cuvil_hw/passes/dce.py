"""Dead code: ops whose results nobody reads.

before: %0 = conv …; %1 = relu %0 (unread); return %0        after: %0 = conv …; return %0
Every op of level1 is pure, so only reads matter.
"""

from __future__ import annotations

from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.edit import erase

_PURE = (level1.TensorOp, level1.ConstOp, level1.GroupOp)


def run(program: Program) -> None:
    for operation in reversed(list(program.block.ops)):
        if isinstance(operation, _PURE) and all(r.first_use is None for r in operation.results):
            erase(operation)

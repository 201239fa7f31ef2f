"""Which ops are written inside the statement that uses them, and what memory an op writes."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import arith, func, memref, scf
from xdsl.ir import Block, Operation, SSAValue

from cuvil_hw.ir.level2 import CopyOp, StreamOp, StreamReadOp

STATEMENTS = (memref.AllocaOp, memref.AllocOp, StreamOp, func.CallOp)


def writes(op: Operation, callees: Mapping[str, set[int]] | None = None) -> list[SSAValue]:
    """Memories that an op itself writes."""
    match op:
        case memref.StoreOp():
            return [op.memref]
        case StreamReadOp():
            return [op.word]
        case CopyOp():
            return [op.target]
        case func.CallOp():
            known = (callees or {}).get(op.callee.root_reference.data)
            return [v for i, v in enumerate(op.arguments) if known is None or i in known]
    return []


def is_expression(op: scf.IfOp) -> bool:
    """Can it be written as `c ? a : b`: one result, and on both sides only values that are used once?"""
    if len(op.results) != 1 or not op.false_region.blocks:
        return False
    for region in (op.true_region, op.false_region):
        for inner in region.block.ops:
            if isinstance(inner, scf.YieldOp | arith.ConstantOp):
                continue
            if isinstance(inner, scf.IfOp):
                if not is_expression(inner):
                    return False
            elif inner.regions or writes(inner) or isinstance(inner, STATEMENTS):
                return False
            if any(len(list(r.uses)) > 1 for r in inner.results):
                return False
    return True


def home(op: Operation) -> Block | None:
    """The block whose statement an op is written in: conditional expressions are part of the statement around them."""
    block = op.parent_block()
    while block is not None and isinstance(parent := block.parent_op(), scf.IfOp) and is_expression(parent):
        block = parent.parent_block()
    return block

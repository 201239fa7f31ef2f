"""Which ops are written inside the statement that uses them, and what memory an op writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.dialects import arith, func, memref, scf, vector
from xdsl.ir import Block, Operation, Region, SSAValue

from cuvil_hw.ir.annotations import Multiplier
from cuvil_hw.ir.level2 import AddProductsOp, CopyOp, MultiplyPairOp, StreamOp, StreamReadOp

STATEMENTS = (memref.AllocaOp, memref.AllocOp, StreamOp, MultiplyPairOp, func.CallOp)


def writes(op: Operation, callees: Mapping[str, set[int]] | None = None) -> list[SSAValue]:
    """The memories that an op writes itself, not those of ops inside it."""
    match op:
        case memref.StoreOp():
            return [op.memref]
        case vector.StoreOp():
            return [op.base]
        case StreamReadOp():
            return [op.word]
        case CopyOp():
            return [op.target]
        case AddProductsOp():
            return [op.y]
        case func.CallOp():
            known = (callees or {}).get(op.callee.root_reference.data)
            return [v for i, v in enumerate(op.arguments) if known is None or i in known]
    return []


@dataclass(frozen=True, slots=True)
class Inline:
    """What is written as part of which statement, in IR that doesn't change meanwhile: each answer is found once, or
    choices nested N deep, such as a concatenation of N parts, would take N³ steps."""

    _expressions: dict[scf.IfOp, bool] = field(default_factory=dict)
    _homes: dict[Block, Block | None] = field(default_factory=dict)

    def is_expression(self, op: scf.IfOp) -> bool:
        """Can it be written as `c ? a : b`: one result, and on both sides only values that are used once?"""
        known = self._expressions.get(op)
        if known is None:
            known = self._expressions[op] = len(op.results) == 1 and all(map(self._one_value, op.regions))
        return known

    def _one_value(self, side: Region) -> bool:
        if not side.blocks:
            return False
        for inner in side.block.ops:
            if isinstance(inner, scf.YieldOp | arith.ConstantOp):
                continue
            if isinstance(inner, scf.IfOp):
                if not self.is_expression(inner):
                    return False
            elif isinstance(inner, arith.MuliOp) and Multiplier.name in inner.attributes:
                return False  # it stands in a variable of its own
            elif inner.regions or writes(inner) or isinstance(inner, STATEMENTS):
                return False
            if any(len(list(r.uses)) > 1 for r in inner.results):
                return False
        return True

    def home(self, op: Operation) -> Block | None:
        """The block whose statement an op is written in: conditional expressions are part of the statement around
        them."""
        block, inside = op.parent_block(), []
        while block is not None and block not in self._homes:
            parent = block.parent_op()
            if not isinstance(parent, scf.IfOp) or not self.is_expression(parent):
                break
            inside.append(block)
            block = parent.parent_block()
        found = block if block is None else self._homes.get(block, block)
        self._homes.update(dict.fromkeys(inside, found))
        return found

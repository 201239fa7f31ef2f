"""Whether a process of a streaming design is one pipelined loop nest, which a fabric runs without a break.

A break between two loops, a division that is no shift, a lane that only a run chooses: each costs cycles or logic that
no estimate knows of.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, SSAValue

from cuvil_hw.ir.annotations import ArrayPartition, Distance, Independent, Pipeline, StreamWord, Unroll, noted
from cuvil_hw.ir.level2 import StreamReadOp, StreamWriteOp

_DIVISIONS = (
    arith.DivSIOp, arith.DivUIOp, arith.RemSIOp, arith.RemUIOp, arith.FloorDivSIOp, arith.CeilDivSIOp,
    arith.CeilDivUIOp,
)  # fmt: skip


def breaks(process: func.FuncOp) -> list[str]:
    """What keeps a process from being one perfect nest of loops of known length, the innermost pipelined and all loops
    in it unrolled; words of streams whose lanes a run chooses; divisions by what is no power of two; memories read
    and written in the nest that don't say after how many steps a value is used again. Empty: nothing does."""
    found: list[str] = []
    nests = [op for op in process.body.block.ops if isinstance(op, scf.ForOp)]
    if len(nests) != 1:
        return [f"{len(nests)} loops, one after the other"]
    for op in process.body.block.ops:
        if isinstance(op, StreamReadOp | StreamWriteOp | scf.IfOp):
            found.append(f"{op.name} outside of the loop")
    loop = nests[0]
    while noted(loop, Pipeline) is None:
        inner = [op for op in loop.body.block.ops if not isinstance(op, scf.YieldOp)]
        if len(inner) != 1 or not isinstance(inner[0], scf.ForOp):
            return [*found, "a loop that isn't pipelined holds more than another loop"]
        found += _open(loop)
        loop = inner[0]
    found += _open(loop)
    for op in loop.body.walk():
        if isinstance(op, scf.ForOp) and noted(op, Unroll) is None:
            found.append("a loop in the pipelined one isn't unrolled")
        elif isinstance(op, _DIVISIONS) and not _shift(op):
            found.append(f"{op.name} by what is no power of two")
        elif isinstance(op, memref.LoadOp | memref.StoreOp):
            found += _lanes(op)
    for op in process.body.block.ops:
        if isinstance(op, memref.AllocaOp):
            found += _meets(op)
    return found


def _open(loop: scf.ForOp) -> Iterator[str]:
    """A loop whose length a run decides; the number of samples, an argument, is one of the host's."""
    for bound in (loop.lb, loop.ub, loop.step):
        if not isinstance(bound.owner, arith.ConstantOp | Block):
            yield "a loop of unknown length"


def _shift(op: Operation) -> bool:
    by = op.operands[1].owner
    if not isinstance(by, arith.ConstantOp) or not isinstance(by.value, IntegerAttr):
        return False
    value = int(by.value.value.data)
    return value > 0 and value & (value - 1) == 0


def _fixed(index: SSAValue) -> bool:
    """Whether an index is known once the loops over lanes are unrolled."""
    owner = index.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        return isinstance(loop, scf.ForOp) and noted(loop, Unroll) is not None
    return isinstance(owner, arith.ConstantOp) or (
        isinstance(owner, arith.AddiOp | arith.MuliOp) and all(_fixed(v) for v in owner.operands)
    )


def _lanes(op: memref.LoadOp | memref.StoreOp) -> Iterator[str]:
    memory = op.memref.owner
    if isinstance(memory, memref.AllocaOp) and noted(memory, StreamWord) and not all(map(_fixed, op.indices)):
        yield "a lane of a word is chosen by the run"


def _meets(memory: memref.AllocaOp) -> Iterator[str]:
    """A memory that isn't in registers, in which a step finds what an earlier one left and changes it."""
    parted = noted(memory, ArrayPartition)
    apart = set(parted.data) if parted is not None else set()
    uses = [use.operation for use in memory.memref.uses]
    loads = {
        op.res
        for op in uses
        if isinstance(op, memref.LoadOp) and not all(_fixed(i) or d in apart for d, i in enumerate(op.indices))
    }
    changed = any(isinstance(op, memref.StoreOp) and loads & _origins(op.value) for op in uses)
    if changed and noted(memory, Distance) is None and noted(memory, Independent) is None:
        yield "a running value in a memory that doesn't say when it is used again"


def _origins(value: SSAValue) -> set[SSAValue]:
    """All values that one is computed from, itself included."""
    found: set[SSAValue] = set()
    stack = [value]
    while stack:
        here = stack.pop()
        if here not in found:
            found.add(here)
            stack += here.owner.operands if isinstance(here.owner, Operation) else ()
    return found

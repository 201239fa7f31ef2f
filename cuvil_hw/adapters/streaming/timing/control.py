"""The control of a level2 process: what decides when it reads and writes its streams, without the data.

Kept are stream accesses, the loops and branches around them, loops that a pipeline pragma gives a time, and backwards
from there every number that a bound, a condition or an index of these needs. Words are dropped; a process whose control
depends on what a word holds can't be timed, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, MemRefType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from cuvil_hw.adapters.streaming.timing import code
from cuvil_hw.adapters.streaming.timing.code import Control
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.annotations import Pipeline, number_of
from cuvil_hw.ir.legal import place
from cuvil_hw.ir.level2 import StreamReadOp, StreamWriteOp

Table = Callable[[str], list[int]]  # values of a module's table by its symbol
WORDS = (StreamReadOp, StreamWriteOp)


class Untimed(CuvilError):
    """Why a process can't be timed."""


def control(f: func.FuncOp, table: Table, streams: Mapping[int, int]) -> Control:
    """The control of process `f` for one sample. `streams`: their numbers, by position among the arguments. Raises
    Untimed."""
    kept = _Kept()
    kept.block(f.body.block)
    writer = _Writer(kept, table)
    for n, arg in enumerate(f.body.block.args):
        if isinstance(arg.type, IndexType):
            writer.values[arg] = writer.program.constant(1)  # samples of one call
        else:
            writer.streams[arg] = streams.get(n, -1)
    writer.block(f.body.block)
    writer.program.put(code.END)
    return writer.program


def _bits(kind: Attribute) -> int:
    return int(kind.width.data) if isinstance(kind, IntegerType) else 64


class _Kept:
    """Backwards from streams and pipelined loops: `ops` and `values` that they need."""

    def __init__(self) -> None:
        self.ops: set[Operation] = set()
        self.values: set[SSAValue] = set()

    def block(self, block: Block) -> None:
        for op in block.walk():
            if isinstance(op, WORDS) or (isinstance(op, scf.ForOp) and number_of(op, Pipeline) is not None):
                self.op(op)

    def op(self, op: Operation | None) -> None:
        while op is not None and op not in self.ops and not isinstance(op, func.FuncOp):
            self.ops.add(op)
            match op:
                case scf.ForOp():
                    for v in (op.lb, op.ub, op.step):
                        self.value(v)
                case scf.IfOp():
                    self.value(op.cond)
                case memref.StoreOp():
                    for v in (op.value, *op.indices):
                        self.value(v)
                case memref.LoadOp():
                    for v in op.indices:
                        self.value(v)
                    self.memory(op.memref, op)
                case _ if not isinstance(op, WORDS):
                    for v in op.operands:
                        self.value(v)
            op = op.parent_op()

    def value(self, v: SSAValue) -> None:
        if v in self.values:
            return
        self.values.add(v)
        owner = v.owner
        if isinstance(owner, Block):
            loop = owner.parent_op()
            if isinstance(loop, scf.ForOp) and (n := list(owner.args).index(v)):  # type: ignore[arg-type]
                self.carried(loop, n - 1)
            self.op(loop)
        elif isinstance(owner, scf.ForOp):
            self.op(owner)
            self.carried(owner, list(owner.results).index(v))  # type: ignore[arg-type]
        elif isinstance(owner, scf.IfOp):
            self.op(owner)
            for region in owner.regions:
                self.value(_yielded(region.block, list(owner.results).index(v)))  # type: ignore[arg-type]
        else:
            self.op(owner)

    def carried(self, loop: scf.ForOp, n: int) -> None:
        for v in (loop.iter_args[n], loop.body.block.args[n + 1], loop.results[n], _yielded(loop.body.block, n)):
            self.value(v)

    def memory(self, memory: SSAValue, reader: Operation) -> None:
        if memory in self.values:
            return
        self.values.add(memory)
        self.op(memory.owner if isinstance(memory.owner, Operation) else None)
        for use in memory.uses:
            op = use.operation
            if isinstance(op, StreamReadOp) or isinstance(memory.owner, Block):
                raise Untimed(f"level2: {reader.name}{place(reader)}: when it moves words depends on what they hold")
            if isinstance(op, memref.StoreOp):
                self.op(op)


def _yielded(block: Block, n: int) -> SSAValue:
    last = block.last_op
    assert isinstance(last, scf.YieldOp)
    return last.operands[n]


class _Writer:
    def __init__(self, kept: _Kept, table: Table) -> None:
        self.kept, self.table = kept, table
        self.program = Control()
        self.values: dict[SSAValue, int] = {}
        self.streams: dict[SSAValue, int] = {}
        self.memories: dict[SSAValue, int] = {}

    def block(self, block: Block) -> None:
        for op in block.ops:
            if op in self.kept.ops:
                self.op(op)

    def set(self, v: SSAValue, source: int) -> None:
        """A register of its own for `v`, with what `source` holds."""
        if v not in self.values:
            self.values[v] = self.program.register()
        self.program.put(code.MOVE, self.values[v], source)

    def op(self, op: Operation) -> None:
        put = self.program.put
        match op:
            case StreamReadOp():
                put(code.READ, self.streams[op.stream])
            case StreamWriteOp():
                put(code.WRITE, self.streams[op.stream])
            case scf.ForOp():
                self.loop(op)
            case scf.IfOp():
                self.branch(op)
            case arith.ConstantOp():
                if not isinstance(op.value, IntegerAttr):
                    raise Untimed(f"level2: {op.name}{place(op)}: control by floats")
                value = int(op.value.value.data)
                self.values[op.result] = self.program.constant(value & 1 if _bits(op.result.type) == 1 else value)
            case memref.AllocaOp():
                kind = op.memref.type
                assert isinstance(kind, MemRefType)
                self.memories[op.memref] = self.program.memory([0] * prod(kind.get_shape()))
            case memref.GetGlobalOp():
                self.memories[op.memref] = self.program.memory(self.table(op.name_.root_reference.data))
            case memref.LoadOp():
                at = self.index(op.memref, op.indices)
                put(code.LOAD, self.fresh(op.res), self.memories[op.memref], at)
            case memref.StoreOp():
                put(code.STORE, self.memories[op.memref], self.index(op.memref, op.indices), self.values[op.value])
            case _:
                self.number(op)

    def fresh(self, v: SSAValue) -> int:
        return self.values.setdefault(v, self.program.register())

    def index(self, memory: SSAValue, indices: Any) -> int:
        """The position in a memory's list, row by row."""
        kind, put = memory.type, self.program.put
        assert isinstance(kind, MemRefType)
        shape = kind.get_shape()
        total = -1
        for n, i in enumerate(indices):
            stride, term = prod(shape[n + 1 :]), self.values[i]
            if stride != 1:
                scaled = self.program.register()
                put(code.MUL, scaled, term, self.program.constant(stride), 64)
                term = scaled
            if total >= 0:
                summed = self.program.register()
                put(code.ADD, summed, total, term, 64)
                term = summed
            total = term
        return total if total >= 0 else self.program.constant(0)

    def loop(self, op: scf.ForOp) -> None:
        p, body = self.program, op.body.block
        low, high, step = (self.values[v] for v in (op.lb, op.ub, op.step))
        ii = number_of(op, Pipeline) or 0
        carried = [n for n, r in enumerate(op.results) if r in self.kept.values]
        empty = not carried and not any(o in self.kept.ops for o in body.ops)
        if empty and _one(op.step):  # time passes, nothing else
            trips = p.register()
            p.put(code.SUB, trips, high, low, 64)
            p.put(code.TICKS, trips, ii)
            return
        for n in carried:
            self.set(body.args[n + 1], self.values[op.iter_args[n]])
        i = self.fresh(body.args[0])
        p.put(code.MOVE, i, low)
        skip = p.put(code.IF_GE, i, high, 0)
        start = p.here
        if ii:
            p.put(code.TICK, ii)
        self.block(body)
        self.assign([(body.args[n + 1], _yielded(body, n)) for n in carried])
        p.put(code.NEXT, i, step, high, start)
        p.rows[skip][3] = p.here
        for n in carried:
            self.set(op.results[n], self.values[body.args[n + 1]])

    def assign(self, pairs: list[tuple[SSAValue, SSAValue]]) -> None:
        """All at once: a value may take what another one held."""
        held = []
        for _, source in pairs:
            held.append(self.program.register())
            self.program.put(code.MOVE, held[-1], self.values[source])
        for (to, _), h in zip(pairs, held, strict=True):
            self.set(to, h)

    def branch(self, op: scf.IfOp) -> None:
        p = self.program
        results = [(n, r) for n, r in enumerate(op.results) if r in self.kept.values]
        to_else = p.put(code.IF_ZERO, self.values[op.cond], 0)
        for side, region in enumerate(op.regions):
            if side:
                if not region.blocks or not (results or any(o in self.kept.ops for o in region.block.ops)):
                    break
                to_end = p.put(code.JUMP, 0)
                p.rows[to_else][2] = p.here
                to_else = -to_end
            self.block(region.block)
            for n, r in results:
                self.set(r, self.values[_yielded(region.block, n)])
        if to_else < 0:
            p.rows[-to_else][1] = p.here
        else:
            p.rows[to_else][2] = p.here

    def number(self, op: Operation) -> None:
        args = [self.values[v] for v in op.operands]
        result = op.results[0]
        bits, put = _bits(result.type), self.program.put
        to = self.fresh(result)
        match op:
            case arith.CmpiOp():
                put(code.COMPARE, to, *args, int(op.predicate.value.data), _bits(op.lhs.type))
            case arith.SelectOp():
                put(code.SELECT, to, *args)
            case arith.ExtUIOp():
                put(code.UNSIGNED, to, args[0], _bits(op.input.type))
            case arith.ExtSIOp():
                put(code.SIGNED, to, args[0], _bits(op.input.type), 1)
            case arith.TruncIOp():
                put(code.SIGNED, to, args[0], bits)
            case arith.IndexCastOp():
                put(code.SIGNED, to, args[0], min(bits, _bits(op.input.type)))
            case _ if op.name in _BINARY:
                put(_BINARY[op.name], to, *args, bits)
            case _:
                raise Untimed(f"level2: {op.name}{place(op)}: control by this op has no time model")


def _one(step: SSAValue) -> bool:
    op = step.owner
    return isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr) and op.value.value.data == 1


_BINARY: Mapping[str, int] = {
    "arith.addi": code.ADD, "arith.subi": code.SUB, "arith.muli": code.MUL, "arith.andi": code.AND,
    "arith.ori": code.OR, "arith.xori": code.XOR, "arith.shli": code.SHL, "arith.shrsi": code.SHRS,
    "arith.shrui": code.SHRU, "arith.minsi": code.MIN, "arith.maxsi": code.MAX, "arith.divsi": code.DIVS,
    "arith.remsi": code.REMS, "arith.floordivsi": code.FLOORDIV, "arith.ceildivsi": code.CEILDIV,
    "arith.divui": code.DIVS, "arith.remui": code.REMS,  # of indices from 0 up
}  # fmt: skip

"""One step of a process, whatever its loops and branches: what it reads, computes, keeps and writes, as one graph.

The pipelined nest of a flat process (ir/flat.py) becomes counters that carry into one another; unrolled loops are
walked, branches become choices. Memories whose elements lie apart are registers; others, and tables, stay memories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import IntegerType, MemRefType
from xdsl.ir import Block, Operation, SSAValue

from cuvil_hw.adapters.streaming.rtl.graph import Graph, Signal, bits_for, cut, word_range
from cuvil_hw.adapters.streaming.rtl.scalars import NotHardware, constant, pair, refused, scalar, sums, width
from cuvil_hw.ir import annotations as notes
from cuvil_hw.ir.adders import from_rows
from cuvil_hw.ir.level2 import AddProductsOp, MultiplyPairOp, StreamReadOp, StreamType, StreamWriteOp

Path = tuple[Signal, ...]  # conditions, all of which hold
Lane = tuple[int, ...]
Cells = dict[tuple[str, Lane], Signal]  # what elements of registers hold, by memory and place


@dataclass(frozen=True)
class WordPort:
    """A stream that a process reads or writes: `lanes` numbers of `bits` bits."""

    name: str
    lanes: int
    bits: int


@dataclass(frozen=True)
class Kept:
    """A number that is kept from step to step. `first`: after reset, None for anything."""

    name: str
    now: Signal
    next: Signal
    first: int | None


@dataclass(eq=False)
class Ram:
    """A memory. `stores`: of a step, in order; loads find what was there when it began. `distance`: steps after which a
    place is met again, at least; 0: never."""

    name: str
    words: int
    bits: int
    kind: str
    distance: int
    stores: list[tuple[Path, Signal, Lane, Signal]] = field(default_factory=list)


@dataclass
class Step:
    """`reads`: whether a step reads a word; `writes`: whether it writes one, and its lanes. `ii`: cycles from one step
    to the next, at least; `steps`: of a sample; `column`: what a lane of a table holds, word by word; `bound`: what a
    table is made of."""

    name: str
    graph: Graph
    ii: int
    steps: int
    reads: dict[WordPort, Signal]
    writes: dict[WordPort, tuple[Signal, list[Signal]]]
    registers: list[Kept]
    rams: list[Ram]
    column: Callable[[str, Lane], list[int]]
    bound: Mapping[str, str]


Table = Callable[[str], Any]  # the array of a table by its symbol


def step(process: func.FuncOp, table: Table) -> Step:
    """What a step of `process` does. Raises NotHardware."""
    name = process.sym_name.data
    walk = _Walk(table)
    for arg in process.body.block.args:
        kind = arg.type
        if not isinstance(kind, StreamType) or not isinstance(kind.element, IntegerType):
            raise NotHardware(f"rtl: @{name}: {arg.name_hint} is {kind}; hardware joins by streams of integers")
        walk.channels[arg] = WordPort(arg.name_hint or f"p{arg.index}", kind.lanes.data, kind.element.width.data)
    ii = 1
    for op in process.body.block.ops:
        if isinstance(op, scf.ForOp) and not walk.started:
            ii = walk.nest(op)
        elif isinstance(op, scf.ForOp | StreamReadOp | StreamWriteOp):
            raise refused(op, "stands beside the nest that is the process")
        elif not isinstance(op, func.ReturnOp):
            walk.op(op, ())
    return walk.made(name, ii)


class _Walk:
    def __init__(self, table: Table) -> None:
        self.graph = Graph()
        self.table = table
        self.channels: dict[SSAValue, WordPort] = {}
        self.values: dict[SSAValue, Signal] = {}
        self.names: dict[SSAValue, str] = {}  # of memories
        self.kinds: dict[str, MemRefType[Any]] = {}
        self.cells: Cells = {}
        self.first: dict[tuple[str, Lane], int] = {}
        self.rams: dict[str, Ram] = {}
        self.lane_dims: dict[str, tuple[int, ...]] = {}
        self.tables: dict[SSAValue, str] = {}
        self.bound: dict[str, str] = {}
        self.reads: dict[WordPort, list[Path]] = {}
        self.writes: dict[WordPort, list[tuple[Path, list[Signal]]]] = {}
        self.counters: list[Kept] = []
        self.started = False
        self.steps = 1

    # -- control -------------------------------------------------------------------------------------------------------

    def nest(self, loop: scf.ForOp) -> int:
        """The counters of a nest, and one step of its body."""
        graph, loops = self.graph, [loop]
        self.first = {cell: node.lo for cell, node in self.cells.items() if node.value is not None}
        self.cells, self.started = {}, True
        while notes.noted(loop, notes.Pipeline) is None:
            inner = [op for op in loop.body.block.ops if not isinstance(op, scf.YieldOp)]
            if len(inner) != 1 or not isinstance(inner[0], scf.ForOp):
                raise refused(loop, "a loop that isn't pipelined holds more than another loop")
            loop = inner[0]
            loops.append(loop)
        carry, made = graph.const(1), []
        for n, each in reversed(list(enumerate(loops))):
            low, trips, by = self._bounds(each)
            self.steps *= trips
            name = notes.text_of(each, notes.Name) or f"i{n}"
            now = graph.leaf(0, max(trips - 1, 0), ("state", name, n)) if trips > 1 else graph.const(0)
            last = graph.equal(now, graph.const(max(trips - 1, 0)))
            self.values[each.body.block.args[0]] = graph.total(
                [(1, graph.mul(now, graph.const(by))), (1, graph.const(low))]
            )
            if trips > 1:
                up = graph.select(last, graph.const(0), graph.add(now, graph.const(1)))
                made.append(Kept(name, now, graph.select(carry, up, now), 0))
            carry = graph.both([carry, last])
        self.counters = made
        self.block(loop.body.block, ())
        return notes.number_of(loop, notes.Pipeline) or 1

    def _bounds(self, loop: scf.ForOp) -> tuple[int, int, int]:
        for v in (loop.lb, loop.ub, loop.step):
            if isinstance(v.owner, arith.ConstantOp):
                self.values[v] = constant(self.graph, v.owner)
        low, high, by = (self.values[v].value for v in (loop.lb, loop.ub, loop.step))
        if low is None or high is None or by is None:
            raise refused(loop, "a loop whose length only the run knows")
        trips = len(range(low, high, by))
        if not trips:
            raise refused(loop, "a loop without a step: hardware streams tensors with elements")
        return low, trips, by

    def block(self, block: Block, path: Path) -> None:
        for op in block.ops:
            self.op(op, path)

    def op(self, op: Operation, path: Path) -> None:
        match op:
            case scf.YieldOp():
                pass
            case arith.ConstantOp():
                self.values[op.result] = constant(self.graph, op)
            case scf.ForOp():
                self.unrolled(op, path)
            case scf.IfOp():
                self.branch(op, path)
            case memref.AllocaOp():
                self.memory(op)
            case memref.GetGlobalOp():
                symbol = op.name_.root_reference.data
                self.tables[op.memref], self.bound[symbol] = symbol, notes.text_of(op, notes.Bind)
                self.lane_dims[symbol] = _apart(op)
            case memref.LoadOp():
                at = [self.values[i] for i in op.indices]
                load = self.lookup if op.memref in self.tables else self.load
                self.values[op.res] = load(op, at, path)
            case memref.StoreOp():
                self.store(op, [self.values[i] for i in op.indices], self.values[op.value], path)
            case StreamReadOp():
                self.read(op, path)
            case StreamWriteOp():
                lanes = [self.cell(op.word, (n,)) for n in range(self.channels[op.stream].lanes)]
                self.writes.setdefault(self.channels[op.stream], []).append((path, lanes))
            case AddProductsOp():
                self.add_products(op)
            case MultiplyPairOp():
                made = pair(self.graph, op, [self.values[v] for v in op.operands])
                self.values.update(zip(op.results, made, strict=True))
            case _:
                self.values[op.results[0]] = scalar(self.graph, op, [self.values[v] for v in op.operands])

    def add_products(self, op: AddProductsOp) -> None:
        rows, _ = self.table(op.symbol)
        additions = from_rows(rows.tolist())
        bits = width(self.kinds[self.names[op.y]].element_type)
        assert bits is not None
        made = sums(self.graph, additions, [self.cell(op.x, (n,)) for n in range(additions.inputs)])
        for n, total in enumerate(made):
            whole = self.graph.add(self.cell(op.y, (n,)), total)
            self.cells[self.names[op.y], (n,)] = self.graph.wrap(whole, bits)

    def unrolled(self, loop: scf.ForOp, path: Path) -> None:
        if notes.noted(loop, notes.Unroll) is None:
            raise refused(loop, "a loop in the pipelined one isn't unrolled")
        low, trips, by = self._bounds(loop)
        body = loop.body.block
        carried = [self.values[v] for v in loop.iter_args]
        for n in range(trips):
            self.values[body.args[0]] = self.graph.const(low + n * by)
            self.values.update(zip(body.args[1:], carried, strict=True))
            self.block(body, path)
            assert body.last_op is not None
            carried = [self.values[v] for v in body.last_op.operands]
        self.values.update(zip(loop.results, carried, strict=True))

    def branch(self, op: scf.IfOp, path: Path) -> None:
        condition = self.values[op.cond]
        before, sides, results = self.cells, [], []
        for region, holds in zip(op.regions, (condition, self.graph.invert(condition)), strict=True):
            self.cells = dict(before)
            if region.blocks and holds.value != 0:
                self.block(region.block, path if holds.value == 1 else (*path, holds))
            if region.blocks and op.results:
                last = region.block.last_op
                assert last is not None
                known = self.values if holds.value != 0 else {v: self.graph.const(0) for v in last.operands}
                results.append([known[v] for v in last.operands])
            sides.append(self.cells)
        self.cells = dict(before)
        for cell in dict.fromkeys([*sides[0], *sides[1]]):
            a, b = (side[cell] if cell in side else self._now(cell) for side in sides)
            self.cells[cell] = self.graph.select(condition, a, b)
        for n, result in enumerate(op.results):
            self.values[result] = self.graph.select(condition, results[0][n], results[1][n])

    # -- memories ------------------------------------------------------------------------------------------------------

    def memory(self, op: memref.AllocaOp) -> None:
        kind = op.memref.type
        assert isinstance(kind, MemRefType)
        bits = width(kind.element_type)
        if bits is None:
            raise refused(op, f"holds {kind.element_type}; the hardware level computes in integers")
        stem = notes.text_of(op, notes.Name) or op.memref.name_hint or "m"
        name, n = stem, 1
        while name in self.kinds:
            name, n = f"{stem}{n}", n + 1
        self.names[op.memref], self.kinds[name] = name, kind
        shape, lanes = list(kind.get_shape()), _apart(op)
        apart = notes.noted(op, notes.ArrayPartition)
        if notes.noted(op, notes.StreamWord) is None and len(apart.data if apart else ()) < len(shape):
            words = prod(size for d, size in enumerate(shape) if d not in lanes)
            if words > 1:
                distance = notes.number_of(op, notes.Distance) or (0 if notes.noted(op, notes.Independent) else 1)
                self.rams[name] = Ram(name, words, bits, notes.text_of(op, notes.Bind), distance)
        self.lane_dims[name] = lanes

    def _now(self, cell: tuple[str, Lane]) -> Signal:
        """What an element holds when a step begins."""
        name, lane = cell
        bits = width(self.kinds[name].element_type)
        assert bits is not None
        if not self.started:
            return self.graph.const(self.first.get(cell, 0))
        return self.graph.leaf(*word_range(bits), ("state", name, lane))

    def cell(self, memory: SSAValue, lane: Lane) -> Signal:
        cell = (self.names[memory], lane)
        if cell not in self.cells:
            self.cells[cell] = self._now(cell)
        return self.cells[cell]

    def read(self, op: StreamReadOp, path: Path) -> None:
        channel = self.channels[op.stream]
        for other in self.reads.setdefault(channel, []):
            if not self.exclusive(other, path):
                raise refused(op, "two words of one stream in a step")
        self.reads[channel].append(path)
        lo, hi = word_range(channel.bits)
        for n in range(channel.lanes):
            self.cells[self.names[op.word], (n,)] = self.graph.leaf(lo, hi, ("word", channel.name, n))

    def exclusive(self, a: Path, b: Path) -> bool:
        """Whether two places of a step can't both be come by."""
        return any(self.graph.invert(x) is y for x in a for y in b)

    def _place(self, name: str, at: Sequence[Signal], op: Operation, shape: Sequence[int]) -> tuple[Signal, Lane]:
        """(address, lane) of an element of a memory that stays one."""
        address, lane, stride = self.graph.const(0), [], 1
        for d in reversed(range(len(shape))):
            if d in self.lane_dims[name]:
                known = at[d].value
                if known is None:
                    raise refused(op, "a lane that only the run chooses")
                lane.append(known)
            else:
                address = self.graph.add(address, self.graph.mul(at[d], self.graph.const(stride)))
                stride *= shape[d]
        return address, tuple(reversed(lane))

    def load(self, op: memref.LoadOp, at: Sequence[Signal], path: Path) -> Signal:
        name, graph = self.names[op.memref], self.graph
        shape = list(self.kinds[name].get_shape())
        if name not in self.rams:
            found: Signal | None = None
            for place, chosen in self._places(at, shape):
                held = self.cell(op.memref, place)
                found = held if found is None else graph.select(chosen, held, found)
            assert found is not None
            return found
        ram = self.rams[name]
        address, lane = self._place(name, at, op, shape)
        address = graph.wrap(address, bits_for(0, ram.words - 1), False)
        result = graph.load(address, *word_range(ram.bits), ("ram", name, lane))
        for earlier, where, stored_lane, value in ram.stores:  # of this step, which the memory doesn't have yet
            if stored_lane != lane or self.exclusive(earlier, path):
                continue
            hit = graph.both([*(c for c in earlier if c not in path), graph.equal(where, address)])
            result = graph.select(hit, value, result)
        return result

    def _places(self, at: Sequence[Signal], shape: Sequence[int]) -> list[tuple[Lane, Signal]]:
        """Elements that indices may mean, each with the condition under which they do."""
        choices = [[i.value] if i.value is not None else range(n) for i, n in zip(at, shape, strict=True)]
        return [
            (tuple(p), self.graph.both(self.graph.equal(i, self.graph.const(k)) for i, k in zip(at, p, strict=True)))
            for p in product(*choices)
        ]

    def store(self, op: memref.StoreOp, at: Sequence[Signal], value: Signal, path: Path) -> None:
        name, graph = self.names[op.memref], self.graph
        kind = self.kinds[name]
        shape = list(kind.get_shape())
        if name not in self.rams:
            for place, chosen in self._places(at, shape):
                self.cells[name, place] = graph.select(chosen, value, self.cell(op.memref, place))
            return
        ram = self.rams[name]
        address, lane = self._place(name, at, op, shape)
        ram.stores.append((path, graph.wrap(address, bits_for(0, ram.words - 1), False), lane, value))

    def lookup(self, op: memref.LoadOp, at: Sequence[Signal], path: Path) -> Signal:
        """An element of a table."""
        symbol = self.tables[op.memref]
        kind = op.memref.type
        assert isinstance(kind, MemRefType)
        address, lane = self._place(symbol, at, op, list(kind.get_shape()))
        column = self.column(symbol, lane)
        if address.value is not None:
            return self.graph.const(column[address.value])
        if min(column) == max(column):
            return self.graph.const(column[0])
        address = self.graph.wrap(address, bits_for(0, len(column) - 1), False)
        return self.graph.load(address, min(column), max(column), ("rom", symbol, lane))

    def column(self, symbol: str, lane: Lane) -> list[int]:
        """What one lane of a table holds, word by word."""
        array, bits = self.table(symbol)
        where = dict(zip(self.lane_dims[symbol], lane, strict=True))
        index = tuple(where.get(d, slice(None)) for d in range(array.ndim))
        return [cut(int(v), bits) for v in array[index].reshape(-1)]

    # -- the whole -----------------------------------------------------------------------------------------------------

    def made(self, name: str, ii: int) -> Step:
        graph = self.graph
        reads = {c: graph.either(graph.both(p) for p in paths) for c, paths in self.reads.items()}
        writes = {}
        for channel, given in self.writes.items():
            path, lanes = given[0]
            want = graph.both(path)
            for other, more in given[1:]:
                if not all(self.exclusive(other, p) for p, _ in given if p is not other):
                    raise NotHardware(f"rtl: @{name}: two words of {channel.name} in a step")
                condition = graph.both(other)
                lanes = [graph.select(condition, b, a) for a, b in zip(lanes, more, strict=True)]
                want = graph.bitwise("or", want, condition)
            writes[channel] = (want, [graph.wrap(v, channel.bits) for v in lanes])
        registers = list(self.counters)
        for (memory, lane), after in self.cells.items():
            now = self._now((memory, lane))
            bits = width(self.kinds[memory].element_type)
            assert bits is not None
            label = "_".join([memory, *map(str, lane)])
            registers.append(Kept(label, now, graph.wrap(after, bits), self.first.get((memory, lane))))
        rams = list(self.rams.values())
        return Step(name, graph, ii, self.steps, reads, writes, registers, rams, self.column, self.bound)


def _apart(op: memref.AllocaOp | memref.GetGlobalOp) -> tuple[int, ...]:
    """Dimensions whose elements lie apart or side by side."""
    found = [notes.noted(op, kind) for kind in (notes.ArrayPartition, notes.Reshape)]
    return tuple(sorted({d for note in found if note is not None for d in note.data}))

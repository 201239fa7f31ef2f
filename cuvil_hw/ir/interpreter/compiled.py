"""A level2 function as a Python function, written once and run many times.

Every op is one statement, so that the line on which a run fails says which op it was. A function whose threads or
processes wait for one another is a generator: it yields what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import TracebackType
from typing import Any

from xdsl.dialects import arith, func, gpu, memref, scf, vector
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, MemRefType, VectorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from cuvil_hw.ir.adders import Adders, from_rows
from cuvil_hw.ir.annotations import Space, text_of
from cuvil_hw.ir.interpreter.scalars import expression, number
from cuvil_hw.ir.interpreter.values import Fault, Values, signed
from cuvil_hw.ir.lanes import AddPairsOp, RescaleOp, SplatPairOp
from cuvil_hw.ir.level2 import (
    AddProductsOp,
    CopyOp,
    Dot4Op,
    LoadWordOp,
    MultiplyPairOp,
    ShuffleXorOp,
    StreamReadOp,
    StreamType,
    StreamWriteOp,
)

WAITS = (StreamReadOp, StreamWriteOp, gpu.BarrierOp, ShuffleXorOp)
BARRIER = "barrier"
THREAD: Mapping[type[Operation], str] = {
    gpu.ThreadIdOp: "thread",
    gpu.BlockIdOp: "block",
    gpu.BlockDimOp: "threads",
    gpu.GridDimOp: "blocks",
}


@dataclass(slots=True)
class Compiled:
    """A level2 function as a Python function.

    Attributes:
        run: `run(*arguments, thread, block, threads, blocks, shared)`, with memories as lists and streams as Stream;
            a generator where `waits`.
        shared: memories of a block, by number.
        ops: the op that each line of `text` stands for.
    """

    function: func.FuncOp
    text: str
    run: Callable[..., Any]
    waits: bool
    ops: Mapping[int, Operation]

    @property
    def file(self) -> str:
        return f"<level2 @{self.function.sym_name.data}>"

    def op_of(self, trace: TracebackType | None) -> Operation | None:
        """The op of this function that raised, by the traceback of what it raised."""
        found = None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.file:
                found = self.ops.get(trace.tb_lineno)
            trace = trace.tb_next
        return found


def compiled(f: func.FuncOp, tables: Mapping[str, Values], clipped: dict[int, int]) -> Compiled:
    """`tables`: values of the module's tables; `clipped`: where values that `saturate` clips are counted, by layer."""
    waits = any(isinstance(op, WAITS) for op in f.walk())
    writer = _Writer({"clipped": clipped, "Fault": Fault, "tables": tables, "BARRIER": BARRIER})
    writer.names.update(outside=_outside, copy_runs=_copy_runs, load_word=_load_word, dot4=_dot4)
    writer.names.update(add_products=_add_products, add_pairs=_add_pairs, fused=_fused, rescale=_rescale)
    writer.function(f, waits)
    text = "\n".join(writer.lines) + "\n"
    made = Compiled(f, text, lambda: None, waits, writer.ops)
    exec(compile(text, made.file, "exec"), writer.names)
    made.run = writer.names["run"]
    return made


@dataclass
class _Writer:
    names: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    ops: dict[int, Operation] = field(default_factory=dict)
    values: dict[SSAValue, str] = field(default_factory=dict)
    depth: int = 0
    at: Operation | None = None

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)
        if self.at is not None:
            self.ops[len(self.lines)] = self.at

    def new(self, value: SSAValue) -> str:
        name = f"v{len(self.values)}"
        self.values[value] = name
        return name

    def function(self, f: func.FuncOp, waits: bool) -> None:
        arguments = list(f.body.block.args)
        given = ", ".join([self.new(a) for a in arguments])
        self.line(f"def run({given}{', ' if given else ''}thread=0, block=0, threads=1, blocks=1, shared=None):")
        self.depth += 1
        for a in arguments:
            if isinstance(a.type, MemRefType) and min(a.type.get_shape(), default=0) < 0:
                inner = prod(a.type.get_shape()[1:])
                self.line(f"{self.values[a]}_n = len({self.values[a]}) // {max(inner, 1)}")
            elif isinstance(a.type, StreamType):
                name = self.values[a]
                self.line(f"{name}_words, {name}_depth = {name}.words, {name}.depth")
        self.block(f.body.block)
        if waits:
            self.line("yield from ()")
        self.depth -= 1

    def block(self, block: Block, results: Sequence[str] = ()) -> None:
        """All ops; what a yield gives is assigned to `results`."""
        start = len(self.lines)
        for op in block.ops:
            self.at = op
            if isinstance(op, scf.YieldOp):
                if results:
                    self.line(f"{', '.join(results)} = {', '.join(self.values[v] for v in op.operands)}")
            elif not isinstance(op, func.ReturnOp):
                self.op(op)
        if len(self.lines) == start:
            self.line("pass")

    def op(self, op: Operation) -> None:
        match op:
            case arith.ConstantOp():
                self._constant(op)
            case memref.GetGlobalOp():
                self.line(f"{self.new(op.memref)} = tables[{op.name_.root_reference.data!r}]")
            case memref.AllocaOp():
                self._alloca(op)
            case memref.LoadOp():
                access = self.element(op.memref, op.indices)
                self.line(f"{self.new(op.res)} = {access}")
            case memref.StoreOp():
                self._store(op)
            case scf.ForOp():
                self._for(op)
            case scf.IfOp():
                self._if(op)
            case StreamReadOp() | StreamWriteOp():
                self._word(op)
            case vector.LoadOp():
                at, end = self._run_of_lanes(op.base, op.indices, op.result.type)
                self.line(f"{self.new(op.result)} = {self.values[op.base]}[{at}:{end}]")
            case vector.StoreOp():
                at, end = self._run_of_lanes(op.base, op.indices, op.vector.type)
                self.line(f"{self.values[op.base]}[{at}:{end}] = {self.values[op.vector]}")
            case vector.BroadcastOp():
                self.line(f"{self.new(op.vector)} = [{self.values[op.source]}] * {_lanes(op.vector.type)}")
            case vector.FMAOp():
                given = [self.values[v] for v in op.operands]
                self.line(f"{self.new(op.results[0])} = list(map(fused, {', '.join(given)}))")
            case SplatPairOp():
                at, end = self._run_of_lanes(op.memref, op.indices, VectorType(IntegerType(16), [2]))
                half = _lanes(op.output.type) // 2
                self.line(f"{self.new(op.output)} = {self.values[op.memref]}[{at}:{end}] * {half}")
            case AddPairsOp():
                args = [self.values[v] for v in op.operands]
                self.line(f"{self.new(op.output)} = add_pairs({', '.join(args)})")
            case RescaleOp():
                limits = (op.offset, op.shift, op.zero, op.low, op.high, op.even)
                args = [*(self.values[v] for v in op.operands), *(str(n.value.data) for n in limits)]
                self.line(f"{self.new(op.output)} = rescale({', '.join(args)})")
            case gpu.BarrierOp():
                self.line("yield BARRIER")
            case ShuffleXorOp():
                value, lanes = self.values[op.value], self.values[op.lanes]
                self.line(f"{self.new(op.output)} = yield ({value}, {lanes})")
            case CopyOp():
                ends = (op.source, op.source_at, op.target, op.target_at, op.count)
                numbers = (op.segments, op.source_stride, op.target_stride)
                args = [*(self.values[v] for v in ends), *(str(n.value.data) for n in numbers)]
                self.line(f"copy_runs({', '.join(args)})")
            case LoadWordOp():
                flat = self.flat(op.memref, op.indices)
                self.line(f"{self.new(op.output)} = load_word({self.values[op.memref]}, {flat})")
            case MultiplyPairOp():
                shared, *others = (self.values[v] for v in op.operands)
                for result, other in zip(op.results, others, strict=True):
                    self.line(f"{self.new(result)} = {shared} * {other}")
            case AddProductsOp():
                name, flat = f"graph_{len(self.names)}", self.names["tables"][op.symbol]
                self.names[name] = from_rows([flat[n : n + 6] for n in range(0, len(flat), 6)])
                kind = op.y.type
                assert isinstance(kind, MemRefType)
                bits = kind.element_type.bitwidth
                self.line(f"add_products({name}, {self.values[op.x]}, {self.values[op.y]}, {bits})")
            case Dot4Op():
                args = [self.values[v] for v in op.operands]
                self.line(f"{self.new(op.output)} = dot4({', '.join(args)})")
            case _ if type(op) in THREAD:
                dimension = getattr(op.properties.get("dimension"), "data", "x")
                text = THREAD[type(op)] if str(dimension) == "x" else ("1" if "dim" in op.name else "0")
                self.line(f"{self.new(op.results[0])} = {text}")
            case _:
                given = [self.values[v] for v in op.operands]
                if isinstance(op.results[0].type, VectorType):
                    lane = [f"lane{n}" for n in range(len(given))]
                    text = expression(op, lane, self.names)
                    text = f"[{text} for {', '.join(lane)}, in zip({', '.join(given)})]"
                else:
                    text = expression(op, given, self.names)
                self.line(f"{self.new(op.results[0])} = {text}")

    def _run_of_lanes(self, memory: SSAValue, indices: Sequence[SSAValue], kind: Attribute) -> tuple[str, str]:
        """Python for the first position of a vector in a memory's list, and the one after its last; all of its lanes
        have to lie inside the innermost dimension."""
        lanes, sizes = _lanes(kind), self.sizes(memory)
        checks = [f"0 <= {self.values[i]} < {n}" for i, n in zip(indices, sizes, strict=True)]
        checks[-1] = f"0 <= {self.values[indices[-1]]} <= {sizes[-1]} - {lanes}"
        self.line(f"if not ({' and '.join(checks)}): {self.outside(memory, indices)}")
        flat = self.flat(memory, indices)
        return flat, f"{flat} + {lanes}"

    def _constant(self, op: arith.ConstantOp) -> None:
        value = op.value
        assert isinstance(value, IntegerAttr | FloatAttr)
        made = number(value.value.data, op.result.type)
        if isinstance(value, FloatAttr):
            name = f"constant_{len(self.names)}"
            self.names[name] = made
            self.values[op.result] = name
        else:
            self.values[op.result] = f"({made})" if made < 0 else str(made)

    def _alloca(self, op: memref.AllocaOp) -> None:
        kind = op.memref.type
        assert isinstance(kind, MemRefType)
        name, size = self.new(op.memref), prod(kind.get_shape())
        if text_of(op, Space) == "shared":
            self.line(f"{name} = shared.setdefault({len(self.values)}, [None] * {size})")
        else:
            self.line(f"{name} = [None] * {size}")

    def _store(self, op: memref.StoreOp) -> None:
        memory, (checks, flat) = self.values[op.memref], self.place(op.memref, op.indices)
        if checks:
            self.line(f"if not ({checks}): {self.outside(op.memref, op.indices)}")
        self.line(f"{memory}[{flat}] = {self.values[op.value]}")

    def element(self, memory: SSAValue, indices: Sequence[SSAValue]) -> str:
        checks, flat = self.place(memory, indices)
        text = f"{self.values[memory]}[{flat}]"
        return f"{text} if {checks} else {self.outside(memory, indices)}" if checks else text

    def place(self, memory: SSAValue, indices: Sequence[SSAValue]) -> tuple[str, str]:
        """Python for: whether the indices lie inside a memory, and the position in its list."""
        sizes = self.sizes(memory)
        checks = [f"0 <= {self.values[i]} < {n}" for i, n in zip(indices, sizes, strict=True) if not _inside(i, n)]
        return " and ".join(checks), self.flat(memory, indices)

    def flat(self, memory: SSAValue, indices: Sequence[SSAValue]) -> str:
        kind = memory.type
        assert isinstance(kind, MemRefType)
        shape = kind.get_shape()
        terms = []
        for n, i in enumerate(indices):
            stride = prod(shape[n + 1 :])
            terms.append(self.values[i] if stride == 1 else f"{self.values[i]} * {stride}")
        return " + ".join(terms) or "0"

    def sizes(self, memory: SSAValue) -> list[str]:
        kind = memory.type
        assert isinstance(kind, MemRefType)
        return [f"{self.values[memory]}_n" if n < 0 else str(n) for n in kind.get_shape()]

    def outside(self, memory: SSAValue, indices: Sequence[SSAValue]) -> str:
        return f"outside([{', '.join(self.values[i] for i in indices)}], [{', '.join(self.sizes(memory))}])"

    def _for(self, op: scf.ForOp) -> None:
        lower, upper, step = (self.values[v] for v in (op.lb, op.ub, op.step))
        carried = [self.new(a) for a in op.body.block.args[1:]]
        for name, init in zip(carried, op.iter_args, strict=True):
            self.line(f"{name} = {self.values[init]}")
        self.line(f"for {self.new(op.body.block.args[0])} in range({lower}, {upper}, {step}):")
        self.depth += 1
        self.block(op.body.block, carried)
        self.depth -= 1
        self.at = op
        self.values.update(zip(op.results, carried, strict=True))

    def _if(self, op: scf.IfOp) -> None:
        results = [self.new(r) for r in op.results]
        self.line(f"if {self.values[op.cond]} & 1:")
        for n, region in enumerate(op.regions):
            if region.blocks:
                if n:
                    self.at = op
                    self.line("else:")
                self.depth += 1
                self.block(region.block, results)
                self.depth -= 1

    def _word(self, op: StreamReadOp | StreamWriteOp) -> None:
        stream, word = self.values[op.stream], self.values[op.word]
        if isinstance(op, StreamReadOp):
            self.line(f"while not {stream}_words: yield {stream}, True")
            self.line(f"{word}[:] = {stream}_words.popleft()")
        else:
            self.line(f"while len({stream}_words) >= {stream}_depth: yield {stream}, False")
            self.line(f"{stream}_words.append({word}[:])")


def _inside(index: SSAValue, size: str) -> bool:
    """Whether an index is known to lie in 0…size: a constant, or the variable of a loop between constants."""
    if not size.isdigit():
        return False
    owner = index.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        if not isinstance(loop, scf.ForOp) or index is not owner.args[0]:
            return False
        low, high = _literal(loop.lb), _literal(loop.ub)
        return low is not None and high is not None and low >= 0 and high <= int(size)
    value = _literal(index)
    return value is not None and 0 <= value < int(size)


def _lanes(kind: Attribute) -> int:
    assert isinstance(kind, VectorType)
    return prod(kind.get_shape())


def _literal(value: SSAValue) -> int | None:
    op = value.owner
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return int(op.value.value.data)
    return None


# -- called by the text ------------------------------------------------------------------------------------------------


def _outside(index: Sequence[int], sizes: Sequence[int]) -> None:
    raise Fault(f"index {list(index)} lies outside a memory of {list(sizes)}")


def _copy_runs(
    source: Values, source_at: int, target: Values, target_at: int, count: int, segments: int, far: int, near: int
) -> None:
    for n in range(segments):
        a, b = source_at + n * far, target_at + n * near
        for at, memory, which in ((a, source, "source"), (b, target, "target")):
            if not (at >= 0 and at + count <= len(memory)):
                raise Fault(f"run {n}, elements {at} to {at + count - 1}, leaves the {which} of {len(memory)}")
        target[b : b + count] = source[a : a + count]


def _add_products(graph: Adders, x: Values, y: Values, bits: int) -> None:
    for n, made in enumerate(graph.of(x)):
        total = y[n] + made
        if signed(total, bits) != total:
            raise Fault(f"sum {n} of constant products is {total}, which {bits} bits don't hold")
        y[n] = total


def _load_word(memory: Values, at: int) -> int:
    if at % 4 or not 0 <= at <= len(memory) - 4:
        raise Fault(f"a word of four bytes at element {at} of {len(memory)}")
    return signed(sum((byte & 255) << 8 * n for n, byte in enumerate(memory[at : at + 4])), 32)


def _dot4(a: int, b: int, accumulator: int) -> int:
    return signed(accumulator + sum(signed(a >> n, 8) * signed(b >> n, 8) for n in (0, 8, 16, 24)), 32)


def _add_pairs(a: Values, b: Values, sums: Values) -> Values:
    return [signed(s + a[2 * n] * b[2 * n] + a[2 * n + 1] * b[2 * n + 1], 32) for n, s in enumerate(sums)]


def _fused(a: Any, b: Any, c: Any) -> Any:
    """a · b + c, the product unrounded for f32: it fits f64."""
    return type(c)(a.astype("f8") * b.astype("f8") + c.astype("f8"))


def _rescale(values: Values, by: Values, offset: int, shift: int, zero: int, low: int, high: int, even: int) -> Values:
    made = []
    for v, m in zip(values, by, strict=True):
        total = v * m + offset + ((v * m >> shift) & even)
        if signed(total, 64) != total:
            raise Fault(f"{v} times {m} and {offset} is {total}, which 64 bits don't hold")
        made.append(min(max(signed(total >> shift, 32) + zero, low), high))
    return made

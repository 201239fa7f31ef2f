"""A streaming level2 module as what moves words when: traces of its processes, joined by streams of stated depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.timing.code import COLUMNS, Control
from cuvil_hw.adapters.streaming.timing.control import Untimed, control
from cuvil_hw.adapters.streaming.timing.machine import machine
from cuvil_hw.adapters.streaming.timing.ports import port
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.annotations import Handle, Name, Port, Role, noted, text_of
from cuvil_hw.ir.interpreter.values import Memory
from cuvil_hw.ir.legal import functions
from cuvil_hw.ir.level2 import AxisReadOp, AxisWriteOp, StreamOp, StreamReadOp, StreamType, StreamWriteOp

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Moves:
    """What a process does with its streams for one sample. `events`: cycles that passed since the event before, times
    2^shift, + 2 · stream + (1 for a write); streams are counted as the process's `streams`. `cycles`: of the whole
    sample when the process never waits; `tail`: those behind the last event."""

    name: str
    streams: tuple[int, ...]
    events: Counts
    shift: int
    cycles: int
    tail: int


@dataclass(frozen=True)
class TimedStream:
    """`writer`, `reader`: numbers of processes, -1 for the world outside; `words`: for one sample; `op`: None at a
    port."""

    name: str
    writer: int
    reader: int
    depth: int
    words: int
    bits: int
    op: StreamOp | None


@dataclass(frozen=True)
class Dataflow:
    """`sinks`: processes that bring results out of the design."""

    processes: tuple[Moves, ...]
    streams: tuple[TimedStream, ...]
    sinks: tuple[int, ...]


def network(module: ModuleOp, constants: Mapping[str, Any]) -> Dataflow:
    """The network of a streaming module. `constants`: arrays of its tables, by digest. Raises Untimed for a process
    whose control has no time model, ToolNotFound without numba."""
    top = next((f for f in functions(module) if text_of(f, Role) == "dataflow"), None)
    if top is None:
        raise Untimed("level2: a module without a function of role dataflow has no network")
    byname = {f.sym_name.data: f for f in functions(module)}
    tables = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, memref.GlobalOp)}

    def table(symbol: str) -> list[int]:
        op = tables[symbol]
        values = Memory.of(constants[text_of(op, Handle)], op.type).values
        return [int(v) for v in values]

    made = _Joined()
    for op in top.body.block.ops:
        if isinstance(op, StreamOp):
            made.streams[op.output] = op
        elif isinstance(op, AxisReadOp | AxisWriteOp):
            reads = isinstance(op, AxisReadOp)
            name = f"{'read' if reads else 'write'}_{op.port.name_hint or 'port'}"
            inside = [v for v in (op.stream, op.ends) if v is not None]
            made.process(name, port(op), [op.port, *inside], table)
        elif isinstance(op, func.CallOp):
            name = op.callee.root_reference.data
            made.process(name, byname[name], op.arguments, table)
    return made.network()


class _Joined:
    def __init__(self) -> None:
        self.streams: dict[SSAValue, StreamOp | None] = {}
        self.processes: list[tuple[str, tuple[SSAValue, ...], Counts, int, int, int]] = []
        self.ends: dict[SSAValue, list[int]] = {}
        self.sinks: list[int] = []

    def process(self, name: str, f: func.FuncOp, arguments: Any, table: Any) -> None:
        used: list[SSAValue] = []
        positions: dict[int, int] = {}
        number = len(self.processes)
        for n, (arg, given) in enumerate(zip(f.body.block.args, arguments, strict=True)):
            if not isinstance(arg.type, StreamType):
                continue
            positions[n] = len(used)
            used.append(given)
            self.streams.setdefault(given, None)
            for side, kind in enumerate((StreamWriteOp, StreamReadOp)):
                if any(isinstance(use.operation, kind) for use in arg.uses):
                    self.ends.setdefault(given, [-1, -1])[side] = number
        if noted(f, Port) is not None and not any(isinstance(op, StreamWriteOp) for op in f.walk()):
            self.sinks.append(number)
        try:
            program = control(f, table, positions)
        except Untimed as e:
            raise Untimed(f"{name}: {e}") from e
        self.processes.append((name, tuple(used), *trace(name, program, (2 * len(used)).bit_length())))

    def network(self) -> Dataflow:
        numbers = {v: n for n, v in enumerate(self.streams)}
        streams = []
        counts = [self.words(v) for v in self.streams]
        for (v, op), words in zip(self.streams.items(), counts, strict=True):
            kind = v.type
            bits = 0
            if isinstance(kind, StreamType):
                bits = kind.lanes.data * int(getattr(kind.element, "bitwidth", 32))
            name = (text_of(op, Name) if op is not None else v.name_hint) or f"stream{numbers[v]}"
            writer, reader = self.ends.get(v, [-1, -1])
            streams.append(
                TimedStream(name, writer, reader, op.depth.value.data if op is not None else 1, words, bits, op)
            )
        made = (
            Moves(name, tuple(numbers[v] for v in used), events, shift, cycles, tail)
            for name, used, events, shift, cycles, tail in self.processes
        )
        sinks = [*self.sinks, *(s.writer for s in streams if s.reader < 0)]
        return Dataflow(tuple(made), tuple(streams), tuple(sinks))

    def words(self, stream: SSAValue) -> int:
        """Words of one sample, which both ends have to agree on."""
        found = set()
        for side, p in enumerate(self.ends.get(stream, [-1, -1])):
            if p >= 0:
                name, used, events, shift, *_ = self.processes[p]
                wanted = 2 * used.index(stream) + 1 - side
                found.add((name, int(np.count_nonzero(events & ((1 << shift) - 1) == wanted))))
        if len({n for _, n in found}) > 1:
            said = " and ".join(f"{name} moves {n} words" for name, n in sorted(found))
            raise CuvilError(f"level2: the ends of stream {stream.name_hint} disagree: {said} of a sample")
        return next((n for _, n in found), 0)


def trace(name: str, program: Control, shift: int) -> tuple[Counts, int, int, int]:
    """Events, their shift, all cycles and those behind the last event. Raises CuvilError for a program that leaves its
    memories."""
    traced, _ = machine()
    sizes = [len(m) for m in program.memories]
    first = np.cumsum([0, *sizes])[:-1].astype(np.int64)
    rows = np.array(program.rows, np.int64).reshape(-1, COLUMNS)

    def run(out: Counts) -> tuple[int, int, int]:
        registers = np.array([*program.registers, 0], np.int64)
        memory = np.array([v for m in program.memories for v in m] or [0], np.int64)
        count, total, tail = traced(rows, registers, memory, first, np.array(sizes, np.int64), shift, out)
        if count < 0:
            what = "divides by zero" if count < -1 else "uses an index outside its memory"
            raise CuvilError(f"level2: control of @{name} {what}")
        return count, total, tail

    events = np.empty(run(np.empty(0, np.int64))[0], np.int64)
    _, total, tail = run(events)
    return events, shift, total, tail

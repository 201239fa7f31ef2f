"""Runs level2 modules in NumPy's arithmetic: the oracle for every language that is rendered from them.

Nothing here knows how a language is written. Kernels run thread by thread from one barrier to the next; processes run
until they wait for a stream, and when all of them wait it is said who waits for whom.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import SSAValue

from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.annotations import Handle, Name, Role, Threads, number_of, text_of
from cuvil_hw.ir.interpreter.compiled import BARRIER, Compiled, compiled
from cuvil_hw.ir.interpreter.values import Array, Fault, Memory, Stream, Values, Wire
from cuvil_hw.ir.legal import functions, place
from cuvil_hw.ir.level2 import AxisReadOp, AxisWriteOp, StreamOp, StreamReadOp, StreamType

WARP = 32  # threads that exchange values
Waiting = Generator[Any, Any, None]
Wait = tuple[Stream, bool]  # for which stream, and whether to read it
Argument = Memory | int | Wire | Stream


class Machine:
    """A module, ready to run. `clipped`: how often `saturate` clipped, by layer."""

    def __init__(self, module: ModuleOp, constants: Mapping[str, Array]) -> None:
        """`constants`: the arrays of the module's tables, by digest. The module must be legal. Raises CuvilError for a
        table without its array."""
        self.functions = {f.sym_name.data: f for f in functions(module)}
        self.clipped: dict[int, int] = {}
        self._tables = {
            op.sym_name.data: _table(op, constants) for op in module.body.block.ops if isinstance(op, memref.GlobalOp)
        }
        self._compiled: dict[str, Compiled] = {}

    def run(self, name: str, arguments: Sequence[Argument], blocks: int = 1, samples: int = 1) -> None:
        """Run a function; results are in the memories, ports and streams of `arguments`. A kernel runs on `blocks`
        blocks of the threads it says; a design whose ports are wires runs for `samples` tensors of each.

        Raises CuvilError with the op, its place and the reason: an index outside its memory, arithmetic on what was
        never written, what a machine leaves undefined, threads that don't all reach a barrier, processes that wait for
        one another."""
        f = self.functions.get(name)
        if f is None:
            raise CuvilError(f"level2: there is no function @{name}; there are {', '.join(self.functions)}")
        _check(f, arguments)
        with np.errstate(all="ignore"):
            if text_of(f, Role) == "dataflow":
                self._design(f, arguments, samples)
            elif text_of(f, Role) == "process":
                self._together([_Process(name, self._function(name).run(*_plain(arguments)), self._function(name))], {})
            else:
                self._kernel(self._function(name), _plain(arguments), number_of(f, Threads) or 1, blocks)

    def _function(self, name: str) -> Compiled:
        if name not in self._compiled:
            self._compiled[name] = compiled(self.functions[name], self._tables, self.clipped)
        return self._compiled[name]

    # -- kernels -----------------------------------------------------------------------------------------------------

    def _kernel(self, kernel: Compiled, arguments: Sequence[Any], threads: int, blocks: int) -> None:
        for block in range(blocks):
            shared: dict[int, Values] = {}
            places = [(*arguments, thread, block, threads, blocks, shared) for thread in range(threads)]
            if kernel.waits:
                self._block(kernel, [kernel.run(*p) for p in places], block)
            else:
                with _said(kernel):
                    for p in places:
                        kernel.run(*p)

    def _block(self, kernel: Compiled, threads: Sequence[Waiting], block: int) -> None:
        """Threads of a block, each as far as it gets alone, again and again. A thread asks for a barrier, or for a
        shuffle: (value, lanes)."""
        asked: dict[int, Any] = {}
        ready: dict[int, Any] = dict.fromkeys(range(len(threads)))
        ended: set[int] = set()
        while ready:
            with _said(kernel):
                for t, answer in ready.items():
                    try:
                        asked[t] = threads[t].send(answer)
                    except StopIteration:
                        asked.pop(t, None)
                        ended.add(t)
            if len(asked) == len(threads) and all(a is BARRIER for a in asked.values()):
                ready = dict.fromkeys(asked)
                continue
            ready = {}
            for first in range(0, len(threads), WARP):
                warp = range(first, min(first + WARP, len(threads)))
                if all(isinstance(asked.get(t), tuple) for t in warp):
                    ready |= {t: _given(kernel, asked, t, warp) for t in warp}
        if asked:
            waiting = next(iter(asked))
            other = next(t for t in range(len(threads)) if type(asked.get(t)) is not type(asked[waiting]))
            raise CuvilError(
                f"level2: @{kernel.function.sym_name.data}, block {block}: thread {waiting} waits at a "
                f"{'barrier' if asked[waiting] is BARRIER else 'shuffle'} that thread {other} doesn't reach: it "
                f"{'has ended' if other in ended else 'waits elsewhere'}"
            )

    # -- designs -----------------------------------------------------------------------------------------------------

    def _design(self, top: func.FuncOp, arguments: Sequence[Argument], samples: int) -> None:
        values: dict[SSAValue, Any] = dict(zip(top.body.block.args, arguments, strict=True))
        ends: dict[str, dict[str, str]] = {}
        processes = []
        for op in top.body.block.ops:
            if isinstance(op, StreamOp):
                name = text_of(op, Name) or f"stream {len(ends)}"
                values[op.output] = Stream(name, op.depth.value.data)
                ends[name] = {}
        for op in top.body.block.ops:
            if isinstance(op, AxisReadOp | AxisWriteOp):
                reads = isinstance(op, AxisReadOp)
                name = f"{'read' if reads else 'write'}_{op.port.name_hint or 'port'}"
                wire, streams = values[op.port], [values[s] for s in (op.stream, op.ends) if s is not None]
                kind = op.stream.type
                assert isinstance(kind, StreamType)
                wire.dtype = op.dtype.data
                run = (_sent if reads else _taken)(wire, streams, op.count.value.data, kind.lanes.data, samples)
                processes.append(_Process(name, run, None))
                for s in streams:
                    ends[s.name]["writes" if reads else "reads"] = name
            elif isinstance(op, func.CallOp):
                name = op.callee.root_reference.data
                process = self._function(name)
                given = _plain([values[v] for v in op.arguments])
                for arg, s in zip(process.function.body.block.args, given, strict=True):
                    if isinstance(s, Stream):
                        reads = any(isinstance(use.operation, StreamReadOp) for use in arg.uses)
                        ends[s.name]["reads" if reads else "writes"] = name
                processes.append(_Process(name, _repeated(process, given, samples), process))
        self._together(processes, ends)
        left = [s for s in values.values() if isinstance(s, Stream) and s.words]
        if left:
            s = left[0]
            raise CuvilError(f"level2: stream {s.name} still holds {len(s.words)} words when all processes are through")

    def _together(self, processes: Sequence[_Process], ends: Mapping[str, Mapping[str, str]]) -> None:
        alive = list(processes)
        while alive:
            moved = False
            for p in list(alive):
                if p.stopped:
                    continue
                moved = True
                with _said(p.compiled):
                    p.waits = next(p.run, None)
                if p.waits is None:
                    alive.remove(p)
            if not moved:
                who = [_blame(p, ends) for p in alive]
                raise CuvilError("\n".join(["level2: deadlock, every process waits:", *who]))


@dataclass(slots=True)
class _Process:
    name: str
    run: Iterator[Wait]
    compiled: Compiled | None
    waits: Wait | None = None

    @property
    def stopped(self) -> bool:
        if self.waits is None:
            return False
        stream, reads = self.waits
        return not stream.words if reads else len(stream.words) >= stream.depth


def _repeated(process: Compiled, arguments: Sequence[Any], samples: int) -> Iterator[Wait]:
    for _ in range(samples):
        if process.waits:
            yield from process.run(*arguments)
        else:
            process.run(*arguments)


def _sent(wire: Wire, streams: Sequence[Stream], count: int, lanes: int, samples: int) -> Iterator[Wait]:
    """A port's tensors as words, and behind each the flag that a packet ended with it."""
    if len(wire.tensors) < samples:
        raise Fault(f"a port has {len(wire.tensors)} tensors for {samples} samples")
    for tensor, end in zip(wire.tensors[:samples], wire.ends, strict=False):
        if len(tensor) != count:
            raise Fault(f"a tensor of {len(tensor)} elements at a port of {count}")
        whole = [*tensor, *[0] * (-count % lanes)]
        words = [(streams[0], whole[n : n + lanes]) for n in range(0, count, lanes)]
        for stream, word in (*words, *((s, [int(end)]) for s in streams[1:])):
            while len(stream.words) >= stream.depth:
                yield stream, False
            stream.words.append(word)


def _taken(wire: Wire, streams: Sequence[Stream], count: int, lanes: int, samples: int) -> Iterator[Wait]:
    for _ in range(samples):
        tensor: Values = []
        for stream, words in ((streams[0], -(-count // lanes)), *((s, 1) for s in streams[1:])):
            for _ in range(words):
                while not stream.words:
                    yield stream, True
                word = stream.words.popleft()
                if stream is streams[0]:
                    tensor += word
                else:
                    wire.ends.append(bool(word[0]))
        wire.tensors.append(tensor[:count])
        if len(streams) == 1:
            wire.ends.append(True)


def _blame(p: _Process, ends: Mapping[str, Mapping[str, str]]) -> str:
    assert p.waits is not None
    stream, reads = p.waits
    other = ends.get(stream.name, {}).get("writes" if reads else "reads", "nobody")
    if reads:
        return f"  {p.name} waits for a word of {stream.name}, which {other} writes"
    return f"  {p.name} waits for room in {stream.name}, full with {stream.depth} words, which {other} reads"


def _given(kernel: Compiled, asked: Mapping[int, Any], thread: int, warp: range) -> Any:
    """What a thread gets in a shuffle: the value of its partner."""
    lanes = asked[thread][1]
    if (partner := thread ^ lanes) not in warp:
        raise CuvilError(f"level2: @{kernel.function.sym_name.data}: a shuffle over {lanes} lanes leaves the warp")
    return asked[partner][0]


def _table(op: memref.GlobalOp, constants: Mapping[str, Array]) -> Values:
    digest = text_of(op, Handle)
    if digest not in constants:
        raise CuvilError(f"level2: there is no array for table @{op.sym_name.data}, constant {digest or '(unnamed)'}")
    kind = op.type
    assert isinstance(kind, MemRefType)
    return Memory.of(constants[digest], kind).values


def _check(f: func.FuncOp, arguments: Sequence[Argument]) -> None:
    kinds = [a.type for a in f.body.block.args]
    if len(kinds) != len(arguments):
        raise CuvilError(f"level2: @{f.sym_name.data} takes {len(kinds)} arguments, not {len(arguments)}")


def _plain(arguments: Sequence[Any]) -> list[Any]:
    return [a.values if isinstance(a, Memory) else a for a in arguments]


@contextmanager
def _said(running: Compiled | None) -> Iterator[None]:
    """What a running op raises, with the op and its place."""
    try:
        yield
    except (Fault, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as e:
        op = running.op_of(e.__traceback__) if running is not None else None
        if op is None and not isinstance(e, Fault):
            raise
        undefined = isinstance(e, TypeError | AttributeError) and "NoneType" in str(e)
        why = "uses a value that was never written" if undefined else str(e)
        raise CuvilError(f"level2: {op.name}{place(op)}: {why}" if op is not None else f"level2: {why}") from e

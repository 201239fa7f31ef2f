"""Streaming designs in simulated time: by hand, against equations that are solved another way, and as emitted."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.timing.control import Untimed
from cuvil_hw.adapters.streaming.timing.figures import timing_of
from cuvil_hw.adapters.streaming.timing.network import Dataflow, Moves, TimedStream, network
from cuvil_hw.adapters.streaming.timing.simulate import run, steady
from cuvil_hw.adapters.streaming.timing.sizing import Sized, ideal, sized
from cuvil_hw.adapters.zynq import cycles
from cuvil_hw.adapters.zynq.project import project
from cuvil_hw.adapters.zynq.simbuild import build_simulation
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.interpreter.compiled import compiled
from cuvil_hw.ir.interpreter.machine import Machine
from cuvil_hw.ir.interpreter.values import Stream
from cuvil_hw.ir.legal import functions, parse
from cuvil_hw.ir.level2 import StreamReadOp, StreamType, StreamWriteOp
from cuvil_hw.ir.program import Builder
from cuvil_hw.types import TensorType
from tests.support import fpga_runner
from tests.support.device_runner import program_of

Action = tuple[int, str]  # cycles since the one before, stream with > before it for a write

DEEP = 1 << 20


def joined(depths: dict[str, int], **processes: tuple[list[Action], int]) -> Dataflow:
    """A network of processes: actions, then cycles behind the last one. Streams that nobody writes are ports, as are
    those that nobody reads."""
    names = list(depths)
    made, ends = [], {s: [-1, -1] for s in names}
    for number, (name, (actions, tail)) in enumerate(processes.items()):
        own = list(dict.fromkeys(what.lstrip(">") for _, what in actions))
        shift = (2 * len(own)).bit_length()
        events = [(dt << shift) + 2 * own.index(w.lstrip(">")) + w.startswith(">") for dt, w in actions]
        for _, what in actions:
            ends[what.lstrip(">")][0 if what.startswith(">") else 1] = number
        cycles = sum(dt for dt, _ in actions) + tail
        made.append(Moves(name, tuple(names.index(s) for s in own), np.array(events, np.int64), shift, cycles, tail))
    streams = []
    for s in names:
        words = max(sum(w in (s, f">{s}") for _, w in actions) for actions, _ in processes.values())
        op: Any = None if -1 in ends[s] else object()
        streams.append(TimedStream(s, *ends[s], depths[s], words, 8, op))
    return Dataflow(tuple(made), tuple(streams), tuple(f.writer for f in streams if f.reader < 0))


def copy(words: int, interval: int, a: str, b: str) -> tuple[list[Action], int]:
    return [action for _ in range(words) for action in ((interval, a), (0, f">{b}"))], 0


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_chain_runs_at_the_pace_of_its_slowest_process() -> None:
    net = joined({"in": 1, "s": 2, "out": 1}, a=copy(4, 1, "in", "s"), b=copy(4, 3, "s", "out"))
    found = run(net, samples=3)
    # b reads its first word in cycle 3, when it has long been there, and a word every three cycles from then on
    assert found.results.tolist() == [12, 24, 36]
    assert found.interval == 12
    assert found.waited[1, 1].tolist()[-1] == 8  # a waits two of three cycles for room


def test_a_word_is_read_one_cycle_after_it_was_written() -> None:
    net = joined({"in": 1, "s": 2, "out": 1}, a=copy(3, 5, "in", "s"), b=copy(3, 1, "s", "out"))
    found = run(net, samples=2)
    assert found.through[0].tolist() == [15, 30]
    assert found.through[1].tolist() == [16, 31]
    assert found.waited[0, 1, 1] == 12  # four of five cycles, for three words


def test_one_place_moves_a_word_every_other_cycle() -> None:
    net = joined({"in": 1, "s": 1, "out": 1}, a=copy(8, 1, "in", "s"), b=copy(8, 1, "s", "out"))
    assert run(net).interval == 16
    assert run(net, (1, 2, 1)).interval == 8


def burst(depth: int) -> Dataflow:
    """a: eight words, then eight cycles of something else; b: a word every other cycle. Sixteen cycles each."""
    return joined(
        {"in": 1, "s": depth, "out": 1},
        a=([action for _ in range(8) for action in ((1, "in"), (0, ">s"))], 8),
        b=copy(8, 2, "s", "out"),
    )


def test_bursts_need_room_and_a_word_less_is_slower_and_named() -> None:
    assert run(burst(5)).interval == 16
    found = steady(burst(4))
    assert found.interval == 17
    assert found.network.streams[found.blamed].name == "s"
    done = sized(burst(4), lambda depth, bits: {"bits": float(depth * bits)}, {})
    assert done.run.interval == done.ideal == 16
    assert done.depths[1] >= 5


def test_a_design_that_would_stand_still_gets_the_room_that_it_needs() -> None:
    words = 6
    net = joined(
        {"in": 1, "early": 2, "late": 2, "out": 1},
        a=([(1, "in"), (0, ">early")] * words + [(1, ">late")] * words, 0),
        b=([(1, "late")] * words + [(1, "early"), (0, ">out")] * words, 0),
    )
    assert run(net).deadlock
    done = sized(net, lambda depth, bits: {"bits": float(depth * bits)}, {})
    assert not done.run.deadlock
    assert done.run.interval == done.ideal == 12
    with pytest.raises(CuvilError, match="a waits for room in early, full with 2 words, which b reads"):
        sized(net, lambda depth, bits: {"bits": float(depth * bits)}, {"bits": 0.0})


def test_without_memory_the_narrow_fifo_is_named_with_its_cost() -> None:
    done = sized(burst(4), lambda depth, bits: {"bits": float(depth * bits)}, {"bits": 100.0})
    assert done.depths == (1, 4, 1)
    assert [(n.stream, n.depth, n.cycles) for n in done.narrow] == [("s", 4, 17.0)]


def test_a_bypass_that_is_a_word_too_short_stands_still_and_is_named() -> None:
    words = 6

    def net(depth: int) -> Dataflow:
        return joined(
            {"in": 1, "long": 2, "short": depth, "late": 2, "out": 1},
            fork=([a for _ in range(words) for a in ((1, "in"), (0, ">long"), (0, ">short"))], 0),
            swallow=(
                [(1, "long")] * 4 + [a for n in range(words) for a in ((1, ">late"), *([(0, "long")] * (n < 2)))],
                0,
            ),
            join=([a for _ in range(words) for a in ((1, "late"), (0, "short"), (0, ">out"))], 0),
        )

    least = next(depth for depth in range(1, 8) if not run(net(depth)).deadlock)
    assert least > 2
    with pytest.raises(
        CuvilError, match=rf"fork waits for room in short, full with {least - 1} words, which join reads"
    ):
        steady(net(least - 1))


# ---- against the equations, solved by iteration from below ----------------------------------------------------------


def solved(net: Dataflow, depths: Sequence[int], samples: int) -> dict[str, list[int]] | None:
    """The cycle in which each process is through with each sample: all times start at 0 and rise until every rule
    holds; None where they rise for ever (a deadlock)."""
    chains = []
    for p in net.processes:
        low = (1 << p.shift) - 1
        one = [(int(e) >> p.shift, p.streams[(int(e) & low) >> 1], int(e) & 1) for e in p.events]
        chains.append(one * samples)
    times = [[0] * len(chain) for chain in chains]
    limit = samples * sum(p.cycles + len(p.events) for p in net.processes) + 100
    while True:
        read: dict[int, list[int]] = {}
        written: dict[int, list[int]] = {}
        for chain, own in zip(chains, times, strict=True):
            for (_, s, write), t in zip(chain, own, strict=True):
                (written if write else read).setdefault(s, []).append(t)
        moved = False
        for p, chain, own in zip(net.processes, chains, times, strict=True):
            now, count, last = 0, dict.fromkeys(range(len(net.streams)), 0), {}
            for n, (dt, s, write) in enumerate(chain):
                now += dt + (p.tail if n and n % len(p.events) == 0 else 0)
                now = max(now, last.get((s, write), -1) + 1)
                k, stream = count[s], net.streams[s]
                if write and stream.reader >= 0 and k >= depths[s]:
                    now = max(now, read[s][k - depths[s]] + 1)
                elif not write:
                    now = max(now, (written[s][k] if stream.writer >= 0 else k) + 1)
                count[s], last[s, write] = k + 1, now
                moved |= now != own[n]
                own[n] = now
            if own and own[-1] > limit:
                return None
        if not moved:
            each = [len(p.events) for p in net.processes]
            return {
                p.name: [own[(n + 1) * e - 1] + p.tail for n in range(samples)]
                for p, own, e in zip(net.processes, times, each, strict=True)
            }


def random_network(rng: random.Random, least: int = 0) -> Dataflow:
    """A fork, two branches that read and write at odd times, a join. `least`: cycles between two actions of one end."""
    words = rng.randint(2, 6)

    def branch(a: str, b: str) -> tuple[list[Action], int]:
        reads, writes, actions = 0, 0, []
        while reads < words or writes < words:
            if reads < words and (writes == reads or rng.random() < 0.5):
                actions.append((rng.randint(least, 3), a))
                reads += 1
            elif writes < reads:
                actions.append((rng.randint(least, 3), f">{b}"))
                writes += 1
        return actions, rng.randint(0, 5)

    depths = {"in": 1, "a": 0, "b": 0, "c": 0, "d": 0, "out": 1}
    depths |= {s: rng.randint(1, 4) for s in "abcd"}
    return joined(
        depths,
        fork=(
            [a for _ in range(words) for a in ((rng.randint(least, 2), "in"), (0, ">a"), (rng.randint(0, 1), ">b"))],
            0,
        ),
        left=branch("a", "c"),
        right=branch("b", "d"),
        join=([a for _ in range(words) for a in ((1, "c"), (rng.randint(0, 2), "d"), (0, ">out"))], rng.randint(0, 3)),
    )


@pytest.mark.share(seed=2)
@pytest.mark.parametrize("seed", range(30))
def test_random_networks_follow_the_equations(seed: int) -> None:
    net = random_network(random.Random(seed))
    depths = [s.depth for s in net.streams]
    found, wanted = run(net, samples=4), solved(net, depths, 4)
    assert found.deadlock == (wanted is None)
    if wanted is not None:
        assert {p.name: t for p, t in zip(net.processes, found.through.tolist(), strict=True)} == wanted
        deepest = [int(m) for m in found.most]
        assert all(m <= d for m, d, s in zip(deepest, depths, net.streams, strict=True) if s.op is not None)


@pytest.mark.share(seed=2)
@pytest.mark.parametrize("seed", range(20))
def test_sized_networks_are_as_fast_as_their_slowest_process(seed: int) -> None:
    net = random_network(random.Random(seed), least=1)
    net = replace(net, streams=tuple(replace(s, depth=6) if s.op is not None else s for s in net.streams))
    done = sized(net, lambda depth, bits: {"bits": float(depth * bits)}, {})
    deep = steady(net, [DEEP if s.op is not None else 1 for s in net.streams])
    assert done.run.interval == deep.interval == done.ideal == max(p.cycles for p in net.processes)


# ---- what is kept of level2 -----------------------------------------------------------------------------------------


class Recorded(Stream):
    """A stream that never makes a process wait, and notes who comes."""


class Words(deque[Any]):
    def __init__(self, noted: list[tuple[int, int]], number: int, lanes: int) -> None:
        super().__init__()
        self.noted, self.number, self.lanes = noted, number, lanes

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return 0

    def popleft(self) -> Any:
        self.noted.append((self.number, 0))
        return [0] * self.lanes

    def append(self, word: Any) -> None:
        self.noted.append((self.number, 1))


def small_design() -> tuple[Any, Any]:
    """A residual block, padded convolution beside a bypass, and a reduction over all pixels."""
    rng = np.random.default_rng(3)
    b = Builder([("x", TensorType((1, 4, 6, 6), "i8"))], "net")
    w = b.const(rng.integers(-8, 8, (4, 4, 3, 3)).astype(np.int8), "i8")
    zero = b.const(np.zeros(4, np.int32), "i32")
    y = b.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), acc="i32"), b.input(0), w, zero)
    y = b.op(ops.Rescale((1 << 20,), (26,), "i8", 0, 0, 1), y)
    y = b.op(ops.Add(), b.op(ops.Cast("i16"), y), b.op(ops.Cast("i16"), b.input(0)))
    program = b.finish([("y", b.op(ops.ReduceMax((2, 3)), y))])
    graph = fpga_runner.graph_of(program)
    return graph, fpga_runner.random_choice(graph, random.Random(1))


def test_control_moves_words_in_the_order_of_the_process_itself() -> None:
    graph, choice = small_design()
    module = dataflow.lower(graph, fpga_runner.forms_of(choice), 64, True)
    net = network(module, graph.constants)
    tables = Machine(module, graph.constants)._tables
    named = {p.name: p for p in net.processes}
    compared = 0
    for f in functions(module):
        if f.sym_name.data not in named:
            continue
        noted: list[tuple[int, int]] = []
        given = []
        for n, arg in enumerate(f.body.block.args):
            assert isinstance(arg.type, StreamType)
            given.append(Recorded(f"s{n}", DEEP, Words(noted, n, arg.type.lanes.data)))
        deque(compiled(f, tables, {}).run(*given), maxlen=0)
        moves = named[f.sym_name.data]
        low = (1 << moves.shift) - 1
        assert [((int(e) & low) >> 1, int(e) & 1) for e in moves.events] == noted
        compared += 1
    assert compared > 4
    iterations = sum(any(isinstance(op, StreamReadOp | StreamWriteOp) for op in f.walk()) for f in functions(module))
    assert iterations == compared
    assert all(p.cycles >= max(net.streams[s].words for s in p.streams) for p in net.processes)


CONTROLLED = """
func.func @p(%in : !cuvil.stream<i8, 1>, %out : !cuvil.stream<i8, 1>) attributes {cuvil.role = #cuvil.role<process>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %zero = arith.constant 0 : i8
  %w = memref.alloca() {cuvil.word = #cuvil.word} : memref<1xi8>
  scf.for %i = %c0 to %c4 step %c1 {
    "cuvil.level2.stream_read"(%in, %w) : (!cuvil.stream<i8, 1>, memref<1xi8>) -> ()
    %v = memref.load %w[%c0] : memref<1xi8>
    %some = arith.cmpi ne, %v, %zero : i8
    scf.if %some {
      "cuvil.level2.stream_write"(%out, %w) : (!cuvil.stream<i8, 1>, memref<1xi8>) -> ()
    }
  } {cuvil.pipeline = #cuvil.pipeline<1>}
  func.return
}
func.func @top(%x : !cuvil.axis<8>, %y : !cuvil.axis<8>) attributes {cuvil.role = #cuvil.role<dataflow>} {
  %a = "cuvil.level2.stream"() <{depth = 2 : i32}> : () -> !cuvil.stream<i8, 1>
  %b = "cuvil.level2.stream"() <{depth = 2 : i32}> : () -> !cuvil.stream<i8, 1>
  "cuvil.level2.axis_read"(%x, %a) <{count = 4 : i32, dtype = #cuvil.dtype<"i8">}>
    : (!cuvil.axis<8>, !cuvil.stream<i8, 1>) -> ()
  func.call @p(%a, %b) : (!cuvil.stream<i8, 1>, !cuvil.stream<i8, 1>) -> ()
  "cuvil.level2.axis_write"(%b, %y) <{count = 4 : i32, dtype = #cuvil.dtype<"i8">}>
    : (!cuvil.stream<i8, 1>, !cuvil.axis<8>) -> ()
  func.return
}
"""


def test_control_that_depends_on_words_has_no_time() -> None:
    with pytest.raises(Untimed, match=r"p: .*memref.load.*depends on what they hold"):
        network(parse(CONTROLLED), {})


# ---- against the simulation of the emitted C++ -----------------------------------------------------------------------


@pytest.mark.must_run
@pytest.mark.needs("g++")
def test_the_emitted_sources_take_as_long_with_any_depths() -> None:
    graph, choice = small_design()
    module = dataflow.lower(graph, fpga_runner.forms_of(choice), 64, True)
    net = network(module, graph.constants)
    rng = random.Random(5)
    with program_of(graph, project(module, graph, fpga_runner.PROFILE, Golden())) as program:
        library = build_simulation(program, (*fpga_runner.QUICK, *cycles.FLAGS))
        simulation = cycles.LoadedCycles(library, program, 1e8)
        known = {s.name for s in simulation.timing({}).streams}  # some are called otherwise in C++
        for trial in range(8):
            more = [rng.randint(0, 12) if trial and s.op is not None and s.name in known else 0 for s in net.streams]
            depths = [s.depth + m for s, m in zip(net.streams, more, strict=True)]
            wanted = simulation.timing({s.name: s.depth + m for s, m in zip(net.streams, more, strict=True) if m})
            found = steady(net, depths)
            assert found.period == wanted.period
            assert (found.interval, int(found.results[0])) == (wanted.cycles, wanted.first_cycles)
            waits = {s.name: (s.empty, s.full) for s in wanted.streams}
            last = found.waited[:, :, -found.period :].mean(axis=2)
            for n, s in enumerate(net.streams):
                assert s.name not in waits or (last[0, n], last[1, n]) == waits[s.name]
            made = timing_of(Sized(tuple(depths), found, ideal(net)))
            busy = tuple(n for n in wanted.bottlenecks if not n.startswith("DMA"))
            assert made.slowest == busy

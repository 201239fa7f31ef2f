"""FIFO depths: never a deadlock at exactly these depths, not much more than that takes, and the check can fail."""

from __future__ import annotations

import random
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from xdsl.ir import SSAValue

from cuvil_hw import ops
from cuvil_hw.adapters.streaming.analysis import fifo
from cuvil_hw.adapters.streaming.analysis.fifo import Counts, Edge
from cuvil_hw.adapters.streaming.analysis.ring import Ring
from cuvil_hw.adapters.streaming.analysis.stage import WindowDim
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.errors import DeviceError
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.types import TensorType
from tests.support import fpga_runner

Action = tuple[str, str]  # ("read" | "write", stream)


# ---- what each process reads and writes, one action after the other ------------------------------------------------


def counts_of(actions: Iterator[Action]) -> list[int]:
    """For each word that is written: how many were read before it."""
    read, result = 0, []
    for kind, _ in actions:
        read += kind == "read"
        if kind == "write":
            result.append(read)
    return result


def test_needs_of_a_matrix_vector_unit() -> None:
    def actions() -> Iterator[Action]:
        for _ in range(5):
            for nf in range(3):
                for sf in range(4):
                    if nf == 0:
                        yield "read", "in"
                    if sf == 3:
                        yield "write", "out"

    assert list(fifo.dense_needs(5, 4, 3)) == counts_of(actions())


def test_needs_channel_by_channel() -> None:
    def actions() -> Iterator[Action]:
        for _ in range(4):
            for tap in range(9):
                for _ in range(2):
                    yield "read", "in"
                    if tap == 8:
                        yield "write", "out"

    assert list(fifo.depthwise_needs(4, 9, 2)) == counts_of(actions())


@pytest.mark.parametrize(("lanes_in", "lanes_out"), [(1, 4), (4, 1), (6, 2), (2, 6), (3, 3)])
def test_needs_of_a_width_converter(lanes_in: int, lanes_out: int) -> None:
    def actions() -> Iterator[Action]:
        have = 0
        for _ in range(24 // lanes_out):
            while have < lanes_out:
                yield "read", "in"
                have += lanes_in
            yield "write", "out"
            have -= lanes_out

    assert list(fifo.convert_needs(24 // lanes_out, lanes_in, lanes_out)) == counts_of(actions())


# ---- networks of processes, run with bounded FIFOs ------------------------------------------------------------------


@dataclass
class Network:
    """Processes by name with what they need; forks and joins included. `order` is topological."""

    edges: list[Edge]
    needs: dict[tuple[str, str], Counts]
    order: list[str]

    def depths(self) -> dict[str, int]:
        lazy: dict[tuple[str, str], Callable[[], Counts]] = {k: (lambda v=v: v) for k, v in self.needs.items()}
        return fifo.depths(self.edges, lazy, self.order)

    def actions(self, process: str) -> Iterator[Action]:
        ins = [e for e in self.edges if e.target == process]
        outs = [e for e in self.edges if e.source == process]
        read = dict.fromkeys((e.name for e in ins), 0)
        for k in range(outs[0].words if outs else 0):
            for e in ins:
                while read[e.name] < self.needs[process, e.name][k]:
                    read[e.name] += 1
                    yield "read", e.name
            for e in outs:
                yield "write", e.name
        for e in ins:
            yield from [("read", e.name)] * (e.words - read[e.name])


def deadlock(net: Network, depths: Mapping[str, int]) -> list[str]:
    """Runs the network; the streams that processes wait for when nothing moves any more (none: it finished)."""
    fill = dict.fromkeys(depths, 0)
    queues = {p: deque(net.actions(p)) for p in net.order}
    while any(queues.values()):
        moved = False
        for queue in queues.values():
            while queue:
                kind, stream = queue[0]
                if fill[stream] >= depths[stream] if kind == "write" else fill[stream] == 0:
                    break
                fill[stream] += 1 if kind == "write" else -1
                queue.popleft()
                moved = True
        if not moved:
            return sorted({queue[0][1] for queue in queues.values() if queue})
    assert not any(fill.values())
    return []


WORDS = 48


def chain(rng: random.Random) -> Counts:
    """How a random process with as many words out as in reads."""
    k = np.arange(1, WORDS + 1)
    match rng.choice(["map", "late", "block", "all"]):
        case "map":
            return fifo.map_needs(WORDS)
        case "late":
            return np.minimum(k + rng.randint(1, 20), WORDS)
        case "block":
            size = rng.choice([2, 4, 8, 12])
            return fifo.dense_needs(WORDS // size, size, size)
        case _:
            return fifo.all_needs(WORDS, WORDS)


def random_network(rng: random.Random) -> Network:
    """Forks, joins and chains at random; what is left open at the end goes to one sink each."""
    net = Network([], {}, [])
    open_: list[str] = []  # processes (or fork outputs, by repetition) without a reader yet

    def process(sources: Sequence[str], needs: Sequence[Counts], copies: int = 1) -> None:
        name = f"p{len(net.order)}"
        for source, need in zip(sources, needs, strict=True):
            edge = Edge(f"{source}_{name}_{len(net.edges)}", source, name, WORDS)
            net.edges.append(edge)
            net.needs[name, edge.name] = need
        net.order.append(name)
        open_.extend([name] * copies)

    for _ in range(rng.randint(1, 2)):
        process([], [])
    for _ in range(rng.randint(4, 14)):
        at = open_.pop(rng.randrange(len(open_)))
        if rng.random() < 0.35:
            process([at], [fifo.map_needs(WORDS)], rng.choice([2, 2, 3]))
        elif open_ and rng.random() < 0.5:
            other = open_.pop(rng.randrange(len(open_)))
            process([at, other], [fifo.map_needs(WORDS)] * 2)
        else:
            process([at], [chain(rng)])
    while len(open_) > 1 and rng.random() < 0.8:
        process([open_.pop(0), open_.pop(0)], [fifo.map_needs(WORDS)] * 2)
    for at in list(open_):
        net.order.append(f"sink{len(net.order)}")
        edge = Edge(f"{at}_{net.order[-1]}", at, net.order[-1], WORDS)
        net.edges.append(edge)
        net.needs[net.order[-1], edge.name] = np.zeros(0, np.int64)
    return net


def test_random_networks_never_stop() -> None:
    stopped_with_two = 0
    for seed in range(300):
        net = random_network(random.Random(seed))
        depths = net.depths()
        assert deadlock(net, depths) == [], f"seed {seed}"
        assert max(depths.values()) <= WORDS + fifo.SLACK_WORDS
        stopped_with_two += deadlock(net, dict.fromkeys(depths, 2)) != []
    assert stopped_with_two > 40  # networks that would stop without widening


def residual_chain(blocks: int, length: int) -> tuple[list[Edge], dict[tuple[str, str], Callable[[], Counts]]]:
    """x → fork → (windows → layer, bypass) → join → …, `length` words on each stream and three windows a word."""
    ring = Ring(WindowDim(length, length, 3, 1, 1, 1), WindowDim(1, 1), 1)
    edges: list[Edge] = [Edge("in0", "in", "fork0", length)]
    needs: dict[tuple[str, str], Callable[[], Counts]] = {}
    for n in range(blocks):
        edges += [
            Edge(f"a{n}", f"fork{n}", f"window{n}", length),
            Edge(f"w{n}", f"window{n}", f"layer{n}", 3 * length),
            Edge(f"y{n}", f"layer{n}", f"join{n}", length),
            Edge(f"b{n}", f"fork{n}", f"join{n}", length),
            Edge(f"in{n + 1}", f"join{n}", f"fork{n + 1}" if n + 1 < blocks else "out", length),
        ]
        for name in (f"in{n}", f"y{n}", f"b{n}"):
            target = next(e.target for e in edges if e.name == name)
            needs[target, name] = lambda: fifo.map_needs(length)
        needs[f"window{n}", f"a{n}"] = ring.read_by
        needs[f"layer{n}", f"w{n}"] = lambda: fifo.dense_needs(length, 3, 1)
    needs["out", f"in{blocks}"] = lambda: fifo.map_needs(length)
    return edges, needs


def test_memory_does_not_grow_with_the_number_of_forks() -> None:
    def peak(blocks: int) -> tuple[int, dict[str, int]]:
        edges, needs = residual_chain(blocks, 4000)
        order = ["in", *[f"{p}{n}" for n in range(blocks) for p in ("fork", "window", "layer", "join")], "out"]
        tracemalloc.start()
        try:
            found = fifo.depths(edges, needs, order)
            return tracemalloc.get_traced_memory()[1], found
        finally:
            tracemalloc.stop()

    small, first = peak(2)
    large, found = peak(40)
    assert large < 1.5 * small < 15 * 4000 * 3 * 8  # bytes: a few counts of one stream at a time
    assert found["b39"] == found["b0"] == first["b0"] > fifo.SLACK_WORDS  # each bypass holds what its own windows hold


def test_the_slack_is_for_latency_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the words that pipelines hold, the depths still suffice but for the words in a process's hands."""
    monkeypatch.setattr(fifo, "SLACK_WORDS", 2)
    for seed in range(300):
        net = random_network(random.Random(seed))
        assert deadlock(net, net.depths()) == [], f"seed {seed}"


# ---- a residual block -----------------------------------------------------------------------------------------------

SIZE, CHANNELS = 12, 4


def residual(layers: int = 1) -> Program:
    """x + conv(…conv(x)), 3×3 windows."""
    shape = TensorType((1, CHANNELS, SIZE, SIZE), "i8")
    b = Builder([("x0", shape)], "residual")
    x = y = b.input(0)
    for n in range(layers):
        w = np.random.default_rng(n).integers(-9, 9, (CHANNELS, CHANNELS, 3, 3)).astype(np.int8)
        conv = ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), 1, 0, (0,), "i32")
        y = b.op(ops.Rescale((1 << 20,), (24,), "i8"), b.op(conv, y, b.const(w)))
    return b.finish([("y0", b.op(ops.Add("i9"), x, y))])


@pytest.mark.parametrize("layers", [1, 2])
def test_a_bypass_holds_the_rows_that_its_windows_hold(layers: int) -> None:
    graph = fpga_runner.graph_of(residual(layers))
    for seed in range(8):
        choice = fpga_runner.random_choice(graph, random.Random(seed))
        net = dataflow.build_network(graph, [c.form for _, c in choice.picked])
        depths = dataflow.fifo_depths(net)
        lanes = {s.name: s.lanes for n in net.nodes for s in n.outputs}
        widened = {n: d * lanes[n] for n, d in depths.items() if d > 2}
        row = SIZE * CHANNELS
        most = layers * 3 * row + fifo.SLACK_WORDS * max(lanes.values()) + row
        assert widened, seed
        assert layers * row < sum(widened.values()) <= most, (seed, widened)


def test_the_simulator_finds_a_bypass_that_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    program = residual()
    inputs = fpga_runner.samples(program, np.random.default_rng(0), 4)
    wanted = fpga_runner.meaning(program, inputs)
    graph = fpga_runner.graph_of(program)
    choice = fpga_runner.random_choice(graph, random.Random(3))
    exact = dataflow.fifo_depths
    bounded = ("-DCUVIL_SIM_BOUNDED",)
    with fpga_runner.loaded(graph, choice, bounded) as simulation:
        for percent in (0, 50):
            simulation.stall(1, percent)
            assert not fpga_runner.difference(program, simulation.run(inputs)[0], wanted)
    streams = [n for n, d in exact(dataflow.build_network(graph, [c.form for _, c in choice.picked])).items() if d > 2]
    monkeypatch.setattr(dataflow, "fifo_depths", lambda net: {n: min(d, 2) for n, d in exact(net).items()})
    with fpga_runner.loaded(graph, choice, bounded) as simulation:
        simulation.stall(1, 0)
        with pytest.raises(DeviceError, match="deadlock") as error:
            simulation.run(inputs)
    assert any(f"write full stream '{n}' (2 of 2 words)" in str(error.value) for n in streams), str(error.value)


def crossing() -> Program:
    """Two inputs that wait for one another in two places: conv(conv(a)) + b and a + conv(b)."""
    shape = TensorType((1, CHANNELS, SIZE, SIZE), "i8")
    builder = Builder([("a", shape), ("b", shape)], "crossing")
    a, b = builder.input(0), builder.input(1)

    def conv(x: SSAValue, seed: int) -> SSAValue:
        w = np.random.default_rng(seed).integers(-9, 9, (CHANNELS, CHANNELS, 3, 3)).astype(np.int8)
        op = ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), 1, 0, (0,), "i32")
        return builder.op(ops.Rescale((1 << 20,), (24,), "i8"), builder.op(op, x, builder.const(w)))

    left = builder.op(ops.Add("i9"), conv(conv(a, 0), 1), b)
    right = builder.op(ops.Add("i9"), a, conv(b, 2))
    return builder.finish([("left", left), ("right", right)])


def test_inputs_that_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    program = crossing()
    inputs = fpga_runner.samples(program, np.random.default_rng(0), 6)
    wanted = fpga_runner.meaning(program, inputs)
    graph = fpga_runner.graph_of(program)
    choice = fpga_runner.random_choice(graph, random.Random(1))
    bounded = ("-DCUVIL_SIM_BOUNDED",)
    with fpga_runner.loaded(graph, choice, bounded) as simulation:
        for percent in (0, 40):
            simulation.stall(5, percent)
            assert not fpga_runner.difference(program, simulation.run(inputs)[0], wanted)
    monkeypatch.setattr(fifo, "_crossing", lambda *_: [])
    with (
        fpga_runner.loaded(graph, choice, bounded) as simulation,
        pytest.raises(DeviceError, match="deadlock, every process waits"),
    ):
        simulation.run(inputs)

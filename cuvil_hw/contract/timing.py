"""What a simulation with clocks found of a streaming design: how long, who waits for whom, how full its FIFOs are.

A simulator runs some samples one after another without a pause and hands over, for each process and each end of a
stream, what it had counted at the end of every sample (sim/dataflow/cuvil_sim_timing.h). The design is in its steady
state when the cycles of all its reads and writes, and the state of all its FIFOs, repeat: since nothing else decides
what comes, all later samples are then the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from cuvil_hw.contract.device import Loaded
from cuvil_hw.errors import CuvilError

CYCLES, RTL = "sim-cycles", "rtl"  # the interfaces that have clocks
ORIGIN = f"simulated ({CYCLES})"
FIRST, MOST = 6, 96  # samples of the first attempt, and of the last


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """One FIFO. Cycles and words are those of one sample in the steady state.

    Attributes:
        depth: words that it holds.
        most: the most words that lay in it at once, since the start.
        mean: words in it, on average over time.
        empty: cycles in which its reader waited for a word.
        full: cycles in which its writer waited for room.
    """

    name: str
    writer: str
    reader: str
    depth: int
    words: float
    most: int
    mean: float
    empty: float
    full: float


@dataclass(frozen=True, slots=True)
class ProcessTiming:
    """One process, in cycles of a sample in the steady state: `cycles` is the sum of the others."""

    name: str
    cycles: float
    busy: float
    waits_for_words: float
    waits_for_room: float


@dataclass(frozen=True, slots=True)
class LayerTiming:
    """One layer of a design that runs them one after another. `bound`: what takes longest: "compute", "weights" or
    "feature maps" that come from memory, or "loops" where it isn't on the engine."""

    name: str
    cycles: int
    bound: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Time as it passes in the emitted sources, if every loop starts an iteration as often as its pragma says and
    nothing else takes time. Hardware is never faster; pipelines that fill, and loops that miss their interval, make it
    slower.

    Attributes:
        program: name of the program.
        clock_hz: of the profile.
        cycles: from one sample to the next, in the steady state; the mean of `period` samples.
        period: after how many samples everything repeats; 0: it didn't within `samples`, and figures are those of the
            last sample.
        first_cycles: until the last word of the first result.
        samples: how many were simulated.
        processes: in the order of the design; the DMA engines of inputs before, those of outputs behind.
        layers: of a design that runs them one after another; empty where all run at once.
    """

    program: str
    clock_hz: float
    cycles: float
    period: int
    first_cycles: int
    samples: int
    processes: tuple[ProcessTiming, ...]
    streams: tuple[StreamTiming, ...]
    layers: tuple[LayerTiming, ...] = ()
    origin: str = ORIGIN

    @property
    def bottlenecks(self) -> tuple[str, ...]:
        """The processes that never wait, all ties. Empty where each waits at times: then a FIFO is too short for the
        pace of its neighbours, or processes wait for one another in turn."""
        return tuple(p.name for p in self.processes if p.cycles and p.busy >= p.cycles)

    @property
    def busiest(self) -> tuple[str, ...]:
        """The processes that wait least; `bottlenecks`, where there are some."""
        most = max((p.busy for p in self.processes), default=0.0)
        return self.bottlenecks or tuple(p.name for p in self.processes if p.busy == most)

    @property
    def short(self) -> tuple[StreamTiming, ...]:
        """FIFOs in which the writer waits for room at one time and the reader for words at another: with more room both
        would wait less, and where no process is always busy, samples would come faster."""
        return tuple(s for s in self.streams if s.empty and s.full)

    @property
    def inferences_per_s(self) -> float:
        return self.clock_hz / self.cycles if self.cycles else float("inf")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bottlenecks": list(self.bottlenecks), "inferences_per_s": self.inferences_per_s}


@runtime_checkable
class Timed(Protocol):
    """What a loaded program offers beside the contract of `Loaded` where its device has clocks."""

    def timing(self, depths: Mapping[str, int]) -> Timing:
        """Simulate until the steady state. `depths`: words of FIFOs by stream, in place of the sources' own. Raises
        CuvilError for a stream that isn't there, DeviceError for a deadlock."""


def timing_of(loaded: Loaded, depths: Mapping[str, int], program: str) -> Timing:
    """See Timed. Raises CuvilError for a device without clocks."""
    if not isinstance(loaded, Timed):
        raise CuvilError(f"{program}: its target's interface {CYCLES!r} has no clocks")
    return loaded.timing(depths)


Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ends:
    """Where results end: in these processes, each so many cycles after the design's own last word. `ports`: names of
    ports by the simulator's names of their DMA engines."""

    processes: tuple[str, ...]
    late: int = 0
    ports: Mapping[str, str] = field(default_factory=dict)


def measure(simulate: Callable[[int], Raw], program: str, clock_hz: float, ends: Ends) -> Timing:
    """The timing of a design. `simulate`: run so many samples, from the beginning, and return what cuvil_sim_timing
    says; it is asked for more until the design is in its steady state, at most MOST."""
    samples = FIRST
    while True:
        raw = simulate(samples)
        period = _period(raw, samples)
        if period or samples >= MOST:
            return _timing(raw, samples, period, program, clock_hz, ends)
        samples *= 2


def elapsed(raw: Raw, ends: Ends) -> int:
    """Cycles until the last word of the last result."""
    last: int = max(p["samples"][-1][1] for p in raw["processes"] if p["name"] in ends.processes)
    return last - ends.late


def _components(raw: Raw) -> list[set[str]]:
    """Names of processes that streams join, directly or not. What isn't joined may run at a pace of its own."""
    group = {p["name"]: {p["name"]} for p in raw["processes"]}
    for s in raw["streams"]:
        joined = group[s["writer"]] | group[s["reader"]]
        group |= dict.fromkeys(joined, joined)
    return list({id(g): g for g in group.values()}.values())


def _period(raw: Raw, samples: int) -> int:
    """The least number of samples after which all parts of the design repeat; 0 where one doesn't, yet."""
    parts = [_states(raw, names, samples) for names in _components(raw)]
    for period in range(1, samples // 2):
        if all(states[-1 - n] == states[-1 - n - period] for states in parts for n in range(2)):
            return period
    return 0


def _states(raw: Raw, names: set[str], samples: int) -> list[tuple[Any, ...]]:
    """What decides about all that comes, after each sample, relative to the begin of the first process."""
    processes = [p["samples"] for p in raw["processes"] if p["name"] in names]
    streams = [s["reads"] for s in raw["streams"] if s["reader"] in names]
    found: list[tuple[Any, ...]] = []
    for n in range(samples):
        base = processes[0][n][0]
        times = [(begin - base, end - base, events) for begin, end, events in (p[n] for p in processes)]
        fills = [(r[n][3], r[n][2] - (r[n - 1][2] if n else 0)) for r in streams]
        found.append((times, fills))
    return found


def _timing(raw: Raw, samples: int, period: int, program: str, clock_hz: float, ends: Ends) -> Timing:
    span, last = period or 1, samples - 1

    def each(rows: Sequence[Sequence[int]], field: int) -> float:
        """How much a count grew from sample to sample."""
        return (rows[last][field] - rows[last - span][field]) / span

    called = {p["name"]: p["name"] for p in raw["processes"]} | {n: f"DMA of {p}" for n, p in ends.ports.items()}
    pace = {p["name"]: each(p["samples"], 1) for p in raw["processes"]}
    streams = tuple(
        StreamTiming(
            name=f"port {ends.ports[s['name']]}" if s["name"] in ends.ports else s["name"],
            writer=called[s["writer"]],
            reader=called[s["reader"]],
            depth=s["depth"],
            words=each(s["reads"], 2),
            most=s["most"],
            mean=each(s["reads"], 1) / pace[s["reader"]] if pace[s["reader"]] else 0.0,
            empty=each(s["reads"], 0),
            full=each(s["writes"], 0),
        )
        for s in raw["streams"]
    )
    order = sorted(pace, key=lambda name: name in ends.processes)
    processes = tuple(_process(called[name], pace[name], streams) for name in order)
    last_words = [p["samples"] for p in raw["processes"] if p["name"] in ends.processes]
    cycles = max(each(rows, 1) for rows in last_words)
    first = max(rows[0][1] for rows in last_words) - ends.late
    return Timing(program, clock_hz, cycles, period, first, samples, processes, streams)


def _process(name: str, cycles: float, streams: Sequence[StreamTiming]) -> ProcessTiming:
    words = sum(s.empty for s in streams if s.reader == name)
    room = sum(s.full for s in streams if s.writer == name)
    return ProcessTiming(name, cycles, cycles - words - room, words, room)

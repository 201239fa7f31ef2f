"""A network of processes in simulated time: cycles per sample, latency, who waits for whom.

Silicon can only be slower: pipelines have no latency here, and a word is there one cycle after it was written. An
iteration of a pipelined loop starts an interval after the one before; a read waits until the word is there, a write
until the word `depth` places before was read, and each end of a stream moves one word a cycle. The DMA offers a word of
the bus a cycle, and takes one. A process starts with its next sample as soon as it is through with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cuvil_hw.adapters.streaming.timing.machine import machine
from cuvil_hw.adapters.streaming.timing.network import Counts, Dataflow
from cuvil_hw.errors import CuvilError

SAMPLES = 4  # from which on networks mostly repeat themselves
MOST_SAMPLES = 16


@dataclass(frozen=True)
class Simulated:
    """A network that ran for some samples.

    `begun`: the cycle in which each process moves its first word of a sample, (process, sample); `through`: that in
    which it is through with it; `waited`: cycles that a
    stream's reader [0] and writer [1] waited, (side, stream, sample); `most`: words that were in a stream at a time;
    `blame`: for the end of each sample of each process, the stream whose lack of room was the last to decide when,
    -1 for none, and when that was, (2, process, sample); `stuck`: of each process, the stream that it waits for
    when nothing moves any more, 2 · stream + (1 for room), else -1."""

    network: Dataflow
    depths: tuple[int, ...]
    begun: Counts
    through: Counts
    waited: Counts
    most: Counts
    blame: Counts
    stuck: Counts

    @property
    def deadlock(self) -> bool:
        return bool((self.stuck >= 0).any())

    @property
    def results(self) -> Counts:
        """The cycle in which each sample's last word is out."""
        return np.asarray(self.through[list(self.network.sinks)].max(axis=0))

    @property
    def period(self) -> int:
        """After how many samples everything repeats; 0: not yet."""
        steps = np.diff(self.through, axis=1)
        for n in range(1, steps.shape[1] // 2 + 1):
            last, before = steps[:, -n:], steps[:, -2 * n : steps.shape[1] - n]
            if (last == before).all() and (last.sum(axis=1) == last[0].sum()).all():
                return n
        return 0

    @property
    def interval(self) -> float:
        """Cycles from one sample to the next: the mean of a period, or of the last two samples."""
        ends, n = self.results, self.period or 1
        return float(ends[-1] - ends[-1 - n]) / n if len(ends) > n else float(ends[-1])

    @property
    def blamed(self) -> int:
        """The stream whose lack of room was the last to decide when the last sample ended; -1 if none does sample after
        sample."""
        last = max(self.network.sinks, key=lambda p: self.through[p, -1], default=-1)
        if last < 0:
            return -1
        stream, when = self.blame[:, last, -1]
        return int(stream) if self.blame.shape[2] < 2 or when > self.blame[1, last, -2] else -1

    def waits(self) -> list[str]:
        """Who waits for whom where nothing moves any more."""
        lines = []
        for p, what in enumerate(self.stuck):
            if what < 0:
                continue
            s, name = self.network.streams[what // 2], self.network.processes[p].name
            other = self.network.processes[s.reader if what % 2 else s.writer].name
            if what % 2:
                depth = self.depths[what // 2]
                lines.append(f"{name} waits for room in {s.name}, full with {depth} words, which {other} reads")
            else:
                lines.append(f"{name} waits for a word of {s.name}, which {other} writes")
        return lines


def run(network: Dataflow, depths: Sequence[int] | None = None, samples: int = SAMPLES, pace: int = 0) -> Simulated:
    """Run a network for `samples` samples. `depths`: of its streams, in words, instead of its own; `pace`: cycles for a
    sample to which every process is slowed down, evenly over its sample."""
    _, timed = machine()
    depths = tuple(s.depth for s in network.streams) if depths is None else tuple(depths)
    traces, streams = network.processes, network.streams
    begin = np.cumsum([0, *(len(t.events) for t in traces)])
    shift = np.array([t.shift for t in traces], np.int64)
    base = np.full((len(traces), max((len(t.streams) for t in traces), default=0) or 1), -1, np.int64)
    for n, t in enumerate(traces):
        base[n, : len(t.streams)] = t.streams
    inside = [min(d, samples * s.words) if s.op is not None else 1 for s, d in zip(streams, depths, strict=True)]
    room = np.array([1 << max(d - 1, 0).bit_length() for d in inside], np.int64)
    begun, through = np.zeros((2, len(traces), samples), np.int64)
    waited = np.zeros((2, len(streams), samples), np.int64)
    most, blame = np.zeros(len(streams), np.int64), np.zeros_like(through)
    stuck = timed(
        np.concatenate([t.events for t in traces]), begin, np.array([t.tail for t in traces], np.int64), shift, base,
        np.array([[s.writer, s.reader] for s in streams], np.int64), np.array(depths, np.int64), room,
        np.cumsum([0, *room]), np.array([max(t.cycles, 1) for t in traces], np.int64), pace, samples, begun,
        through, waited, most, blame,
    )  # fmt: skip
    who = np.stack([(blame & 0xFFFF) - 1, blame >> 16])
    return Simulated(network, depths, begun, through, waited, most, who, stuck)


def settled(network: Dataflow, depths: Sequence[int] | None = None) -> Simulated:
    """Run a network until it repeats itself, or for MOST_SAMPLES, or until it stands still."""
    samples = SAMPLES
    while True:
        found = run(network, depths, samples)
        if found.deadlock or found.period or samples >= MOST_SAMPLES:
            return found
        samples *= 2


def steady(network: Dataflow, depths: Sequence[int] | None = None) -> Simulated:
    """The same for a network that goes on. Raises CuvilError for a deadlock, with who waits for whom."""
    found = settled(network, depths)
    if found.deadlock:
        raise CuvilError("\n  ".join(["the design stands still, every process waits:", *found.waits()]))
    return found

"""What a simulation in time says of a streaming design, as data for reports and devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ORIGIN = "simulated (timing model)"


@dataclass(frozen=True, slots=True)
class WaitTime:
    """Cycles of each sample for which a process waits at a stream: for a word, or for room (`full`). `process`: the one
    at the other end, or the port."""

    stream: str
    process: str
    cycles: float
    full: bool


@dataclass(frozen=True, slots=True)
class ProcessTime:
    """`cycles`: for a sample when it never waits; `first`: cycles in which it moves its first word of the first sample,
    and is through with that, from the sample's first word in."""

    name: str
    cycles: int
    waits: tuple[WaitTime, ...] = ()
    first: tuple[int, int] = (0, 0)


def layer_of(process: str, layers: Sequence[str], other: str = "") -> str:
    """The layer that a process belongs to; `other` for ports, forks and converters. Processes are named after their
    layers."""
    found = [name for name in layers if process == name or process.startswith(f"{name}_")]
    return max(found, key=len, default=other)


@dataclass(frozen=True, slots=True)
class DesignTiming:
    """A design in its steady state.

    Attributes:
        interval: cycles from one sample to the next.
        latency: cycles from the first word in until the last word of the first result is out.
        ideal: cycles from one sample to the next with FIFOs without end: those of the slowest process.
        processes: in the order of the design.
        cause: the stream whose lack of room makes the interval longer than `ideal`; "" if none does.
        use: per axis, what FIFOs take that are deeper than a design needs to run at all.
        notes: FIFOs for which there was no memory, with what that costs.
    """

    interval: float
    latency: int
    ideal: int
    processes: tuple[ProcessTime, ...]
    cause: str = ""
    use: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def slowest(self) -> tuple[str, ...]:
        """All processes, ports and converters included, that decide the interval."""
        if self.interval > self.ideal:
            return ()
        return tuple(p.name for p in self.processes if p.cycles == self.ideal)

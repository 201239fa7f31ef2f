"""FIFO depths at which a design is as fast as its slowest process alone, within a budget of memory.

Processes that don't wait in a circle need as long for a sample, over FIFOs without end, as the slowest of them does
when it never waits (`ideal`). When all are slowed down evenly to that pace, none waits in the end, and the most words
that a FIFO then holds at a time are room enough: the design that isn't slowed down can only be faster. What a FIFO
doesn't need of that is taken away again.

Where memory doesn't suffice for these depths, FIFOs grow from the least ones instead: the chain of events that decides
when a sample ends holds one that waited for room, and that FIFO gets larger, until none is left or memory is used up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cuvil_hw.adapters.streaming.timing.network import Dataflow
from cuvil_hw.adapters.streaming.timing.simulate import MOST_SAMPLES, SAMPLES, Simulated, run, settled, steady

FIRST = 32  # words that a shift register or a block of distributed memory holds at least
SLACK = 16  # words for what the pipelines of both ends hold, which have no latency in the simulation
EFFORT = 40_000_000  # events that are simulated to make FIFOs smaller: about a second
# Use per axis of a FIFO: depth in words, bits of a word.
Price = Callable[[int, int], Mapping[str, float]]
Depths = tuple[int, ...]


@dataclass(frozen=True)
class Narrow:
    """A FIFO that would have to be deeper: what it has, and what the design then takes a sample, in cycles."""

    stream: str
    depth: int
    cycles: float


@dataclass(frozen=True)
class Sized:
    """`depths`: of the network's streams; `run`: at these depths; `ideal`: cycles a sample with endless FIFOs;
    `use`: per axis, of what is deeper than the network's own; `narrow`: FIFOs for which there was no memory."""

    depths: Depths
    run: Simulated
    ideal: int
    use: Mapping[str, float] = field(default_factory=dict)
    narrow: tuple[Narrow, ...] = ()


def ideal(network: Dataflow) -> int:
    """Cycles a sample over FIFOs without end: those of the slowest process, or of the port with most words."""
    busy = [t.cycles for t in network.processes]
    return max([*busy, *(s.words for s in network.streams)], default=0)


def sized(network: Dataflow, price: Price, spare: Mapping[str, float]) -> Sized:
    """Depths for all streams, at least those that the network has. `spare`: what may be used of each axis beyond the
    FIFOs as they are. Raises CuvilError when the design stands still even so."""
    least, best = tuple(s.depth for s in network.streams), ideal(network)
    budget = _Budget(network, least, price, spare)
    found = settled(network, least)
    if not _faster(found, best):
        wide = paced(network, best)
        if wide is not None and budget.fits(wide):
            depths = _trimmed(network, budget, wide)
            return Sized(depths, steady(network, depths), best, budget.use(depths))
        return _grown(network, budget, steady(network, least), best)
    return Sized(least, found, best)


def paced(network: Dataflow, pace: int) -> Depths | None:
    """Depths at which a sample takes no more than `pace` cycles; None where no process settles down to it."""
    samples, endless = SAMPLES, [max(s.depth, 2 * s.words) for s in network.streams]
    while samples <= MOST_SAMPLES:
        found = run(network, endless, samples, pace)
        if _faster(found, pace):
            wanted = zip(network.streams, found.most.tolist(), strict=True)
            return tuple(s.depth if most <= s.depth else _step(most + SLACK) for s, most in wanted)
        samples *= 2
    return None


def _step(words: int) -> int:
    """The deepest FIFO that isn't dearer than one of `words`: a power of two, at least FIRST."""
    return max(FIRST, 1 << (words - 1).bit_length())


@dataclass(frozen=True)
class _Budget:
    network: Dataflow
    least: Depths
    price: Price
    spare: Mapping[str, float]

    def extra(self, stream: int, depth: int) -> dict[str, float]:
        """Use beyond the least depth."""
        if depth <= self.least[stream]:
            return {}
        bits = self.network.streams[stream].bits
        before = self.price(self.least[stream], bits)
        return {axis: use - before.get(axis, 0.0) for axis, use in self.price(depth, bits).items()}

    def use(self, depths: Sequence[int]) -> dict[str, float]:
        """Use of all streams beyond their least depths."""
        total: dict[str, float] = {}
        for s, depth in enumerate(depths):
            for axis, use in self.extra(s, depth).items():
                total[axis] = total.get(axis, 0.0) + use
        return total

    def fits(self, depths: Sequence[int]) -> bool:
        return all(use <= self.spare.get(axis, use) for axis, use in self.use(depths).items())

    def weight(self, stream: int, depth: int) -> float:
        """The largest share of a resource that is left."""
        shares = [use / max(self.spare.get(axis, 0.0), 1.0) for axis, use in self.extra(stream, depth).items()]
        return max(shares, default=0.0)


def _trimmed(network: Dataflow, budget: _Budget, depths: Depths) -> Depths:
    """Smaller depths at which a sample takes no longer, the dearest FIFO first: the least, or half and half again."""
    wanted, events, left = steady(network, depths).interval, sum(len(p.events) for p in network.processes), EFFORT
    grown = [s for s, d in enumerate(depths) if d > budget.least[s]]
    halving = False
    while grown and left > 0:
        kept = []
        for s in sorted(grown, key=lambda s: (-budget.weight(s, depths[s]), s)):
            if left <= 0:
                break
            smaller = max(depths[s] // 2, budget.least[s]) if halving else budget.least[s]
            trial = (*depths[:s], smaller, *depths[s + 1 :])
            found = run(network, trial)
            left -= events * SAMPLES
            if _faster(found, wanted) and not found.period:
                found = steady(network, trial)
                left -= events * 2 * found.through.shape[1]
            if _faster(found, wanted):
                depths = trial
                if smaller > FIRST:
                    kept.append(s)
            elif not halving and depths[s] > FIRST:
                kept.append(s)
        grown, halving = kept, True
    return depths


def _faster(found: Simulated, cycles: float) -> bool:
    return not found.deadlock and found.interval <= cycles


def _grown(network: Dataflow, budget: _Budget, found: Simulated, best: int) -> Sized:
    """From the least depths, each time the FIFO that decides, as long as there is memory."""
    depths = budget.least
    while found.interval > best and (s := found.blamed) >= 0:
        have, words = depths[s], network.streams[s].words
        deeper = [d for d in (_step(4 * have), _step(have + 1)) if have < d <= _step(2 * words)]
        trials = [(*depths[:s], d, *depths[s + 1 :]) for d in deeper]
        larger = next((t for t in trials if budget.fits(t)), None)
        if larger is None:
            return Sized(
                depths, found, best, budget.use(depths), (Narrow(network.streams[s].name, have, found.interval),)
            )
        depths, found = larger, steady(network, larger)
    return Sized(depths, found, best, budget.use(depths))

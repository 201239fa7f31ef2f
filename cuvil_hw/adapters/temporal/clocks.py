"""What the simulator with clocks found of a temporal design (sim/dataflow/cuvil_sim_bursts.h), layer by layer and of
all layers together."""

from __future__ import annotations

from collections.abc import Sequence

from cuvil_hw.contract.timing import LayerTiming, ProcessTiming, Raw, StreamTiming, Timing

# What a layer is bound by where this process waits least.
BOUND = {
    "fetch_features": "feature maps",
    "place_features": "feature maps",
    "fetch_first": "feature maps",
    "fetch_second": "feature maps",
    "reorder": "feature maps",
    "store": "feature maps",
    "fetch_weights": "weights",
    "multiply": "compute",
    "rescale": "compute",
    "add_scaled": "compute",
}
LOOP = "loops"  # the vector unit, in time


def cycles(raw: Raw) -> int:
    """Of a sample."""
    return sum(p["cycles"] for p in raw["passes"])


def timing(raw: Raw, layers: Sequence[str], program: str, clock_hz: float) -> Timing:
    """`layers`: names of the passes. Samples don't overlap, so all are like the first."""
    total = cycles(raw)
    passes = tuple(LayerTiming(n, p["cycles"], _bound(p)) for n, p in zip(layers, raw["passes"], strict=True))
    streams = _streams(raw, total)
    return Timing(program, clock_hz, total, 1, total, 1, _processes(raw, streams, total), streams, passes)


def _bound(found: Raw) -> str:
    """By what one pass is bound: what the process does that waits least for others."""
    busy = _busy(found)
    return BOUND[max(busy, key=lambda name: busy[name])] if busy else LOOP


def _busy(found: Raw) -> dict[str, int]:
    """Cycles in which each process of a pass waits for no stream; waits for the memory are its own."""
    busy = {name: at for name, at, _ in found["processes"]}
    for _, writer, reader, *_, for_words, for_room in found["streams"]:
        busy[reader] -= for_words
        busy[writer] -= for_room
    return busy


def _streams(raw: Raw, total: int) -> tuple[StreamTiming, ...]:
    """Streams of all passes by their name and ends; the depth and the most words are those of the fullest."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for name, writer, reader, *counts in (s for p in raw["passes"] for s in p["streams"]):
        depth, words, most, held, empty, full = found.setdefault((name, writer, reader), [0] * 6)
        new = counts
        found[name, writer, reader] = [
            max(depth, new[0]), words + new[1], max(most, new[2]), held + new[3], empty + new[4], full + new[5]
        ]  # fmt: skip
    return tuple(
        StreamTiming(*key, depth, words, most, held / total if total else 0.0, empty, full)
        for key, (depth, words, most, held, empty, full) in sorted(found.items())  # else in the order of the host
    )


def _processes(raw: Raw, streams: Sequence[StreamTiming], total: int) -> tuple[ProcessTiming, ...]:
    """Each process over all passes. While layers run that don't need it, it waits for words."""
    busy: dict[str, int] = {}
    for found in raw["passes"]:
        for name, cycles_ in _busy(found).items():
            busy[name] = busy.get(name, 0) + cycles_
    loops = sum(p["cycles"] for p in raw["passes"] if not p["processes"])
    if loops:
        busy[LOOP] = loops
    rows = []
    for name, own in busy.items():
        room = sum(s.full for s in streams if s.writer == name)
        rows.append(ProcessTiming(name, total, own, total - own - room, room))
    return tuple(rows)

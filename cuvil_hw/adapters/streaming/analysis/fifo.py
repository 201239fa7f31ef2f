"""FIFO depths: how far one branch of a fork runs ahead of the other before they meet again.

Each process is described by `needs`: before word k of its output leaves, how many words of its input have been read.
Along a path these compose. A bypass must hold what the longer path has swallowed when the shorter one could already
deliver; with less the design would stop for ever, at any speed of its parts. Bursts only change throughput, for which a
small depth serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cuvil_hw.adapters.streaming.analysis.stage import Sweep

Counts = npt.NDArray[np.int64]
SLACK_WORDS = 16  # registers of a pipelined loop that holds words while it waits (typical latency of these loops)


def dense_needs(pixels: int, words_in: int, words_out: int) -> Counts:
    """A matrix-vector unit reads a whole window before its first output."""
    return np.repeat(np.arange(1, pixels + 1) * words_in, words_out).astype(np.int64)


def depthwise_needs(pixels: int, taps: int, fold: int) -> Counts:
    """The result of a channel fold leaves with its last tap."""
    last = np.arange(pixels).reshape(-1, 1) * taps * fold + (taps - 1) * fold + np.arange(1, fold + 1)
    return np.asarray(last.ravel(), np.int64)


def convert_needs(words_out: int, lanes_in: int, lanes_out: int) -> Counts:
    k = np.arange(1, words_out + 1)
    return np.asarray(
        k * (lanes_out // lanes_in) if lanes_out >= lanes_in else -(-k // (lanes_in // lanes_out)), np.int64
    )


def map_needs(words: int) -> Counts:
    return np.arange(1, words + 1, dtype=np.int64)


def held_needs(sweeps: Sequence[Sweep], stream: int) -> Counts:
    """An elementwise stage reads a word in a step in which all loops are at their start that the stream doesn't
    follow."""
    fresh = np.ones(1, bool)
    for sweep in sweeps:
        digit = np.arange(sweep.extent)
        fresh = (fresh[:, None] & ((digit == 0) | sweep.moves[stream])).ravel()
    return np.cumsum(fresh, dtype=np.int64)


def all_needs(words_in: int, words_out: int) -> Counts:
    """A buffered process reads everything first."""
    return np.full(words_out, words_in, np.int64)


@dataclass(frozen=True, slots=True)
class Edge:
    """One stream between two processes: how many words cross it for one sample."""

    name: str
    source: str
    target: str
    words: int


def depths(
    edges: Sequence[Edge], needs: Mapping[tuple[str, str], Callable[[], Counts]], order: Sequence[str], default: int = 2
) -> dict[str, int]:
    """Depth of every stream. `needs[process, input edge]`: per output word, input words read before; `order`:
    topological.

    Every edge gets `default`; edges into a process with several inputs get what their fork demands. For each edge
    the words of every *source* (a process without inputs, or a fork) that it takes to bring its k-th word are
    tracked: of a fork until its branches have met, and on streams that aren't read yet. So what is held at a time
    depends on how many branches are open, not on the length of the design.
    """
    into: dict[str, list[Edge]] = {p: [] for p in order}
    outof: dict[str, list[Edge]] = {p: [] for p in order}
    for e in edges:
        into[e.target].append(e)
        outof[e.source].append(e)
    origin: dict[str, dict[str, Counts]] = {}  # edge → {fork: words out of the fork before the edge's k-th word}
    behind: dict[str, frozenset[str]] = {}  # edge → every fork before it
    carried: dict[str, set[str]] = {}  # fork → the edges that track it
    result = {e.name: default for e in edges}
    roots: dict[str, frozenset[str]] = {}  # process → the inputs of the design that reach it
    for p in order:
        arriving: dict[str, Counts] = {}
        roots[p] = frozenset().union(*[roots[e.source] for e in into[p]]) or frozenset([p])
        for e in into[p]:
            if not origin[e.name] or not outof[p]:
                continue
            need = needs[p, e.name]()
            for fork, counts in origin[e.name].items():
                here = _after(counts, need)
                arriving[fork] = np.maximum(arriving[fork], here) if fork in arriving else here
        if len(into[p]) > 1:
            _widen(p, into[p], needs, origin, arriving, result)
            for e in _crossing(p, edges, into[p], behind, roots):
                result[e.name] = e.words + SLACK_WORDS
        for e in into[p]:
            for fork in origin.pop(e.name):
                carried[fork].discard(e.name)
        open_ = {fork: counts for fork, counts in arriving.items() if carried[fork]}  # else all its branches end here
        before = frozenset().union(*[behind.pop(e.name) for e in into[p]])
        for e in outof[p]:
            origin[e.name], behind[e.name] = dict(open_), before
            if len(outof[p]) > 1:
                origin[e.name][p] = np.arange(1, e.words + 1, dtype=np.int64)
                behind[e.name] |= {p}
            for fork in origin[e.name]:
                carried.setdefault(fork, set()).add(e.name)
    return result


def _after(counts: Counts, need: Counts) -> Counts:
    """Words out of a fork before so many words of an edge have come; none for none."""
    found: Counts = counts[np.maximum(need, 1) - 1]
    found[need < 1] = 0
    return found


def _widen(
    p: str, ins: Sequence[Edge], needs: Mapping[tuple[str, str], Callable[[], Counts]],
    origin: Mapping[str, Mapping[str, Counts]], arriving: Mapping[str, Counts], result: dict[str, int],
) -> None:  # fmt: skip
    """Give each input of a join room for the words that its fork has sent before the join can take them."""
    for e in ins:
        taken = needs[p, e.name]()
        for fork, counts in origin[e.name].items():
            if sum(fork in origin[o.name] for o in ins) < 2:
                continue
            sent = arriving[fork]  # words out of the fork when the join makes its k-th step
            early = _after(counts, taken) < sent  # steps for which another branch decides
            waiting = np.searchsorted(counts, sent, side="right") - taken
            most = int(waiting[early].max(initial=0))
            result[e.name] = max(result[e.name], most + SLACK_WORDS) if early.any() else result[e.name]


def _crossing(
    p: str,
    edges: Sequence[Edge],
    ins: Sequence[Edge],
    behind: Mapping[str, frozenset[str]],
    roots: Mapping[str, frozenset[str]],
) -> list[Edge]:
    """Inputs of a join that may run ahead of another one by any number of words, so that the whole tensor has to fit.

    That takes a design with several inputs: another stream waits for a fork of an input that this one doesn't come
    from, and stopping this one may stop that fork, since the two meet elsewhere too.
    """
    result = []
    for e in ins:
        others = [o for o in ins if any(roots[fork] - roots[e.source] for fork in behind[o.name])]
        if behind[e.name] and any(_connected(edges, e.source, o.source, p) for o in others):
            result.append(e)
    return result


def _connected(edges: Sequence[Edge], a: str, b: str, without: str) -> bool:
    """Whether processes a and b are joined by streams, in any direction, that don't touch `without`."""
    seen, stack = {without, a}, [a]
    while stack:
        here = stack.pop()
        for e in edges:
            for near, far in ((e.source, e.target), (e.target, e.source)):
                if near == here and far not in seen:
                    seen.add(far)
                    stack.append(far)
    return b in seen

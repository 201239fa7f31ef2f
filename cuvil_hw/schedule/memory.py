"""Places every temporary buffer of a program in one arena; buffers that are never alive at the same time share bytes.

Inputs, outputs and constants are never placed: an output is the user's memory and must not serve as scratch, even
before its own kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import DoesNotFit
from cuvil_hw.schedule.kernel import Buffer, KernelGraph
from cuvil_hw.schedule.resources import Resource


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where temporary buffers lie in the arena.

    Attributes:
        offset_bytes: offset of each temporary buffer.
        size_bytes: size of the arena.
        lower_bound_bytes: most bytes alive at once; no arena can be smaller.
        lifetimes: positions of the first and last kernel (both inclusive) that use a buffer.
        peak_kernel: position of the kernel with the most bytes alive; None without buffers.
    """

    offset_bytes: Mapping[str, int]
    size_bytes: int
    lower_bound_bytes: int
    lifetimes: Mapping[str, tuple[int, int]]
    alignment: int
    peak_kernel: int | None


STEPS = 3  # of a loop that a check replays: first, second and last one
NO_ARENA = MemoryPlan({}, 0, 0, {}, 1, None)  # of kernels that stream


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of a buffer, dense: elements × size of the dtype's NumPy container."""
    return buffer.type.size * to_numpy(buffer.type.dtype).itemsize


def plan_memory(graph: KernelGraph, *, alignment: int, bytes_of: Callable[[Buffer], int] = buffer_bytes) -> MemoryPlan:
    """Places for all buffers of role "temp"; `bytes_of`: the size of each.

    Offsets and the arena's size are multiples of `alignment` (bytes, a power of two). A kernel's output never overlaps
    its inputs. Several greedy orders are tried and the smallest arena wins.
    Raises ValueError for a graph whose kernels aren't in topological order, or an alignment that isn't a power of two.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is not a power of two")
    lifetimes = _lifetimes(graph)
    size = {n: -(-bytes_of(graph.buffers[n]) // alignment) * alignment for n in lifetimes}
    change = [0] * (len(graph.kernels) + 1)
    for name, (first, last) in lifetimes.items():
        change[first] += size[name]
        change[last + 1] -= size[name]
    alive = list(accumulate(change[:-1]))
    bound = max(alive, default=0)
    span = {n: b - a + 1 for n, (a, b) in lifetimes.items()}
    orders = (
        sorted(lifetimes, key=lambda n: (-size[n], lifetimes[n], n)),
        sorted(lifetimes, key=lambda n: (-size[n] * span[n], lifetimes[n], n)),
        sorted(lifetimes, key=lambda n: (lifetimes[n][0], -size[n], n)),
    )
    plans = [_place(order, size, lifetimes) for order in orders]
    arena, offsets = min(((max((o + size[n] for n, o in p.items()), default=0), p) for p in plans), key=lambda p: p[0])
    return MemoryPlan(
        offset_bytes={n: offsets[n] for n in lifetimes},
        size_bytes=arena,
        lower_bound_bytes=bound,
        lifetimes=lifetimes,
        alignment=alignment,
        peak_kernel=alive.index(bound) if bound else None,
    )


def _is_temp(graph: KernelGraph, name: str) -> bool:
    return graph.buffers[name].role == "temp" and name not in graph.inputs and name not in graph.outputs


def _lifetimes(graph: KernelGraph) -> dict[str, tuple[int, int]]:
    """The lifetime of each temporary buffer: from its first write to its last use. What a loop reads or writes beyond
    one step lives as long as the loop."""
    result: dict[str, tuple[int, int]] = {}
    lies = _bases(graph)
    for position, kernel in enumerate(graph.kernels):
        for given, name in ((n, b) for n in kernel.inputs for b in lies.get(n, (n,))):
            if _is_temp(graph, name):
                if name not in result and given not in lies:
                    raise ValueError(f"kernel {kernel.name} reads {name} before any kernel has written it")
                result[name] = (result.get(name, (position, position))[0], position)
        for name in lies.get(kernel.output, (kernel.output,)):
            if _is_temp(graph, name):
                result[name] = (result.get(name, (position, position))[0], position)
    for loop in reversed(graph.loops):  # inner ones first
        kept = {b for n in loop.bases for b in lies.get(n, (n,)) if _is_temp(graph, b)}
        for name in kept:
            result.setdefault(name, (loop.first, loop.last))
        for name, (first, last) in result.items():
            if first <= loop.last and last >= loop.first and (name in kept or first < loop.first):
                result[name] = (min(first, loop.first), max(last, loop.last))
    return result


def _bases(graph: KernelGraph) -> dict[str, tuple[str, ...]]:
    """The buffers in which each view may lie."""
    found: dict[str, tuple[str, ...]] = {}
    for loop in graph.loops:
        lies: dict[str, tuple[str, ...]] = {s.view: (s.whole,) for s in loop.sliced}
        for c in loop.carried:
            lies |= {c.read: (c.initial, c.even, c.odd), c.written: (c.final, c.even, c.odd)}
        found |= {view: tuple(b for n in names for b in found.get(n, (n,))) for view, names in lies.items()}
    return found


def _place(order: Sequence[str], size: Mapping[str, int], lifetimes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Place each buffer in turn into the tightest gap between the placed buffers that are alive at the same time. A
    buffer without bytes may lie anywhere."""
    names = [n for n in order if size[n]]
    low, high, first, last = np.zeros((4, len(names)), np.int64)
    for i, name in enumerate(names):
        first[i], last[i] = lifetimes[name]
        beside = np.flatnonzero((first[:i] <= last[i]) & (first[i] <= last[:i]))
        beside = beside[np.lexsort((high[beside], low[beside]))]
        free = np.maximum.accumulate(np.append(0, high[beside]))  # where all that lie lower end
        gaps = low[beside] - free[:-1]
        wide = np.flatnonzero(gaps >= size[name])
        low[i] = free[wide[gaps[wide].argmin()]] if wide.size else free[-1]
        high[i] = low[i] + size[name]
    return dict.fromkeys(order, 0) | dict(zip(names, low.tolist(), strict=True))


def verify_plan(graph: KernelGraph, plan: MemoryPlan) -> list[str]:
    """Everything wrong with a plan, in words; empty if it is sound.

    Independent of the planner: it replays the kernels' reads and writes on the arena and tracks which buffer holds each
    byte, so it doesn't trust the lifetimes either.
    """
    faults: list[str] = []
    extent: dict[str, range] = {}
    for name, buffer in graph.buffers.items():
        placed = name in plan.offset_bytes
        scratch = buffer.role == "temp" and name not in (*graph.inputs, *graph.outputs)
        if placed and not scratch:
            faults.append(f"{name} has role {buffer.role} and must not be placed")
        if not scratch:
            continue
        if not placed:
            if graph.producer(name) is not None:
                faults.append(f"{name} has no place")
            continue
        offset = plan.offset_bytes[name]
        extent[name] = range(offset, offset + buffer_bytes(buffer))
        if offset % plan.alignment:
            faults.append(f"{name} is at {offset}, not a multiple of {plan.alignment}")
        if offset < 0 or extent[name].stop > plan.size_bytes:
            faults.append(f"{name} at {offset}-{extent[name].stop} is outside the arena of {plan.size_bytes} bytes")
    holds: set[str] = set()
    for kernel, places in graph.runs(most=STEPS):
        base, start = places.get(kernel.output, (kernel.output, 0))
        out = _part(extent.get(base), start, graph.buffers[kernel.output])
        for name, _ in (places.get(n, (n, 0)) for n in kernel.inputs):
            if name in extent and name not in holds:
                faults.append(f"{kernel.name} reads {name}, which something else has overwritten")
            if out is not None and name != base and name in extent and _meet(extent[name], out):
                faults.append(f"{kernel.name} writes {kernel.output} over its own input {name}")
        if out is not None:
            holds = {n for n in holds if n == base or not _meet(extent[n], out)} | {base}
    return faults


def _part(whole: range | None, start: int, buffer: Buffer) -> range | None:
    """Where a buffer or view lies in the arena."""
    return None if whole is None else range(whole.start + start, whole.start + start + buffer_bytes(buffer))


def _meet(a: range, b: range) -> bool:
    return max(a.start, b.start) < min(a.stop, b.stop)


def check_live(graph: KernelGraph, plan: MemoryPlan, axes: Sequence[Resource], *, target: str) -> float:
    """Bytes in memory during a run: arena, inputs, outputs and constants. Raises DoesNotFit if they exceed an axis of
    rule "live" (in bytes)."""
    kept = [b for n, b in graph.buffers.items() if not _is_temp(graph, n) and b.role != "view"]
    need = float(plan.size_bytes + sum(buffer_bytes(b) for b in kept))
    for axis in axes:
        if axis.rule == "live" and need > axis.budget:
            at_peak = graph.kernels[plan.peak_kernel].name if plan.peak_kernel is not None else "inputs and constants"
            constants = sum(buffer_bytes(b) for b in kept if b.role == "const")
            nearest = (
                f"{plan.size_bytes:,} bytes are intermediate results and {constants:,} constants; "
                f"it takes a target with at least {need / axis.utilisation:,.0f} bytes of {axis.name}"
            )
            raise DoesNotFit(
                layer=at_peak, axis=axis.name, need=need, limit=axis.budget, nearest=nearest, target=target
            )
    return need

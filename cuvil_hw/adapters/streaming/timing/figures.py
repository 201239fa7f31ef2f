"""From a lowered design to what its report says about time: FIFOs get their depths, then the design runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import IntegerAttr, i32

from cuvil_hw.adapters.streaming.timing.network import Dataflow, network
from cuvil_hw.adapters.streaming.timing.simulate import Simulated
from cuvil_hw.adapters.streaming.timing.sizing import Price, Sized, sized
from cuvil_hw.ir.annotations import Fifo, annotate
from cuvil_hw.schedule.timing import DesignTiming, ProcessTime, WaitTime

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def time_design(
    module: ModuleOp,
    constants: Mapping[str, Any],
    price: Price,
    made_of: Callable[[int, int], str],
    spare: Mapping[str, float],
) -> DesignTiming:
    """Give the FIFOs of a streaming module the depths that its throughput needs, in place, and run it.

    Args:
        constants: arrays of the module's tables, by digest.
        price: use per axis of a FIFO of a depth and a width.
        made_of: what such a FIFO is made of; "" leaves it to the tools.
        spare: what of each axis the deeper FIFOs may use in all.

    Raises CuvilError for a design that stands still, Untimed for one whose control has no time model, ToolNotFound
    without numba.
    """
    joined = network(module, constants)
    found = sized(joined, price, spare)
    for stream, depth in zip(joined.streams, found.depths, strict=True):
        if stream.op is not None and depth != stream.depth:
            stream.op.properties["depth"] = IntegerAttr(depth, i32)
            if kind := made_of(depth, stream.bits):
                annotate(stream.op, Fifo(kind))
    return timing_of(found)


def timing_of(found: Sized) -> DesignTiming:
    """The figures of a sized design."""
    run, joined = found.run, found.run.network
    processes = tuple(
        ProcessTime(p.name, p.cycles, _waits(run, joined, n), (int(run.begun[n, 0]), int(run.through[n, 0])))
        for n, p in enumerate(joined.processes)
    )
    cause = joined.streams[run.blamed].name if run.interval > found.ideal and run.blamed >= 0 else ""
    notes = tuple(
        f"no memory is left for a deeper FIFO {n.stream} ({n.depth} words): a sample takes {n.cycles:,.0f} cycles "
        f"instead of {found.ideal:,}"
        for n in found.narrow
    )
    return DesignTiming(run.interval, int(run.results[0]), found.ideal, processes, cause, found.use, notes)


def _waits(run: Simulated, joined: Dataflow, process: int) -> tuple[WaitTime, ...]:
    """What a process waits for in each sample of a period, longest first."""
    last = run.period or 1
    found = []
    for s, stream in enumerate(joined.streams):
        for side, (own, other) in enumerate(((stream.reader, stream.writer), (stream.writer, stream.reader))):
            cycles = float(run.waited[side, s, -last:].mean())
            if own == process and cycles:
                name = joined.processes[other].name if other >= 0 else f"port {stream.name}"
                found.append(WaitTime(stream.name, name, cycles, bool(side)))
    return tuple(sorted(found, key=lambda w: -w.cycles))

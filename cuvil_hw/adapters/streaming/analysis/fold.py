"""Folding: the schedules of a streaming stage, and what they mean for its streams."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from cuvil_hw.adapters.streaming.analysis.floats import Cores, recurrence
from cuvil_hw.adapters.streaming.analysis.stage import Stage, lane_chain
from cuvil_hw.schedule.space import Level, Schedule

MAX_LANES = 64  # wider words cost routing more than they gain on the parts at hand
MAX_MULTIPLIERS = 512


def schedules(stage: Stage, cores: Cores) -> Iterator[Schedule]:
    """All foldings of a stage: outputs and inputs a cycle, where the weights live, what multiplies. `cores`: the float
    operators of the family; with them the cycles between two steps, where that is more than one."""
    if stage.kind == "buffered":
        yield Schedule((), (("kind", "buffered"), *_interval(stage, cores, stage.side_by_side)))
        return
    for pe in lane_chain(stage.channels_out):
        if pe > MAX_LANES:
            continue
        if stage.kind == "map":
            yield _schedule(stage, pe, 1, "", "")
            continue
        ii = _interval(stage, cores, stage.channels_out // pe)
        for simd in lane_chain(stage.channels_in) if stage.kind == "dense" and not stage.ordered else (1,):
            if simd > MAX_LANES or pe * simd > MAX_MULTIPLIERS:
                continue
            for memory in ("bram", "lutram") if weighted(stage) else ("",):
                for multiplier in ("dsp", "lut") if weighted(stage) and not stage.floats else ("",):
                    yield _schedule(stage, pe, simd, memory, multiplier, ii)


def weighted(stage: Stage) -> bool:
    """Whether the stage multiplies by constants that differ from tap to tap."""
    return any(b not in stage.sources for b in stage.kernel.inputs) and stage.kind in ("dense", "depthwise") and (
        stage.kernel.reduce is not None and stage.kernel.reduce.kind == "sum"
    )  # fmt: skip


def _interval(stage: Stage, cores: Cores, between: int) -> tuple[tuple[str, str], ...]:
    """The option `ii`, when a running value needs longer for a step than the `between` steps until it is used again."""
    reduce = stage.kernel.reduce
    wait = recurrence(reduce, cores) if reduce is not None and stage.floats else 0
    return (("ii", str(ceil(wait / between))),) if wait > between else ()


def interval(schedule: Schedule) -> int:
    """Cycles between two steps of a stage's loop."""
    return int(schedule.option("ii", "1"))


def _schedule(
    stage: Stage, pe: int, simd: int, memory: str, multiplier: str, ii: tuple[tuple[str, str], ...] = ()
) -> Schedule:
    stages = (("w", memory),) if memory else ()
    options = (("kind", stage.kind), *((("multiplier", multiplier),) if multiplier else ()), *ii)
    return Schedule((Level((("o", pe), ("c", simd)), "unroll", stages),), options)


def lanes(stage: Stage, schedule: Schedule) -> tuple[int, int]:
    """Elements a word on the input and on the output side."""
    pe, simd = schedule.tile("o", "unroll"), schedule.tile("c", "unroll")
    return (simd if stage.kind == "dense" else pe), pe

"""Folding: the schedules of a streaming stage, and what they mean for its streams."""

from __future__ import annotations

from collections.abc import Iterator

from cuvil_hw.adapters.fpga.stage import Stage, lane_chain
from cuvil_hw.schedule.space import Level, Schedule

MAX_LANES = 64  # wider words cost routing more than they gain on the parts at hand
MAX_MULTIPLIERS = 512


def schedules(stage: Stage) -> Iterator[Schedule]:
    """All foldings of a stage: outputs and inputs a cycle, where the weights live, what multiplies."""
    if stage.kind == "buffered":
        yield Schedule((), (("kind", "buffered"),))
        return
    for pe in lane_chain(stage.channels_out):
        if pe > MAX_LANES:
            continue
        if stage.kind == "map":
            yield _schedule(stage, pe, 1, "", "")
            continue
        for simd in lane_chain(stage.channels_in) if stage.kind == "dense" else (1,):
            if simd > MAX_LANES or pe * simd > MAX_MULTIPLIERS:
                continue
            for memory in ("bram", "lutram") if weighted(stage) else ("",):
                for multiplier in ("dsp", "lut") if weighted(stage) else ("",):
                    yield _schedule(stage, pe, simd, memory, multiplier)


def weighted(stage: Stage) -> bool:
    """Whether the stage multiplies by constants that differ from tap to tap."""
    return any(b not in stage.sources for b in stage.kernel.inputs) and stage.kind in ("dense", "depthwise") and (
        stage.kernel.reduce is not None and stage.kernel.reduce.kind == "sum"
    )  # fmt: skip


def _schedule(stage: Stage, pe: int, simd: int, memory: str, multiplier: str) -> Schedule:
    stages = (("w", memory),) if memory else ()
    options = (("kind", stage.kind), *((("multiplier", multiplier),) if multiplier else ()))
    return Schedule((Level((("o", pe), ("c", simd)), "unroll", stages),), options)


def lanes(stage: Stage, schedule: Schedule) -> tuple[int, int]:
    """Elements a word on the input and on the output side."""
    pe, simd = schedule.tile("o", "unroll"), schedule.tile("c", "unroll")
    return (simd if stage.kind == "dense" else pe), pe

"""Folding: how wide a streaming stage works, where its weights live, what multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from cuvil_hw.adapters.streaming.analysis.floats import Cores, recurrence
from cuvil_hw.adapters.streaming.analysis.stage import Stage, lane_chain

MAX_LANES = 64  # wider words cost routing more than they gain on the parts at hand
MAX_MULTIPLIERS = 512


@dataclass(frozen=True, slots=True)
class Folding:
    """`pe` outputs and `simd` inputs a cycle; `memory`: of the weights, "bram", "lutram" or "" without weights;
    `multiplier`: "dsp", "lut", or "" where there is no choice; `ii`: cycles between two steps of the stage's loop."""

    stage: Stage = field(compare=False, repr=False)
    pe: int = 1
    simd: int = 1
    memory: str = ""
    multiplier: str = ""
    ii: int = 1

    @property
    def lanes(self) -> tuple[int, int]:
        """Elements a word on the input and on the output side."""
        return (self.simd if self.stage.kind == "dense" else self.pe), self.pe

    def describe(self) -> str:
        weights = f" w@{self.memory}" if self.memory else ""
        parts = [f"unroll o={self.pe} c={self.simd}{weights}"] if self.stage.kind != "buffered" else []
        parts.append(f"kind={self.stage.kind}")
        parts += [f"multiplier={self.multiplier}"] if self.multiplier else []
        return "; ".join(parts + ([f"ii={self.ii}"] if self.ii > 1 else []))


def foldings(stage: Stage, cores: Cores) -> Iterator[Folding]:
    """All foldings of a stage. `cores`: the float operators of the family."""
    if stage.kind == "buffered":
        yield Folding(stage, ii=_interval(stage, cores, stage.side_by_side))
        return
    for pe in lane_chain(stage.channels_out):
        if pe > MAX_LANES:
            continue
        if stage.kind == "map":
            yield Folding(stage, pe)
            continue
        ii = _interval(stage, cores, stage.channels_out // pe)
        for simd in lane_chain(stage.channels_in) if stage.kind == "dense" and not stage.ordered else (1,):
            if simd > MAX_LANES or pe * simd > MAX_MULTIPLIERS:
                continue
            for memory in ("bram", "lutram") if weighted(stage) else ("",):
                for multiplier in ("dsp", "lut") if weighted(stage) and not stage.floats else ("",):
                    yield Folding(stage, pe, simd, memory, multiplier, ii)


def weighted(stage: Stage) -> bool:
    """Whether the stage multiplies by constants that differ from tap to tap."""
    return any(b not in stage.sources for b in stage.kernel.inputs) and stage.kind in ("dense", "depthwise") and (
        stage.kernel.reduce is not None and stage.kernel.reduce.kind == "sum"
    )  # fmt: skip


def _interval(stage: Stage, cores: Cores, between: int) -> int:
    """Cycles from one step to the next, when a running value is used again after `between` steps."""
    reduce = stage.kernel.reduce
    wait = recurrence(reduce, cores) if reduce is not None and stage.floats else 0
    return ceil(wait / between) if wait > between else 1

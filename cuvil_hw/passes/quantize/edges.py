"""What quantization sees of loops: which values are the same numbers on both sides of their edges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from xdsl.ir import SSAValue

from cuvil_hw.ir.loops import loops_of
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.quantize.calibrate import ObservedRange


@dataclass(frozen=True)
class Edges:
    """Values at the edges of a program's loops.

    Attributes:
        left: for a state at the start of a step, the same at its end.
        holds: for each result of an edge, a value whose elements it holds.
        becomes: the results in which a value's elements go on.
    """

    left: dict[SSAValue, SSAValue] = field(default_factory=dict)
    holds: dict[SSAValue, SSAValue] = field(default_factory=dict)
    becomes: dict[SSAValue, list[SSAValue]] = field(default_factory=dict)

    @staticmethod
    def of(program: Program) -> Edges:
        found = Edges()
        for loop in loops_of(program.block):
            pairs = [*((whole, part) for whole, part in loop.sliced), *((part, whole) for part, whole in loop.stacked)]
            for _, before, after, last in loop.carried:
                found.left[before] = after
                pairs += [(after, before), (after, last)]
            for source, result in pairs:
                found.holds[result] = source
                found.becomes.setdefault(source, []).append(result)
        return found


def share_range(ranges: dict[SSAValue, ObservedRange], a: SSAValue, b: SSAValue) -> None:
    """One range for both: a state at the start of a step is what the step before left."""
    if a in ranges and b in ranges:
        first, second = ranges[a], ranges[b]
        wider = first if first.absmax > second.absmax else second
        ranges[a] = ranges[b] = replace(wider, lo=min(first.lo, second.lo), hi=max(first.hi, second.hi))

"""Cycles that a design and its layers take at worst for one sample that finds the design empty.

No value decides about time (each process is a loop of known length whose reads and writes have a fixed order), so the
simulated cycles of a sample are those of every sample. To these comes what the simulation doesn't have: on the longest
way from the first input, the stages of pipelines, ports and memories of FIFOs; and steps that follow one another more
slowly than level2 asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import func

from cuvil_hw.adapters.streaming.rtl.depths import PORT, arrivals
from cuvil_hw.adapters.streaming.rtl.pipeline import Staged
from cuvil_hw.ir.level2 import AxisWriteOp
from cuvil_hw.schedule.slots import spans
from cuvil_hw.schedule.timing import DesignTiming, layer_of


def worst_cases(
    top: func.FuncOp, plans: Mapping[str, Staged], timing: DesignTiming, layers: Sequence[str]
) -> dict[str, int]:
    """By layer, from the first word that it takes to its last one out; "": the design, from the first word in to the
    last word of the result out. `plans`: of processes by their symbols."""
    written, began = arrivals(top, plans)
    late: dict[str, tuple[int, int]] = {}  # of each process, cycles behind the simulation: its first word, its last
    for op in top.body.block.ops:
        if isinstance(op, func.CallOp):
            symbol = op.callee.root_reference.data
            plan, args = plans[symbol], op.arguments
            ins, outs = args[: len(plan.reads)], args[len(plan.reads) :]
            first = min((written[v] for v in ins), default=0)
            late[symbol] = first, max((written[v] for v in outs), default=first + plan.last + 1)
    slower = {s: p.step.steps * (p.ii - p.step.ii) for s, p in plans.items()}
    found: dict[str, int] = {}
    for layer, cycles in spans({p.name: p.first for p in timing.processes}, layers).items():
        mine = [s for s in late if layer_of(s, layers) == layer]
        ends = max(late[s][1] for s in mine) - min(late[s][0] for s in mine) if mine else 0
        found[layer] = cycles + ends + sum(slower[s] for s in mine)
    outputs = [began[op.stream] for op in top.body.block.ops if isinstance(op, AxisWriteOp)]
    found[""] = timing.latency + max(outputs, default=0) + PORT + sum(slower.values())
    return found

"""A program with all that was decided of it: what an adapter lowers and plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.memory import MemoryPlan
from cuvil_hw.schedule.space import Choice


@dataclass(frozen=True, slots=True)
class Design:
    """`memory`: where intermediate results lie, with the adapter's alignment; `live_bytes`: memory that a run keeps;
    `overhead`: use per axis besides the kernels."""

    graph: KernelGraph
    choice: Choice
    memory: MemoryPlan
    live_bytes: float
    overhead: Mapping[str, float]

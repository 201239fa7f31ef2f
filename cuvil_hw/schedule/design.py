"""A program with all that was decided of it: what an adapter lowers and plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.memory import MemoryPlan
from cuvil_hw.schedule.slots import SlotUse
from cuvil_hw.schedule.space import Choice
from cuvil_hw.schedule.timing import DesignTiming

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Design:
    """`memory`: where intermediate results lie, with the adapter's alignment; `live_bytes`: memory that a run keeps;
    `overhead`: use per axis besides the kernels; `timing`: of a streaming design, once its adapter has timed it;
    `slots`: how its time slots are used."""

    graph: KernelGraph
    choice: Choice
    memory: MemoryPlan
    live_bytes: float
    overhead: Mapping[str, float]
    timing: DesignTiming | None = None
    slots: tuple[SlotUse, ...] = ()

    def forms(self, kind: type[F]) -> tuple[F, ...]:
        """The chosen form of every kernel, in their order. Raises TypeError for one of another kind."""
        chosen = [self.choice.candidate(k.name).form for k in self.graph.kernels]
        for form in chosen:
            if not isinstance(form, kind):
                raise TypeError(f"{form!r} is no {kind.__name__}")
        return tuple(chosen)  # type: ignore[arg-type]  # as was asked above

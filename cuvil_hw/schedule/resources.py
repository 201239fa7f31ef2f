"""Resource axes of a target, and the rules by which use on them adds up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Rule = Literal["sum", "max", "live"]
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True, slots=True)
class Resource:
    """One limited resource.

    `rule`: "sum" (all kernels share one fabric), "max" (each kernel alone) or "live" (tensors
    alive at once); `utilisation`: the share of `limit` that a design may plan to fill.
    """

    name: str
    limit: float
    rule: str
    utilisation: float = 1.0
    unit: str = ""

    @property
    def budget(self) -> float:
        """What may be used: limit × utilisation target. Rounded, so that 0.8 × 1248 isn't 998.4000000000001."""
        return round(self.limit * self.utilisation, 6)


def total(axes: Iterable[Resource], uses: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The use of several kernels together, by each axis' rule ("live" adds nothing here: the memory planner knows
    lifetimes)."""
    uses = tuple(uses)
    result: dict[str, float] = {}
    for axis in axes:
        values = [use.get(axis.name, 0.0) for use in uses]
        if axis.rule == "sum":
            result[axis.name] = float(sum(values))
        elif axis.rule == "max":
            result[axis.name] = float(max(values, default=0.0))
    return result

"""The choice of schedules as an integer problem: options per kernel, budgets per axis, without options that can't
win."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cuvil_hw.schedule.resources import Resource
from cuvil_hw.schedule.space import Candidate, KernelChoices

# Uses are compared in integers of 1/1000 of an axis' unit: candidates round up and budgets down, so that a pick never
# exceeds a limit. Weights of the second objective are in 1/10^6 of an axis' limit.
_UNIT = 1000
WEIGHT = 1_000_000


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate reduced to integers: `use` per sum axis (scaled), `weight`: its share of all sum axes."""

    index: int
    cycles: int
    use: tuple[int, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Options per kernel and the budget of each axis of rule "sum", after fixed overhead; scaled.

    `room`: the same budgets before they were capped at what all kernels together can use.
    """

    options: tuple[tuple[Option, ...], ...]
    budgets: tuple[int, ...]
    room: tuple[int, ...]


def scaled(value: float) -> int:
    """An amount in 1/1000 units, rounded up (ignoring floating-point noise)."""
    return math.ceil(round(value * _UNIT, 3))


def spare(axis: Resource, fixed: Mapping[str, float]) -> int:
    """Budget left after fixed overhead, in 1/1000 units, rounded down; may be negative."""
    return math.floor(round(axis.budget * _UNIT, 3)) - scaled(fixed.get(axis.name, 0.0))


def limits(axes: Sequence[Resource], fixed: Mapping[str, float]) -> dict[str, int]:
    """`spare` by axis name, of the axes that a single candidate can break."""
    return {a.name: spare(a, fixed) for a in axes if a.rule != "live"}


def within(candidate: Candidate, limits: Mapping[str, int]) -> bool:
    """Whether a candidate by itself respects every axis."""
    use = candidate.estimate.use
    return all(scaled(use.get(name, 0.0)) <= limit for name, limit in limits.items())


def reduce(kernels: Sequence[KernelChoices], axes: Sequence[Resource], fixed: Mapping[str, float]) -> Problem:
    """The integer problem, without candidates that can't fit or that another candidate beats."""
    shared = [a for a in axes if a.rule == "sum"]
    bounds = limits(axes, fixed)
    options = []
    for kernel in kernels:
        found = []
        for index, candidate in enumerate(kernel.candidates):
            if within(candidate, bounds):
                use = tuple(scaled(candidate.estimate.use.get(a.name, 0.0)) for a in shared)
                weight = sum(u * WEIGHT // max(1, scaled(a.limit)) for u, a in zip(use, shared, strict=True))
                found.append(Option(index, int(candidate.estimate.cycles), use, weight))
        # The description decides between equals, so that the order of proposals doesn't matter.
        found.sort(key=lambda o: (o.cycles, o.weight, o.use, kernel.candidates[o.index].form.describe()))
        options.append(pareto(found))
    # A budget beyond what all kernels can use together is no limit; capping it keeps CP-SAT's sums in 64 bits.
    most = [sum(max((o.use[i] for o in kernel), default=0) for kernel in options) for i in range(len(shared))]
    room = tuple(spare(a, fixed) for a in shared)
    return Problem(tuple(options), tuple(min(r, m) for r, m in zip(room, most, strict=True)), room)


def pareto(options: Sequence[Option]) -> tuple[Option, ...]:
    """Options (sorted by cycles, then weight) that no earlier one beats or equals on every axis."""
    # Ranks order as the uses do, which may be beyond 64 bits.
    ranks = [np.array(_ranks(axis)) for axis in zip(*(o.use for o in options), strict=True)]
    kept, left = [], np.arange(len(options))
    while len(left):
        best = int(left[0])
        kept.append(options[best])
        worse = np.ones(len(left), bool)
        for axis in ranks:
            worse &= axis[left] >= axis[best]
        left = left[~worse]
    return tuple(kept)


def _ranks(values: Sequence[int]) -> list[int]:
    order = {v: n for n, v in enumerate(sorted(set(values)))}
    return [order[v] for v in values]


def up_to(problem: Problem, cycles: int) -> Problem:
    """Only options that take at most `cycles`; cycles then no longer matter, so fewer options are worth keeping."""
    options = []
    for kernel in problem.options:
        fast = [o for o in kernel if o.cycles <= cycles]
        options.append(pareto(sorted(fast, key=lambda o: (o.weight, o.use, o.cycles, o.index))))
    return Problem(tuple(options), problem.budgets, problem.room)

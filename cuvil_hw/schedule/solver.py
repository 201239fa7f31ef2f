"""Pick one candidate per kernel under a target's limits; OR-tools CP-SAT, same answer on every run.

First the cycles are minimised (the slowest kernel of a spatial design, or the sum of a temporal one), then, among all
designs that fast, the use of resources, so that nothing is unrolled further than the bottleneck needs. Candidates are
first reduced to the ones no other beats, and the search for the slowest kernel is a bisection over the cycle counts
that occur: most of its steps are settled by arithmetic, and each remaining one is a pure feasibility problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cuvil_hw.schedule.diagnose import does_not_fit
from cuvil_hw.schedule.problem import reduce
from cuvil_hw.schedule.resources import Resource, total
from cuvil_hw.schedule.search import Answer, shortest, slowest
from cuvil_hw.schedule.space import Choice, KernelChoices, Objective, Surroundings


def choose(
    kernels: Sequence[KernelChoices],
    axes: Sequence[Resource],
    *,
    target: str,
    objective: Objective,
    fixed: Mapping[str, float] | None = None,
    paced: int = 0,
    surroundings: Callable[[], Surroundings] = Surroundings,
) -> Choice:
    """The fastest design that fits, and among those the smallest.

    `objective`: "slowest" minimises the cycles of the slowest kernel (all run at once, streaming), "sum" their sum.
    `fixed`: use per axis that is there whatever is picked (shell, DMA). `paced`: cycles that a
    streaming design takes whatever is picked, by its ports for instance. `surroundings`: called for the advice in an
    error. Axes of rule "live" are left to the memory planner; a use on an axis that isn't in `axes` isn't limited.

    Raises DoesNotFit; ValueError for a kernel without candidates, with a use or cycle count that is negative or not
    finite, or a name given twice; ToolNotFound when OR-tools is needed but not installed.
    """
    fixed = fixed or {}
    _check(kernels)
    problem = reduce(kernels, axes, fixed)
    answer = Answer(None, 0, True)
    if all(problem.options) and all(b >= 0 for b in problem.budgets):
        answer = slowest(problem, paced) if objective == "slowest" else shortest(problem)
    if answer.picks is None:
        raise does_not_fit(kernels, axes, target=target, fixed=fixed, surroundings=surroundings())
    picked = tuple((k.name, k.candidates[o.index]) for k, o in zip(kernels, answer.picks, strict=True))
    use = total(axes, [c.estimate.use for _, c in picked])
    cycles = [o.cycles for o in answer.picks]
    return Choice(
        picked=picked,
        objective=float(max([paced, *cycles]) if objective == "slowest" else sum(cycles)),
        bound=float(answer.bound),
        use={name: value + fixed.get(name, 0.0) for name, value in use.items()},
        style="spatial" if objective == "slowest" else "temporal",
    )


def _check(kernels: Sequence[KernelChoices]) -> None:
    seen: set[str] = set()
    for kernel in kernels:
        if kernel.name in seen:
            raise ValueError(f"two kernels are named {kernel.name!r}")
        seen.add(kernel.name)
        if not kernel.candidates:
            raise ValueError(f"kernel {kernel.name!r} has no candidate; an adapter proposes at least one")
        for candidate in kernel.candidates:
            estimate = candidate.estimate
            for what, value in (("cycles", estimate.cycles), *estimate.use.items()):
                if not (math.isfinite(value) and value >= 0):
                    form = candidate.form.describe()
                    raise ValueError(f"kernel {kernel.name!r}, form {form!r}: {what} is {value}")

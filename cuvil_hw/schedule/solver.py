"""Pick one candidate schedule per kernel under a target's limits; OR-tools CP-SAT, same answer on every run.

First the cycles are minimised (the slowest kernel of a spatial design, or the sum of a temporal one), then, among all
designs that fast, the use of resources, so that nothing is unrolled further than the bottleneck needs. Candidates are
first reduced to the ones no other beats, and the search for the slowest kernel is a bisection over the cycle counts
that occur: most of its steps are settled by arithmetic, and each remaining one is a pure feasibility problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cuvil_hw.errors import ToolNotFound
from cuvil_hw.schedule.resources import Axis, total
from cuvil_hw.schedule.space import Candidate, Choice, KernelChoices

Objective = Literal["max", "sum"]

# Uses are compared in integers of 1/1000 of an axis' unit: candidates round up and budgets down, so that a pick never
# exceeds a limit. Weights of the second objective are in 1/10^6 of an axis' limit.
_UNIT = 1000
_WEIGHT = 1_000_000
# CP-SAT's deterministic time (about seconds of one core) for one problem; a wall-clock limit would make builds differ.
_EFFORT = 1.0
_SHARES = 1000  # steps in which shares of a budget are compared


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


@dataclass(frozen=True, slots=True)
class Answer:
    """`picks`: one option per kernel, None when there is none; `bound`: proven lower bound of the objective;
    `exact`: nothing was cut short by the effort limit."""

    picks: tuple[Option, ...] | None
    bound: int
    exact: bool


def choose(
    kernels: Sequence[KernelChoices],
    axes: Sequence[Axis],
    *,
    target: str,
    objective: Objective,
    fixed: Mapping[str, float] | None = None,
    alternatives: Mapping[str, Sequence[Axis]] | None = None,
) -> Choice:
    """The fastest design that fits, and among those the smallest.

    `objective`: "max" minimises the cycles of the slowest kernel (all run at once, streaming), "sum" their sum.
    `fixed`: use per axis that is there whatever is picked (shell, DMA). `alternatives`: axes of other targets, for the
    advice in an error. Axes of rule "live" are left to the memory planner; a use on an axis that isn't in `axes` isn't
    limited.

    Raises DoesNotFit; ValueError for a kernel without candidates, with a use or cycle count that is negative or not
    finite, or a name given twice; ToolNotFound when OR-tools is needed but not installed.
    """
    from cuvil_hw.schedule.diagnose import does_not_fit

    fixed = fixed or {}
    _check(kernels)
    problem = reduce(kernels, axes, fixed)
    answer = Answer(None, 0, True)
    if all(problem.options) and all(b >= 0 for b in problem.budgets):
        answer = _slowest(problem) if objective == "max" else _sum(problem)
    if answer.picks is None:
        raise does_not_fit(kernels, axes, target=target, fixed=fixed, alternatives=alternatives or {})
    picked = tuple((k.name, k.candidates[o.index]) for k, o in zip(kernels, answer.picks, strict=True))
    use = total(axes, [c.estimate.use for _, c in picked])
    cycles = [o.cycles for o in answer.picks]
    return Choice(
        picked=picked,
        objective=float(max(cycles, default=0) if objective == "max" else sum(cycles)),
        bound=float(answer.bound),
        use={name: value + fixed.get(name, 0.0) for name, value in use.items()},
        style="spatial" if objective == "max" else "temporal",
    )


def fits(kernels: Sequence[KernelChoices], axes: Sequence[Axis], fixed: Mapping[str, float]) -> bool:
    """Whether some pick stays within the budgets; False when that couldn't be found out within the effort limit."""
    problem = reduce(kernels, axes, fixed)
    return all(problem.options) and all(b >= 0 for b in problem.budgets) and _feasible(problem).picks is not None


def _check(kernels: Sequence[KernelChoices]) -> None:
    seen: set[str] = set()
    for kernel in kernels:
        if kernel.name in seen:
            raise ValueError(f"two kernels are named {kernel.name!r}")
        seen.add(kernel.name)
        if not kernel.candidates:
            raise ValueError(f"kernel {kernel.name!r} has no candidate schedule; an adapter proposes at least one")
        for candidate in kernel.candidates:
            estimate = candidate.estimate
            for what, value in (("cycles", estimate.cycles), *estimate.use.items()):
                if not (math.isfinite(value) and value >= 0):
                    schedule = candidate.schedule.describe()
                    raise ValueError(f"kernel {kernel.name!r}, schedule {schedule!r}: {what} is {value}")


def scaled(value: float) -> int:
    """An amount in 1/1000 units, rounded up (but not for noise of floating point)."""
    return math.ceil(round(value * _UNIT, 3))


def spare(axis: Axis, fixed: Mapping[str, float]) -> int:
    """Budget left after fixed overhead, in 1/1000 units, rounded down; may be negative."""
    return math.floor(round(axis.budget * _UNIT, 3)) - scaled(fixed.get(axis.name, 0.0))


def limits(axes: Sequence[Axis], fixed: Mapping[str, float]) -> dict[str, int]:
    """`spare` by axis name, of the axes that a single candidate can break."""
    return {a.name: spare(a, fixed) for a in axes if a.rule != "live"}


def within(candidate: Candidate, limits: Mapping[str, int]) -> bool:
    """Whether a candidate respects every axis taken by itself."""
    use = candidate.estimate.use
    return all(scaled(use.get(name, 0.0)) <= limit for name, limit in limits.items())


def reduce(kernels: Sequence[KernelChoices], axes: Sequence[Axis], fixed: Mapping[str, float]) -> Problem:
    """Integers, without the candidates that can't fit or that another one beats."""
    shared = [a for a in axes if a.rule == "sum"]
    bounds = limits(axes, fixed)
    options = []
    for kernel in kernels:
        found = []
        for index, candidate in enumerate(kernel.candidates):
            if within(candidate, bounds):
                use = tuple(scaled(candidate.estimate.use.get(a.name, 0.0)) for a in shared)
                weight = sum(u * _WEIGHT // max(1, scaled(a.limit)) for u, a in zip(use, shared, strict=True))
                found.append(Option(index, int(candidate.estimate.cycles), use, weight))
        # The description decides between equals, so that the order of proposals doesn't matter.
        found.sort(key=lambda o: (o.cycles, o.weight, o.use, kernel.candidates[o.index].schedule.describe()))
        options.append(pareto(found))
    # A budget beyond what all kernels can use together is no limit; capping it keeps CP-SAT's sums in 64 bits.
    most = [sum(max((o.use[i] for o in kernel), default=0) for kernel in options) for i in range(len(shared))]
    room = tuple(spare(a, fixed) for a in shared)
    return Problem(tuple(options), tuple(min(r, m) for r, m in zip(room, most, strict=True)), room)


def pareto(options: Sequence[Option]) -> tuple[Option, ...]:
    """Options (sorted by cycles, then weight) that no earlier one beats or equals on every axis."""
    kept: list[Option] = []
    for option in options:
        if not any(all(a <= b for a, b in zip(k.use, option.use, strict=True)) for k in kept):
            kept.append(option)
    return tuple(kept)


def _up_to(problem: Problem, cycles: int) -> Problem:
    """Only options that take at most `cycles`; cycles then no longer matter, so fewer options are worth keeping."""
    options = []
    for kernel in problem.options:
        fast = [o for o in kernel if o.cycles <= cycles]
        options.append(pareto(sorted(fast, key=lambda o: (o.weight, o.use, o.cycles, o.index))))
    return Problem(tuple(options), problem.budgets, problem.room)


def _slowest(problem: Problem) -> Answer:
    levels = sorted({o.cycles for kernel in problem.options for o in kernel})
    # No design is faster than the slowest kernel's fastest option.
    floor = max((min(o.cycles for o in kernel) for kernel in problem.options), default=0)
    levels = [c for c in levels if c >= floor] or [0]
    low, high = 0, len(levels) - 1
    best = _feasible(_up_to(problem, levels[high]))
    if best.picks is None:
        return best
    proven, picks = 0, best.picks
    while low < high:
        middle = (low + high) // 2
        trial = _feasible(_up_to(problem, levels[middle]))
        if trial.picks is not None:
            high, picks = middle, trial.picks
        else:
            low = middle + 1
            # What doesn't fit in this many cycles doesn't in fewer, so one proof covers all steps below.
            proven = max(proven, low) if trial.exact else proven
    fast = _up_to(problem, levels[high])
    smallest = _minimise(_balanced(fast, picks), lambda o: o.weight, hint=picks)
    return Answer(smallest.picks or picks, levels[proven], smallest.exact)


def _balanced(problem: Problem, hint: Sequence[Option]) -> Problem:
    """The same problem with every budget cut to the least share that still fits.

    A part fills evenly that way: the scarce axis is relieved at the cost of those that have room.
    """
    if not any(room > 0 for room in problem.room):
        return problem
    answer = _solve(problem, None, hint=hint, balance=True)
    if answer.picks is None:
        return problem
    use = [sum(o.use[a] for o in answer.picks) for a in range(len(problem.budgets))]
    shares = max((-(-u * _SHARES // room) for u, room in zip(use, problem.room, strict=True) if room > 0), default=_SHARES)
    budgets = tuple(
        max(u, min(b, room * shares // _SHARES)) for u, b, room in zip(use, problem.budgets, problem.room, strict=True)
    )
    return Problem(problem.options, budgets, problem.room)


def _sum(problem: Problem) -> Answer:
    best = _minimise(problem, lambda o: o.cycles)
    if best.picks is None:
        return best
    cycles = sum(o.cycles for o in best.picks)
    smallest = _minimise(problem, lambda o: o.weight, hint=best.picks, cycles=cycles)
    return Answer(smallest.picks or best.picks, best.bound, best.exact)


def _over(picks: Sequence[Option], budgets: Sequence[int]) -> bool:
    return any(sum(o.use[a] for o in picks) > budget for a, budget in enumerate(budgets))


def _impossible(problem: Problem) -> bool:
    """Some kernel has no option, or even the smallest use of every kernel is too much on one axis."""
    return not all(problem.options) or any(
        sum(min(o.use[a] for o in kernel) for kernel in problem.options) > budget
        for a, budget in enumerate(problem.budgets)
    )


def _feasible(problem: Problem) -> Answer:
    """Any pick within the budgets."""
    if _impossible(problem):
        return Answer(None, 0, True)
    picks = tuple(min(kernel, key=lambda o: o.weight) for kernel in problem.options)
    return _solve(problem, None) if _over(picks, problem.budgets) else Answer(picks, 0, True)


def _minimise(
    problem: Problem, cost: Callable[[Option], int], *, hint: Sequence[Option] = (), cycles: int | None = None
) -> Answer:
    """The pick of lowest total cost within the budgets, and of at most `cycles` in sum."""
    if _impossible(problem):
        return Answer(None, 0, True)
    picks = tuple(min(kernel, key=lambda o: (cost(o), o.weight, o.cycles)) for kernel in problem.options)
    late = cycles is not None and sum(o.cycles for o in picks) > cycles
    if not late and not _over(picks, problem.budgets):
        return Answer(picks, sum(cost(o) for o in picks), True)
    return _solve(problem, cost, hint=hint, cycles=cycles)


def _solve(
    problem: Problem,
    cost: Callable[[Option], int] | None,
    *,
    hint: Sequence[Option] = (),
    cycles: int | None = None,
    balance: bool = False,
) -> Answer:
    """One CP-SAT problem: a Boolean per option, exactly one per kernel, a linear limit per axis.

    `balance` minimises the largest share of any axis' room instead of a cost.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        remedy = "install it with: pip install 'cuvil-hw[compiler]'"
        raise ToolNotFound("OR-tools", "choose schedules under resource limits", remedy) from None

    model = cp_model.CpModel()
    chosen = [[model.new_bool_var("") for _ in kernel] for kernel in problem.options]
    variables = [v for group in chosen for v in group]
    options = [o for kernel in problem.options for o in kernel]

    def weighted(amounts: Sequence[int]) -> cp_model.LinearExpr:
        return cp_model.LinearExpr.weighted_sum(variables, amounts)

    for group in chosen:
        model.add_exactly_one(group)
    for axis, budget in enumerate(problem.budgets):
        model.add(weighted([o.use[axis] for o in options]) <= budget)
    if cycles is not None:
        model.add(weighted([o.cycles for o in options]) <= cycles)
    if cost is not None:
        model.minimize(weighted([cost(o) for o in options]))
    elif balance:
        share = model.new_int_var(0, _SHARES, "share")
        for axis, room in enumerate(problem.room):
            most = sum(max(o.use[axis] for o in kernel) for kernel in problem.options)
            if 0 < room and most * _SHARES < 1 << 60:
                model.add(weighted([o.use[axis] * _SHARES for o in options]) <= share * room)
        model.minimize(share)
    for pick, kernel, group in zip(hint, problem.options, chosen, strict=False):
        for variable, option in zip(group, kernel, strict=True):
            model.add_hint(variable, option.index == pick.index)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = _EFFORT
    status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        picks = tuple(
            next(o for v, o in zip(group, kernel, strict=True) if solver.boolean_value(v))
            for group, kernel in zip(chosen, problem.options, strict=True)
        )
        bound = math.ceil(solver.best_objective_bound - 1e-6) if cost is not None else 0
        return Answer(picks, bound, status == cp_model.OPTIMAL)
    if status == cp_model.MODEL_INVALID:
        raise ValueError(f"CP-SAT refuses the problem: {model.validate()}")
    return Answer(None, 0, status == cp_model.INFEASIBLE)

"""Searches over a Problem: minimise the slowest kernel or the sum of all, then the use of resources.

Uses CP-SAT deterministically: one worker, a fixed seed, a limit in steps instead of seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cuvil_hw.errors import ToolNotFound, pip_install
from cuvil_hw.schedule.problem import WEIGHT, Option, Problem, reduce, up_to
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.schedule.space import KernelChoices

# CP-SAT's deterministic time (about seconds of one core) for one problem; a wall-clock limit would make builds differ.
_EFFORT = 1.0
_SHARES = 1000  # steps in which shares of a budget are compared


@dataclass(frozen=True, slots=True)
class Answer:
    """`picks`: one option per kernel, None if there is no solution. `bound`: proven lower bound of the objective.
    `exact`: the search was not cut short by the effort limit."""

    picks: tuple[Option, ...] | None
    bound: int
    exact: bool


def fits(kernels: Sequence[KernelChoices], axes: Sequence[Resource], fixed: Mapping[str, float]) -> bool:
    """Whether some pick stays within the budgets; False also when the effort limit ended the search."""
    problem = reduce(kernels, axes, fixed)
    return all(problem.options) and all(b >= 0 for b in problem.budgets) and _feasible(problem).picks is not None


def least(
    kernels: Sequence[KernelChoices], axes: Sequence[Resource], fixed: Mapping[str, float], axis: Resource
) -> tuple[Option, ...] | None:
    """The pick that uses least of `axis` while every other axis stays within its budget; None if there is none."""
    most = sum(max((c.estimate.use.get(axis.name, 0.0) for c in k.candidates), default=0.0) for k in kernels)
    ample = replace(axis, limit=(most + fixed.get(axis.name, 0.0) + 1) / axis.utilisation)
    problem = reduce(kernels, [ample if a.name == axis.name else a for a in axes], fixed)
    if not all(problem.options) or any(b < 0 for b in problem.budgets):
        return None
    position = [a.name for a in axes if a.rule == "sum"].index(axis.name)
    return _minimise(problem, lambda o: o.use[position]).picks


def slowest(problem: Problem, paced: int = 0) -> Answer:
    """`paced`: cycles below which nothing is gained."""
    levels = sorted({max(o.cycles, paced) for kernel in problem.options for o in kernel})
    # No design is faster than the slowest kernel's fastest option.
    floor = max((min(o.cycles for o in kernel) for kernel in problem.options), default=0)
    levels = [c for c in levels if c >= floor] or [0]
    low, high = 0, len(levels) - 1
    best = _feasible(up_to(problem, levels[high]))
    if best.picks is None:
        return best
    proven, picks = 0, best.picks
    while low < high:
        middle = (low + high) // 2
        trial = _feasible(up_to(problem, levels[middle]))
        if trial.picks is not None:
            high, picks = middle, trial.picks
        else:
            low = middle + 1
            # What doesn't fit in this many cycles doesn't in fewer, so one proof covers all steps below.
            proven = max(proven, low) if trial.exact else proven
    smallest = _smallest(up_to(problem, levels[high]), picks)
    return Answer(smallest.picks or picks, levels[proven], smallest.exact)


def shortest(problem: Problem) -> Answer:
    best = _minimise(problem, lambda o: o.cycles)
    if best.picks is None:
        return best
    cycles = sum(o.cycles for o in best.picks)
    smallest = _minimise(problem, lambda o: o.weight, hint=best.picks, cycles=cycles)
    return Answer(smallest.picks or best.picks, best.bound, best.exact)


def _smallest(problem: Problem, hint: Sequence[Option]) -> Answer:
    """The pick with the lowest sum of all axes' shares and of the fullest axis' share once more.

    The sum alone would leave an axis nearly full, which routes badly, when another one could take as large a share of
    the work; the fullest axis alone would spend any amount of the others to relieve it a little.
    """
    if all(len(kernel) == 1 for kernel in problem.options):
        return Answer(tuple(kernel[0] for kernel in problem.options), 0, True)
    return _solve(problem, lambda o: o.weight, hint=hint, balance=True)


def _over(picks: Sequence[Option], budgets: Sequence[int]) -> bool:
    return any(sum(o.use[a] for o in picks) > budget for a, budget in enumerate(budgets))


def _impossible(problem: Problem) -> bool:
    """Whether some kernel has no option, or one axis is exceeded even by the smallest use of every kernel."""
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
    """The pick with the lowest total cost within the budgets, taking at most `cycles` in total."""
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

    `balance` adds the largest share of any axis' room to the cost, in the unit of an option's weight.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        remedy = f"install it with: {pip_install('compiler')}"
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
    total = weighted([cost(o) for o in options]) if cost is not None else None
    if total is not None and balance:
        share = model.new_int_var(0, _SHARES, "share")
        for axis, room in enumerate(problem.room):
            most = sum(max(o.use[axis] for o in kernel) for kernel in problem.options)
            if room > 0 and most * _SHARES < 1 << 60:
                model.add(weighted([o.use[axis] * _SHARES for o in options]) <= share * room)
        total = total + share * (WEIGHT // _SHARES)
    if total is not None:
        model.minimize(total)
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

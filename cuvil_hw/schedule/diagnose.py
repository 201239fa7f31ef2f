"""Explains why a design doesn't fit, and what is the nearest change that would make it fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cuvil_hw.errors import DoesNotFit
from cuvil_hw.schedule.problem import limits, scaled, spare, within
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.schedule.search import fits, least
from cuvil_hw.schedule.space import Candidate, KernelChoices, Surroundings


def does_not_fit(
    kernels: Sequence[KernelChoices],
    axes: Sequence[Resource],
    *,
    target: str,
    fixed: Mapping[str, float],
    surroundings: Surroundings,
) -> DoesNotFit:
    """The error for kernels that don't fit. Blames, in this order: a kernel that alone breaks a "max" axis; a shared
    axis that is too small even for every kernel's smallest candidate; axes that only conflict with each other."""
    boards = [surroundings.elsewhere] if surroundings.elsewhere else []
    alone = [a for a in axes if a.rule == "max"]
    bounds = limits(alone, fixed)
    for kernel in kernels:
        if not any(within(c, bounds) for c in kernel.candidates):
            return _alone(kernel, alone, target, fixed, surroundings)
    shared = [a for a in axes if a.rule == "sum"]
    legal = [replace(k, candidates=tuple(c for c in k.candidates if within(c, bounds))) for k in kernels]
    minima = [(_smallest(legal, a, fixed), a) for a in shared]
    over = [(need, a) for need, a in minima if need > a.budget and scaled(need) > spare(a, {})]
    if over:
        need, axis = max(over, key=lambda p: (_ratio(p[0], p[1].budget), p[0]))
        smallest = {k.name: min(c.estimate.use.get(axis.name, 0.0) for c in k.candidates) for k in legal}
        layer, what = _biggest(legal, smallest, axis, fixed)
        advice = [*_raise_use(kernels, axes, fixed), *boards] or [_bigger(minima)]
        nearest = f"even the smallest folding needs that much ({what}); "
        more = [f"{_n(n)} {a.name} where {_n(a.budget)}" for n, a in over if a is not axis]
        besides = [f"also {' and '.join(more)}"] if more else []
        besides += [surroundings.constants] if surroundings.constants else []
        return _error(layer, axis, need, nearest + "; or ".join(advice), target, "; ".join(besides))
    starved = _starved(legal, shared, fixed)
    if starved is not None:
        axis, need, uses = starved
        layer, what = _biggest(legal, uses, axis, fixed)
        advice = [*_raise_use(kernels, axes, fixed), *boards] or [_bigger([(need, axis)])]
        nearest = f"that is the least of it with which all other resources suffice ({what}); "
        return _error(layer, axis, need, nearest + "; or ".join(advice), target, surroundings.constants)
    picks = _balanced(legal, shared, fixed)
    needs = [(fixed.get(a.name, 0.0) + sum(c.estimate.use.get(a.name, 0.0) for c in picks), a) for a in shared]
    need, axis = max(needs, key=lambda p: (_ratio(p[0], p[1].budget), p[0]))
    uses = {k.name: c.estimate.use.get(axis.name, 0.0) for k, c in zip(legal, picks, strict=True)}
    layer, what = _biggest(legal, uses, axis, fixed)
    advice = [*_raise_use(kernels, axes, fixed), *boards] or [_bigger(needs)]
    nearest = f"every resource suffices by itself, but not all together ({what} in the most balanced design); "
    return _error(layer, axis, need, nearest + "; or ".join(advice), target, surroundings.constants)


def _starved(
    kernels: Sequence[KernelChoices], axes: Sequence[Resource], fixed: Mapping[str, float]
) -> tuple[Resource, float, dict[str, float]] | None:
    """(axis, amount, parts): the axis with the largest relative shortage among those whose growth alone would make the
    design fit; how much of it that takes; each layer's part."""
    found = None
    for axis in axes:
        picks = least(kernels, axes, fixed, axis)
        if picks is None:
            continue
        chosen = [k.candidates[o.index] for k, o in zip(kernels, picks, strict=True)]
        uses = {k.name: c.estimate.use.get(axis.name, 0.0) for k, c in zip(kernels, chosen, strict=True)}
        need = fixed.get(axis.name, 0.0) + sum(uses.values())
        ratio = _ratio(need, axis.budget)
        if ratio > 1 and (found is None or ratio > found[0]):
            found = ratio, axis, need, uses
    return None if found is None else found[1:]


def _n(value: float) -> str:
    return f"{value:,.10g}"


def _ratio(need: float, budget: float) -> float:
    return need / budget if budget > 0 else (math.inf if need > 0 else 0.0)


def _error(layer: str, axis: Resource, need: float, nearest: str, target: str, besides: str = "") -> DoesNotFit:
    return DoesNotFit(
        layer=layer,
        axis=axis.name,
        need=need,
        limit=axis.budget,
        nearest=nearest,
        target=target,
        besides=besides,
        whole=axis.limit,
    )


def _alone(
    kernel: KernelChoices,
    axes: Sequence[Resource],
    target: str,
    fixed: Mapping[str, float],
    surroundings: Surroundings,
) -> DoesNotFit:
    """For the candidate of `kernel` that comes closest, the axis on which it is over by most."""

    def worst(candidate: Candidate) -> tuple[float, float, Resource]:
        needs = [(fixed.get(a.name, 0.0) + candidate.estimate.use.get(a.name, 0.0), a) for a in axes]
        need, axis = max(needs, key=lambda p: (_ratio(p[0], p[1].budget), p[0]))
        return _ratio(need, axis.budget), need, axis

    closest = min(kernel.candidates, key=lambda c: worst(c)[:2])
    _, need, axis = worst(closest)
    advice = [surroundings.elsewhere] if surroundings.elsewhere else [_bigger([(need, axis)])]
    nearest = f"schedule `{closest.form.describe()}` of {kernel.name} ({kernel.loc}) comes closest; "
    return _error(kernel.name, axis, need, nearest + "; or ".join(advice), target, surroundings.constants)


def _smallest(kernels: Sequence[KernelChoices], axis: Resource, fixed: Mapping[str, float]) -> float:
    return fixed.get(axis.name, 0.0) + sum(
        min(c.estimate.use.get(axis.name, 0.0) for c in k.candidates) for k in kernels
    )


def _biggest(
    kernels: Sequence[KernelChoices], uses: Mapping[str, float], axis: Resource, fixed: Mapping[str, float]
) -> tuple[str, str]:
    """The layer that uses most of an axis, and a phrase with the amount."""
    overhead = fixed.get(axis.name, 0.0)
    said = f"fixed overhead {_n(overhead)}" if overhead else ""
    if not kernels:
        return "fixed overhead", said
    kernel = max(kernels, key=lambda k: uses[k.name])
    layer = f"{_n(uses[kernel.name])} {axis.name} in {kernel.name} ({kernel.loc})"
    return kernel.name, f"{layer}, {said}" if said else layer


def _raise_use(kernels: Sequence[KernelChoices], axes: Sequence[Resource], fixed: Mapping[str, float]) -> list[str]:
    """The smallest `use:` (in hundredths, one for all full axes) with which the design fits this same part."""
    lowest = min((a.utilisation for a in axes if a.rule == "sum"), default=1.0)
    shares = [s / 100 for s in range(1, 101) if s / 100 > lowest]

    def raised(share: float) -> list[Resource]:
        return [replace(a, utilisation=max(a.utilisation, share)) if a.rule == "sum" else a for a in axes]

    if not shares or not fits(kernels, raised(shares[-1]), fixed):
        return []
    low, high = 0, len(shares) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(kernels, raised(shares[middle]), fixed) else (middle + 1, high)
    share = shares[high]
    # Only the axes that can't keep their own share are named.
    needed: list[str] = []
    current = raised(share)
    for position, axis in enumerate(axes):
        trial = [*current[:position], axis, *current[position + 1 :]]
        if fits(kernels, trial, fixed):
            current = trial
        else:
            needed.append(axis.name)
    return [f"fits with `use: {share:g}` for {' and '.join(needed)}"]


def _bigger(needs: Sequence[tuple[float, Resource]]) -> str:
    over = [(need, a) for need, a in needs if need > a.budget]
    if not over:
        return "no fit was found within the search limit"
    wanted = [f"{_n(math.ceil(round(n / a.utilisation, 3)))} {a.name} (at use {a.utilisation:g})" for n, a in over]
    return f"it takes a target with at least {' and '.join(wanted)}"


def _balanced(
    kernels: Sequence[KernelChoices], axes: Sequence[Resource], fixed: Mapping[str, float]
) -> list[Candidate]:
    """A pick that exceeds its worst axis only a little: start from the smallest candidates, then change one kernel at a
    time.

    Only used to say how far off a design is (the solver has proven that none fits), so a good pick is enough.
    """

    def score(picks: Sequence[Candidate]) -> tuple[float, float]:
        ratios = [
            _ratio(fixed.get(a.name, 0.0) + sum(c.estimate.use.get(a.name, 0.0) for c in picks), a.budget) for a in axes
        ]
        return max(ratios, default=0.0), sum(ratios)

    picks = [
        min(k.candidates, key=lambda c: sum(_ratio(c.estimate.use.get(a.name, 0.0), a.budget) for a in axes))
        for k in kernels
    ]
    improved = True
    while improved:
        improved = False
        for position, kernel in enumerate(kernels):
            best = min(kernel.candidates, key=lambda c: score([*picks[:position], c, *picks[position + 1 :]]))
            if score([*picks[:position], best, *picks[position + 1 :]]) < score(picks):
                picks[position] = best
                improved = True
    return picks

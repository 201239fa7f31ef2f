"""Resource use reported by a vendor's tool, which replaces the estimates of the chosen design; and whether it still
fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuvil_hw.schedule.problem import limits, within
from cuvil_hw.schedule.resources import Resource, total
from cuvil_hw.schedule.space import Candidate, Choice, Proposals


@dataclass(frozen=True, slots=True)
class Measured:
    """`use`: amounts by kernel name and axis; kernels and axes that are missing keep their estimates. `notes`: for the
    user, such as why nothing was measured."""

    use: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def corrected(
    proposals: Proposals, choice: Choice, measured: Measured, axes: Sequence[Resource]
) -> tuple[Proposals, Choice, bool]:
    """(candidates, choice, fits): with the measured use in place of the estimates. `fits` is False when a kernel by
    itself now exceeds a limit; then choose again among these candidates."""
    picked = {name: _with(candidate, measured, name) for name, candidate in choice.picked}
    before = dict(choice.picked)
    known = tuple(
        replace(k, candidates=tuple(picked[k.name] if c is before[k.name] else c for c in k.candidates))
        for k in proposals.kernels
    )
    bounds = limits(axes, {})
    fits = all(within(c, bounds) for c in picked.values())
    summed = total(axes, [c.estimate.use for c in picked.values()])
    fixed = {a: choice.use[a] - n for a, n in total(axes, [c.estimate.use for c in before.values()]).items()}
    use = {a: n + fixed[a] for a, n in summed.items()}
    return (
        replace(proposals, kernels=known),
        replace(choice, picked=tuple(picked.items()), use={**choice.use, **use}),
        fits,
    )


def _with(candidate: Candidate, measured: Measured, name: str) -> Candidate:
    if name not in measured.use:
        return candidate
    estimate = candidate.estimate
    use = {**estimate.use, **measured.use[name]}
    return replace(candidate, estimate=replace(estimate, use=use))

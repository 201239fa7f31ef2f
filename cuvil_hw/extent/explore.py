"""Proves that a model's shape rules hold for every allowed size, by examining it at a few sizes.

Examining a model at some sizes gives the assumptions of the code that ran. They describe a region: all sizes for which
the code takes the same path. Next, sizes outside all known regions are examined, until z3 finds no more: then every
allowed size is covered. Sizes where the model itself fails are a counterexample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.extent.constraint import Compare
from cuvil_hw.extent.domain import Domain, Shape, Sizes, as_expr
from cuvil_hw.extent.polynomial import Polynomial, Whole, symbol, whole
from cuvil_hw.extent.size import Assumption
from cuvil_hw.extent.solve import Found, Question, Unknown, typical

MOST_REGIONS = 16
MOST_PINNED = 4
_DIVISORS = (2, 3, 4, 5, 6, 8, 16, 32, 64)
_TRIES = 4  # other sizes looked at, to say where a model that fails at some sizes works


@dataclass(frozen=True)
class Look:
    """What was found by examining a model at some sizes.

    Attributes:
        assumptions: the comparisons that its code made; they describe the region.
        outputs: (name, shape, dtype) of each result.
        source: what programs for sizes of this region are made from.
        text: level1 text with symbolic extents.
    """

    sizes: Sizes
    assumptions: tuple[Assumption, ...]
    outputs: tuple[tuple[str, Shape, str], ...]
    source: Any
    text: str

    def covers(self, sizes: Sizes) -> bool:
        return all(g.rule.holds(sizes) for g in self.assumptions)


LookAt = Callable[[Sizes], Look]


@dataclass(frozen=True)
class Explored:
    """`looks`: one per region. `proven`: together they cover the whole domain; `note`: why they don't."""

    looks: tuple[Look, ...]
    proven: bool
    note: str = ""

    def region(self, sizes: Sizes) -> Look | None:
        return next((look for look in self.looks if look.covers(sizes)), None)


def explore(domain: Domain, look_at: LookAt) -> Explored:
    """Examine the model until every size is covered.

    Raises CuvilError for sizes that the model doesn't accept: names them, what fails there and which rule would avoid
    it. If the model fails at every size, raises what `look_at` raises.
    """
    question = Question(domain)
    looks: list[Look] = []
    sizes: Found | None = typical(domain)
    while sizes is not None:
        try:
            look = look_at(sizes)
        except CuvilError as e:
            raise _refusal(domain, look_at, looks, sizes, e) from e
        look = _pruned(look, domain)
        looks.append(look)
        question.exclude([g.rule for g in look.assumptions])
        if not look.covers(sizes):
            return Explored(tuple(looks), False, f"at {domain.key(sizes)}, the model's assumptions can't be followed")
        pinned = _pinned(looks, domain)
        if pinned is not None:
            why = "the model has other operations for each size of"
            return Explored(tuple(looks), False, f"{why} {pinned}; each is checked when it is compiled")
        if len(looks) >= MOST_REGIONS:
            return Explored(tuple(looks), False, _splits(looks))
        try:
            sizes = question.find()
        except Unknown as e:
            return Explored(tuple(looks), False, f"z3 can't tell whether the shape rules hold for all sizes ({e})")
    return Explored(tuple(looks), True)


def _pruned(look: Look, domain: Domain) -> Look:
    """The look without assumptions that the domain already implies."""
    question = Question(domain)
    kept = tuple(g for g in look.assumptions if not question.always(g.rule))
    return Look(look.sizes, kept, look.outputs, look.source, look.text)


def _pinned(looks: Sequence[Look], domain: Domain) -> str | None:
    """A dimension for which every size examined so far is its own region, and which has too many sizes to examine
    all."""
    for dim in domain.dims:
        if dim.max is not None and dim.max - dim.min < MOST_PINNED:
            continue
        fixed = {
            look.sizes[dim.name]
            for look in looks
            for g in look.assumptions
            if g.rule == Compare("==", symbol(dim.name), whole(look.sizes[dim.name]))
        }
        if len(fixed) > MOST_PINNED:
            return dim.name
    return None


def _splits(looks: Sequence[Look]) -> str:
    last = looks[-1].assumptions
    pinned = [g for g in last if g.rule.op == "=="] or list(last)
    why = f"; the last split is at {pinned[0]}" if pinned else ""
    return f"the model goes more than {MOST_REGIONS} ways, depending on its sizes{why}"


def _refusal(domain: Domain, look_at: LookAt, looks: Sequence[Look], sizes: Found, error: CuvilError) -> CuvilError:
    """The error for sizes that the model doesn't accept; `error` itself if it accepts none."""
    found = list(looks) or _elsewhere(domain, look_at, sizes)
    if not found:
        return error
    broken = _needed(domain, look_at, found[0], sizes)
    rules = [simplest(g.rule, domain) for g in broken]
    said = [f"{r} ({g.where})" if g.where else str(r) for r, g in zip(rules, broken, strict=True)]
    needed = " and ".join(dict.fromkeys(said))
    example = f'cuvil.Constraint("{" and ".join(dict.fromkeys(map(str, rules)))}")' if rules else ""
    return refusal(domain, sizes, error, f"it takes sizes with {needed}" if needed else "", example)


def _needed(domain: Domain, look_at: LookAt, works: Look, sizes: Found) -> list[Assumption]:
    """The rules of `works` that `sizes` break, reduced to those that cause the failure if that can be determined.
    (torch makes assumptions that are no requirements: it distinguishes a size of 1 from others.)"""
    broken = [g for g in works.assumptions if not g.rule.holds(sizes)]
    needed = [g for g in broken if _fails_alone(domain, look_at, works, g)] if len(broken) > 1 else []
    return needed or broken


def _fails_alone(domain: Domain, look_at: LookAt, works: Look, assumption: Assumption) -> bool:
    """Whether the model fails at sizes that break this rule of `works` and no other."""
    others = [g.rule for g in works.assumptions if g is not assumption]
    try:
        alone = Question(domain).find(assumption.rule.negated(), *others)
        if alone is None:
            return False
    except Unknown:
        return False
    try:
        look_at(alone)
    except CuvilError:
        return True
    return False


def refusal(domain: Domain, sizes: Sizes, error: CuvilError, where: str, example: str = "") -> CuvilError:
    """`where`: which sizes the model does take; `example`: a constraint that helps. Both may be ""."""
    lines = [f"the model doesn't take {', '.join(f'{n} = {s}' for n, s in sizes.items())}: {_reason(error)}"]
    lines += [where] if where else []
    what = "narrow the bounds or add a constraint"
    lines.append(f"sizes allowed are {domain}; {what}{', e.g. ' + example if example else ''}")
    return CuvilError("\n  ".join(lines))


def _reason(error: CuvilError) -> str:
    """As one line, where it is about one thing."""
    if isinstance(error, Unsupported) and len(error.refusals) == 1:
        refusal = error.refusals[0]
        return f"{refusal.op} at {', '.join(refusal.where[:3])}: {refusal.reason}"
    return str(error)


def _elsewhere(domain: Domain, look_at: LookAt, failed: Found) -> list[Look]:
    """Examines other sizes after a failure, to tell a model that never works from one that works at some sizes."""
    question, tried = Question(domain), failed
    for _ in range(_TRIES):
        question.exclude([Compare("==", symbol(n), whole(s)) for n, s in tried.items()])
        # One more than a multiple fails often: powers of two are tried first.
        try:
            even = [Compare("==", symbol(n) % 16, whole(0)) for n in tried]
            other = question.find(*even) or question.find()
        except Unknown:
            return []
        if other is None:
            return []
        try:
            return [_pruned(look_at(other), domain)]
        except CuvilError:
            tried = other
    return []


def simplest(rule: Compare, domain: Domain) -> Compare:
    """A rule about one dimension as `H % 4 == 0`, where that is the same for all sizes of the domain."""
    if len(rule.symbols) != 1 or rule.op != "==":
        return rule
    name = next(iter(rule.symbols))
    for k in _DIVISORS:
        other = Compare("==", symbol(name) % k, whole(0))
        try:
            question = Question(domain)
            if all(question.find(a, b.negated(), small=False) is None for a, b in ((rule, other), (other, rule))):
                return other
        except Unknown:
            return rule
    return rule


def fitted(
    outputs: Sequence[Shape], looks: Sequence[tuple[Sizes, Sequence[Sequence[int]]]], domain: Domain
) -> tuple[Shape, ...]:
    """Output shapes that agree with every look, in their simplest form. If an extent's expression was lost on the way,
    it is replaced by a·dimension + b that gives the right numbers, or by `?` if there is none."""
    result = []
    for i, shape in enumerate(outputs):
        extents: list[Whole] = []
        for d, extent in enumerate(shape):
            points = [(sizes, shapes[i][d]) for sizes, shapes in looks if d < len(shapes[i])]
            if not _agrees(extent, points):
                extent = as_expr(_fit(points, domain))
            else:
                lines = [e for d in domain.dims if _agrees(e := symbol(d.name), points)] + [_fit(points, domain)]
                extent = next((as_expr(e) for e in lines if _equal(whole(extent), e, domain)), extent)
            extents.append(extent)
        result.append(tuple(extents))
    return tuple(result)


def _agrees(extent: Whole, points: Sequence[tuple[Sizes, int]]) -> bool:
    return all(whole(extent).value(sizes) == number for sizes, number in points)


def _equal(extent: Polynomial, line: Polynomial, domain: Domain) -> bool:
    """Proven for every size of the domain."""
    return UNKNOWN not in line.symbols and Question(domain).always(Compare("==", extent, line))


def _fit(points: Sequence[tuple[Sizes, int]], domain: Domain) -> Polynomial:
    """A line a·size + b through the points. Three sizes make it credible; fewer suffice if there are no more."""
    for dim in domain.dims:
        name = dim.name
        xs = {sizes[name]: number for sizes, number in points}
        few = 3 if dim.max is None else min(3, dim.max - dim.min + 1)
        if len(xs) < max(few, 2):
            continue
        (x0, y0), (x1, y1) = list(xs.items())[:2]
        if (y1 - y0) % (x1 - x0):
            continue
        a = (y1 - y0) // (x1 - x0)
        line = symbol(name) * a + (y0 - a * x0)
        if _agrees(line, points):
            return line
    return symbol(UNKNOWN)


UNKNOWN = "?"

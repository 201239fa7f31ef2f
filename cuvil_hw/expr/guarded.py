"""What conditions say of the indices below them: a padded convolution behind a reshape reads `x[0, 10·g + h]` where
`0 ≤ g < 49` and `0 ≤ h < 10`, so quotients and remainders of such a sum are known there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cuvil_hw.expr.nodes import Apply, Const, Expr, Reduce, Select, affine, bounds, index
from cuvil_hw.expr.traverse import rewrite, walk

Ranges = Mapping[Expr, tuple[int, int]]


def conjuncts(cond: Expr) -> list[Expr]:
    """The conditions that `cond` is the logical and of."""
    if isinstance(cond, Apply) and cond.op == "and":
        return [p for side in cond.args for p in conjuncts(side)]
    return [cond]


def ranges_of(guards: Sequence[Expr]) -> dict[Expr, tuple[int, int]]:
    """Least and largest value of each index that the conditions bound, where all of them hold."""
    found: dict[Expr, tuple[int, int]] = {}
    for guard in guards:
        if not (isinstance(guard, Apply) and guard.op in ("ge", "lt") and isinstance(guard.args[1], Const)):
            continue
        what, limit = guard.args[0], int(guard.args[1].value)
        if what.dtype == "index":
            low, high = found.get(what) or bounds(what)
            found[what] = (max(low, limit), high) if guard.op == "ge" else (low, min(high, limit - 1))
    return found


def split(e: Expr, parts: Sequence[Expr]) -> tuple[list[tuple[Expr, int]], Expr]:
    """`e` as Σ factor · part + rest, the parts in their order; those that it isn't made of are left out."""
    found, rest = [], e
    for part in parts:
        terms, (own, _) = affine(rest)[0], affine(part)
        factors = {terms.get(t, 0) // k for t, k in own.items()}
        factor = next(iter(factors)) if len(factors) == 1 else 0
        if factor and all(terms.get(t, 0) == k * factor for t, k in own.items()):
            found.append((part, factor))
            rest = rest - part * factor
    return found, rest


def within(e: Expr, ranges: Ranges) -> tuple[int, int]:
    """Least and largest value of an index where the `ranges` hold."""
    parts, rest = split(e, list(ranges))
    low, high = bounds(rest)
    for part, k in parts:
        ends = [k * end for end in ranges[part]]
        low, high = low + min(ends), high + max(ends)
    least, most = bounds(e)
    return max(low, least), min(high, most)


def settled(body: Expr) -> Expr:
    """The same, with those quotients and remainders computed that are known where the conditions around them hold. In
    a reduction it is all of them or none: a channel shuffle before a convolution, say, is recognized by its divisions,
    and half of them would be no view any more."""
    whole = any(isinstance(e, Reduce) for e in walk(body))

    def leaf(e: Expr) -> Expr | None:
        if not _settles(e):
            return None
        assert isinstance(e, Select)
        ranges = ranges_of(conjuncts(e.cond))
        then = settled(rewrite(e.then, lambda x: _known(x, ranges)))
        if whole and any(map(_divides, walk(then))):
            return None
        return Select(e.dtype, e.cond, then, settled(e.other))

    return rewrite(body, leaf) if any(map(_settles, walk(body))) else body


def _settles(e: Expr) -> bool:
    if not isinstance(e, Select) or not any(map(_divides, walk(e.then))):
        return False
    ranges = ranges_of(conjuncts(e.cond))
    return bool(ranges) and any(_known(x, ranges) is not None for x in walk(e.then))


def _divides(e: Expr) -> bool:
    return isinstance(e, Apply) and e.dtype == "index" and e.op in ("floordiv", "mod")


def _known(e: Expr, ranges: Ranges) -> Expr | None:
    if not (isinstance(e, Apply) and _divides(e) and isinstance(e.args[1], Const)):
        return None
    number, by = e.args[0], int(e.args[1].value)
    low, high = within(number, ranges)
    if by < 1 or low > high or low // by != high // by:
        return None
    return index(low // by) if e.op == "floordiv" else number - low // by * by

"""Splits reduction iterators that are only used as mixed-radix digits.

Before: `sum[k < 48] x[k // 16, k // 4 % 4, k % 4] · w[o, k]` (a dense layer behind a flatten).
After:  `sum[k_0 < 3, k_1 < 4, k_2 < 4] x[k_0, k_1, k_2] · w[o, 16·k_0 + 4·k_1 + k_2]`: every access is affine again, so
that the reads can be streamed in whatever order the producer writes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Reduce, index, reduction
from cuvil_hw.expr.traverse import rewrite, substitute, walk


def split_iterators(body: Expr) -> Expr:
    """Split every reduction iterator that appears under a floor division or modulo, where its digits fit together."""
    for node in list(walk(body)):
        if isinstance(node, Reduce):
            for it in node.iters:
                digits = _radix(body, it)
                if len(digits) > 1:
                    body = _split(body, it, digits)
    return body


def _radix(body: Expr, it: Iter) -> tuple[int, ...]:
    """Extents of the digits of `it`, most significant first; one digit when it isn't used as several."""
    if it.extent == 0:
        return (0,)
    cuts = {1, it.extent}
    for node in walk(body):
        if isinstance(node, Apply) and node.dtype == "index" and node.op in ("floordiv", "mod"):
            number, divisor = node.args
            if number == it and isinstance(divisor, Const):
                cuts.add(int(divisor.value))
            elif (
                isinstance(number, Apply)
                and number.op == "floordiv"
                and number.args[0] == it
                and isinstance(divisor, Const)
            ):
                inner = number.args[1]
                cuts.add(int(divisor.value) * int(inner.value) if isinstance(inner, Const) else 1)
    order = sorted(cuts)
    if any(big % small for small, big in pairwise(order)):
        return (it.extent,)
    return tuple(big // small for small, big in pairwise(order))[::-1]


def _split(body: Expr, it: Iter, digits: tuple[int, ...]) -> Expr:
    parts = [reduction(f"{it.name}_{d}", e) for d, e in enumerate(digits)]
    value: Expr = index(0)
    for part in parts:
        value = value * part.extent + part
    before = next(e for e in walk(body) if isinstance(e, Reduce) and it in e.iters).iters
    after = tuple(p for i in before for p in (parts if i == it else (i,)))
    kept = tuple(i for i in before if i != it)
    done = substitute(body, {it: value})  # drops `it` from the iterators of the Reduce

    def restore(e: Expr) -> Expr | None:
        return replace(e, iters=after) if isinstance(e, Reduce) and e.iters == kept else None

    return rewrite(done, restore)

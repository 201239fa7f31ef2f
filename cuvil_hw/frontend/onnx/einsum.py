"""Einsum as transposes, reductions and matrix products, two operands at a time."""

from __future__ import annotations

from math import prod

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.node import OnnxNode, Value

Labels = tuple[str, ...]


def parse(n: OnnxNode, equation: str, ranks: list[int]) -> tuple[list[Labels], Labels]:
    """Labels of each operand and of the result; those of an ellipsis are "0", "1", … counted from its end."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks) or not all(c.isalpha() or c == "." for t in (*terms, right) for c in t):
        n.refuse(f"equation {equation!r} for {len(ranks)} operands")

    def expand(term: str, dots: int) -> Labels:
        before, found, after = term.partition("...")
        middle = tuple(str(d) for d in reversed(range(dots))) if found else ()
        return (*before, *middle, *after)

    spans = [r - len(t.replace("...", "")) if "..." in t else 0 for t, r in zip(terms, ranks, strict=True)]
    if min(spans, default=0) < 0:
        n.refuse(f"equation {equation!r} names more dimensions than there are")
    labels = [expand(t, s) for t, s in zip(terms, spans, strict=True)]
    if any(len(x) != r for x, r in zip(labels, ranks, strict=True)):
        n.refuse(f"equation {equation!r} doesn't fit operands of ranks {ranks}")
    if arrow:
        return labels, expand(right, max(spans, default=0))
    letters = [c for x in labels for c in x if c.isalpha()]
    dots = tuple(str(d) for d in reversed(range(max(spans, default=0))))
    return labels, (*dots, *sorted(c for c in set(letters) if letters.count(c) == 1))


def einsum(n: OnnxNode, version: int) -> Value:
    equation = n.attr("equation", "")
    labels, result = parse(n, equation, [v.rank for v in n.values])
    if len(set(result)) != len(result):
        n.refuse(f"equation {equation!r} repeats an index of the result")
    parts = [diagonal(n, v, x) for v, x in zip(n.values, labels, strict=True)]
    value, have = parts[0]
    for i, (other, names) in enumerate(parts[1:], start=1):
        later = {c for _, x in parts[i + 1 :] for c in x} | set(result)
        value, have = contract(n, (value, have), (other, names), later)
    value, have = summed(n, value, have, set(result))
    if missing := [c for c in result if c not in have]:
        n.refuse(f"equation {equation!r}: no operand has the index {missing[0]!r}")
    return n.transpose(value, [have.index(c) for c in result])


def diagonal(n: OnnxNode, x: Value, labels: Labels) -> tuple[Value, Labels]:
    """Repeated labels of one operand: their common diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            a = labels.index(label)
            b = labels.index(label, a + 1)
            size = x.shape[a]
            if x.shape[b] != size:
                n.refuse(f"index {label!r} stands for extents {size} and {x.shape[b]}")
            rest = [d for d in range(x.rank) if d not in (a, b)]
            flat = n.transpose(x, [a, b, *rest])
            flat = n.reshape(flat, (size * size, *flat.shape[2:]))
            n.affordable(f"the diagonal of {label!r}", size)
            x = n.emit(e.Gather(0), flat, n.const(np.arange(size) * (size + 1), "i64"))
            labels = (label, *(labels[d] for d in rest))
    return x, labels


def summed(n: OnnxNode, x: Value, labels: Labels, kept: set[str]) -> tuple[Value, Labels]:
    """Dimensions that nobody needs any more are summed."""
    axes = tuple(d for d, c in enumerate(labels) if c not in kept)
    return (n.emit(e.ReduceSum(axes), x) if axes else x), tuple(c for c in labels if c in kept)


def contract(n: OnnxNode, a: tuple[Value, Labels], b: tuple[Value, Labels], later: set[str]) -> tuple[Value, Labels]:
    """The product of two operands, summed over what both have and nobody needs later."""
    x, p = summed(n, *a, later | set(b[1]))
    y, q = summed(n, *b, later | set(a[1]))
    extent: dict[str, int] = {}
    for value, labels in ((x, p), (y, q)):
        for c, size in zip(labels, value.shape, strict=True):
            if extent.get(c, 1) != 1 and size not in (1, extent[c]):
                n.refuse(f"index {c!r} stands for extents {extent[c]} and {size}")
            extent[c] = max(size, extent.get(c, 1)) if size else 0
    x, y = (n.expand(v, [extent[c] for c in names]) for v, names in ((x, p), (y, q)))
    batch = tuple(c for c in p if c in q and c in later)
    inner = tuple(c for c in p if c in q and c not in later)
    rows, columns = tuple(c for c in p if c not in q), tuple(c for c in q if c not in p)
    sizes = [prod(extent[c] for c in part) for part in (batch, rows, inner, columns)]
    left = n.transpose(x, [p.index(c) for c in (*batch, *rows, *inner)])
    right = n.transpose(y, [q.index(c) for c in (*batch, *inner, *columns)])
    out = (*batch, *rows, *columns)
    shape = [extent[c] for c in out]
    if inner and dtypes.is_float(x.dtype):
        left, right = n.reshape(left, sizes[:3]), n.reshape(right, (sizes[0], *sizes[2:]))
        return n.reshape(n.emit(e.MatMul(), left, right), shape), out
    left, right = n.reshape(left, (*sizes[:3], 1)), n.reshape(right, (sizes[0], 1, *sizes[2:]))
    return n.reshape(n.emit(e.ReduceSum((2,)), n.binary(e.Mul(), left, right)), shape), out

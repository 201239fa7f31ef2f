"""Sums as trees: the terms of a sum of sums are added pairwise, and what a step adds to what it keeps comes last.

A running sum then costs one addition in its own cycle, however many terms a step brings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from cuvil_hw.adapters.streaming.rtl.graph import Graph, Signal

Parts = Mapping[Signal, int]
FACTORS = (25, 18)  # bits of the factors of a multiplier block, with their signs


def reachable(roots: Iterable[Signal], after: Mapping[Signal, Signal]) -> list[Signal]:
    """All nodes that `roots` need, arguments first. `after`: what registers become, by their leaves."""
    found: set[Signal] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.args
            if node in after:
                stack.append(after[node])
    return sorted(found, key=lambda n: n.number)


def cycles(nodes: Iterable[Signal], after: Mapping[Signal, Signal]) -> Parts:
    """A number for each set of nodes that depend on one another through registers; equal for nodes of one set. Those
    that depend on no own value have a number of their own."""
    index: dict[Signal, int] = {}
    low: dict[Signal, int] = {}
    part: dict[Signal, int] = {}
    open_: list[Signal] = []
    for root in nodes:  # Tarjan's algorithm, with a stack of its own
        work = [(root, iter(needed(root, after)))] if root not in index else []
        if work:
            index[root] = low[root] = len(index)
            open_.append(root)
        while work:
            node, needs = work[-1]
            for need in needs:
                if need not in index:
                    index[need] = low[need] = len(index)
                    open_.append(need)
                    work.append((need, iter(needed(need, after))))
                    break
                if need not in part:
                    low[node] = min(low[node], index[need])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    while True:
                        member = open_.pop()
                        part[member] = index[node]
                        if member is node:
                            break
    return part


def needed(node: Signal, after: Mapping[Signal, Signal]) -> tuple[Signal, ...]:
    """What a node depends on, and a register's leaf on what it becomes."""
    return (*node.args, after[node]) if node in after else node.args


def arrange(graph: Graph, roots: Iterable[Signal], after: Mapping[Signal, Signal]) -> dict[Signal, Signal]:
    """What each node that `roots` need becomes. `graph` takes the new ones."""
    roots = list(roots)
    nodes = reachable(roots, after)
    part = cycles(nodes, after)
    uses = Counter(a for n in nodes for a in n.args)
    uses.update(roots)
    uses.update(after[n] for n in nodes if n in after)
    # A sum that only another sum uses is part of it; so is one that was cut to no fewer bits than the other will be.
    inner: set[Signal] = set()
    bits: dict[Signal, int] = {}
    for node in reversed(nodes):
        if node.op == "wrap" and node.args[0].op == "sum" and uses[node.args[0]] == 1 and node not in inner:
            bits[node.args[0]] = node.data[0]
        elif node.op == "sum":
            for term in node.args:
                kept = term
                if term.op == "wrap" and uses[term] == 1 and node in bits and term.data[0] >= bits[node]:
                    kept = term.args[0]
                if kept.op == "sum" and uses[kept] == 1 and (kept is term or node in bits):
                    inner |= {term, kept}
                    if node in bits:
                        bits[kept] = bits[node]
    made: dict[Signal, Signal] = {}
    for node in nodes:
        if node in inner:
            continue
        if node.op == "sum":
            made[node] = _tree(graph, node, inner, made, part)
        elif node.op == "mul":
            made[node] = product(graph, made[node.args[0]], made[node.args[1]], node.data)
        elif any(made[a] is not a for a in node.args):
            made[node] = _again(graph, node, tuple(made[a] for a in node.args))
        else:
            made[node] = node
    return made


def product(graph: Graph, a: Signal, b: Signal, data: object) -> Signal:
    """A product of what one multiplier takes, or the sum of such parts. One with few additions stays as it is."""
    wide, other = (a, b) if _factor(a) >= _factor(b) else (b, a)
    few = any(n.bits <= 2 or (n.value is not None and abs(n.value).bit_count() <= 4) for n in (a, b))
    if few or (_factor(wide) <= FACTORS[0] and _factor(other) <= FACTORS[1]):
        return graph.mul(a, b, data)
    if FACTORS[1] < _factor(other) and _factor(wide) <= FACTORS[0]:
        wide, other = other, wide
    low = FACTORS[1] - 1
    below = product(graph, graph.wrap(wide, low, False), other, data)
    above = product(graph, graph.shift_right(wide, graph.const(low)), other, data)
    return graph.add(graph.mul(above, graph.const(1 << low)), below)


def _factor(signal: Signal) -> int:
    """Bits, with a sign."""
    return signal.bits + (not signal.signed)


def _again(graph: Graph, node: Signal, args: tuple[Signal, ...]) -> Signal:
    return graph.node(node.op, args, node.lo, node.hi, node.data)


def _terms(node: Signal, inner: set[Signal]) -> Iterator[tuple[int, Signal]]:
    """The terms of a sum and of those that are part of it, in order."""
    stack = [(1, node)]
    while stack:
        sign, each = stack.pop()
        if each is not node and each not in inner:
            yield sign, each
        elif each.op == "wrap":
            stack.append((sign, each.args[0]))
        else:
            stack += [(sign * s, term) for s, term in reversed(list(zip(each.data, each.args, strict=True)))]


def _tree(graph: Graph, node: Signal, inner: set[Signal], made: Mapping[Signal, Signal], part: Parts) -> Signal:
    early: list[tuple[int, Signal]] = []
    late: list[tuple[int, Signal]] = []
    for sign, term in _terms(node, inner):
        kept = part[term] == part[node]
        (late if kept else early).append((sign, made[term]))
    while len(early) > 1:
        pairs = [early[n : n + 2] for n in range(0, len(early), 2)]
        early = [_pair(graph, p) if len(p) == 2 else p[0] for p in pairs]
    terms = early + late
    while len(terms) > 1:
        terms = [_pair(graph, terms[:2]), *terms[2:]]
    sign, total = terms[0]
    return total if sign > 0 else _pair(graph, [(1, graph.const(0)), terms[0]])[1]


def _pair(graph: Graph, terms: list[tuple[int, Signal]]) -> tuple[int, Signal]:
    """Two terms as one, with its sign."""
    (s, a), (t, b) = terms
    if s < 0 < t:
        (s, a), (t, b) = (t, b), (s, a)
    sign, t = (s, t) if s > 0 else (-1, 1)
    lo, hi = (a.lo + b.lo, a.hi + b.hi) if t > 0 else (a.lo - b.hi, a.hi - b.lo)
    return sign, graph.node("sum", (a, b), lo, hi, (1, t))

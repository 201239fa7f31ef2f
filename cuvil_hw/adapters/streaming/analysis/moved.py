"""Elementwise kernels whose operands lie elsewhere: each load becomes a stream of its own, in the order of the outputs.

Conditions on positions become tables: a source is read only where its part of a concatenation or of a padded tensor is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.access import Access, access
from cuvil_hw.adapters.streaming.analysis.operand import Order
from cuvil_hw.adapters.streaming.analysis.positions import Array, by_position, evaluate
from cuvil_hw.adapters.streaming.analysis.tables import indexed_by_data, iterators
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Apply, Expr, Iter, Load, Lookup, Select, bounds, index, index_op, lookup
from cuvil_hw.expr.traverse import rewrite, walk
from cuvil_hw.schedule.kernel import Kernel

Region = Mapping[Iter, Array]  # where something is: for each iterator that decides, its values


@dataclass(frozen=True)
class Move:
    """One load of a source. `access`: the order in which it is wanted, None for the source's own; `when`: tables over
    single iterators, all of which have to hold where it is read."""

    load: Load
    access: Access | None = None
    when: tuple[Lookup, ...] = ()


@dataclass(frozen=True)
class Moved:
    """`body`: the kernel's, with tables for conditions; `rows`: the iterators other than the channel's that index
    constants."""

    body: Expr
    moves: tuple[Move, ...]
    rows: tuple[Iter, ...]


def moved(kernel: Kernel, orders: Mapping[str, Order], constants: Mapping[str, Array], order: Order) -> Moved | None:
    """An elementwise kernel by what it reads; None where a load's place is no sum of tables, one for each iterator, or
    a constant depends on two iterators beside the channel. `orders`: of the dimensions of each source as it streams;
    `order`: of those of the output."""
    sources = tuple(orders)
    channel = kernel.iterators[order[-1]] if order else None
    body = _tabulated(_clipped(kernel.body, kernel, sources), sources, constants)
    rows = _rows(body, sources, channel)
    found = _regions(body, sources)
    if rows is None or found is None:
        return None
    moves: dict[Load, Move] = {}
    for load in (n for n in walk(body) if isinstance(n, Load) and n in found):
        region = found[load]
        given = orders[load.buffer]
        same = kernel.operand(load.buffer).type.shape == kernel.type.shape and given == order
        plain = same and all(e == it or it.extent == 1 for e, it in zip(load.index, kernel.iterators, strict=True))
        if plain and not region:
            moves[load] = Move(load)
            continue
        digits = [
            {it: np.flatnonzero(region[it]) if it in region else np.arange(it.extent)}
            for d in order
            if (it := kernel.iterators[d]).extent > 1 or it == channel
        ]
        if not digits or not all(a.size for d in digits for a in d.values()):
            return None
        how = access(load, kernel.operand(load.buffer).type, digits, constants, given)
        if how is None:
            return None
        when = tuple(Lookup("bool", tuple(values.tolist()), it) for it, values in region.items())
        moves[load] = Move(load, None if how.in_order else how, when)
    return Moved(body, tuple(moves.values()), tuple(it for d in order if (it := kernel.iterators[d]) in rows))


def _clipped(body: Expr, kernel: Kernel, sources: Collection[str]) -> Expr:
    """Constants are read inside their tables, even where a condition drops what is read."""

    def clip(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.buffer in sources:
            return None
        at = []
        for i, size in zip(e.index, kernel.operand(e.buffer).type.shape, strict=True):
            low, high = bounds(i)
            i = index_op("max", i, index(0)) if low < 0 else i
            at.append(index_op("min", i, index(size - 1)) if high >= size else i)
        return replace(e, index=tuple(at)) if tuple(at) != e.index else e

    return rewrite(body, clip)


def _tabulated(body: Expr, sources: Collection[str], constants: Mapping[str, Array]) -> Expr:
    """Numbers and conditions made of one iterator become tables over it."""

    def table(e: Expr) -> Expr | None:
        if not isinstance(e, Apply) or e.dtype == "index" or dtypes.is_float(e.dtype):
            return None
        if not any(a.dtype == "index" for a in e.args) or not by_position(e, sources):
            return None
        its = list(dict.fromkeys(n for n in walk(e) if isinstance(n, Iter)))
        grid = {
            it: np.arange(it.extent).reshape([-1 if n == m else 1 for m in range(len(its))]) for n, it in enumerate(its)
        }
        try:
            values = np.broadcast_to(evaluate(e, grid, constants), [it.extent for it in its])
        except CuvilError:
            return None
        for n, it in enumerate(its):
            line = np.moveaxis(values, n, -1).reshape(-1, it.extent)
            if (line == line[0]).all():
                return lookup(tuple(line[0].tolist()), it, e.dtype)
        return None

    return rewrite(body, table)


def _rows(body: Expr, sources: Collection[str], channel: Iter | None) -> set[Iter] | None:
    """Iterators beside the channel that index constants, at most one each; None where more do, or where positions enter
    the arithmetic otherwise."""
    rows: set[Iter] = set()
    for node in _outside_indices(body):
        if isinstance(node, Iter):
            return None
        table = isinstance(node, Lookup) and not indexed_by_data(node)
        if table or (isinstance(node, Load) and node.buffer not in sources):
            assert isinstance(node, Load | Lookup)
            more = iterators(node) - {channel}
            if len(more) > 1:
                return None
            rows |= more
    return rows


def _outside_indices(body: Expr) -> Iterator[Expr]:
    """Nodes that are computed with: not the indices of loads and of constant tables."""

    def children(e: Expr) -> tuple[Expr, ...]:
        return () if isinstance(e, Load) or (isinstance(e, Lookup) and not indexed_by_data(e)) else e.children()

    return walk(body, children)


def _regions(body: Expr, sources: Collection[str]) -> dict[Load, Region] | None:
    """Where each load of a source is wanted; None where one is wanted in several regions, or in one that is no product
    of what single iterators decide."""
    found: dict[Load, Region] = {}
    seen: set[tuple[int, tuple[tuple[Iter, bytes], ...]]] = set()
    stack: list[tuple[Expr, Region]] = [(body, {})]
    while stack:
        node, region = stack.pop()
        key = id(node), tuple((it, values.tobytes()) for it, values in region.items())
        if key in seen:
            continue
        seen.add(key)
        if isinstance(node, Load):
            if node.buffer in sources:
                before = found.setdefault(node, region)
                if {i: v.tobytes() for i, v in before.items()} != {i: v.tobytes() for i, v in region.items()}:
                    return None
        elif isinstance(node, Select) and by_position(node.cond, sources):
            holds = _holds(node.cond)
            sides = (node.then, holds), (node.other, _fails(holds))
            for side, where in sides:
                if where is not None:
                    stack.append((side, _both(region, where)))
                elif any(isinstance(n, Load) and n.buffer in sources for n in walk(side)):
                    return None
        else:
            stack += [(child, region) for child in node.children()]
    return found


def _holds(cond: Expr) -> Region | None:
    match cond:
        case Lookup(index=Iter() as it):
            return {it: np.array(cond.values, bool)}
        case Apply(op="and", args=(a, b)):
            left, right = _holds(a), _holds(b)
            return None if left is None or right is None else _both(left, right)
        case Apply(op="not", args=(a,)):
            return _fails(_holds(a))
    return None


def _fails(region: Region | None) -> Region | None:
    if region is None or len(region) != 1:
        return None
    return {it: ~values for it, values in region.items()}


def _both(a: Region, b: Region) -> Region:
    return {**a, **b, **{it: a[it] & b[it] for it in a if it in b}}


def lanes_agree(move: Move, channel: Iter | None, lanes: int) -> bool:
    """Whether all lanes of a word are read or none."""
    for table in move.when:
        if table.index == channel:
            values = np.array(table.values, bool).reshape(-1, lanes)
            if (values != values[:, :1]).any():
                return False
    return True


def taken(move: Move, loops: Sequence[Iter], lanes: int) -> Array:
    """How many words of an operand have been read when each word of the outputs leaves. `loops`: of the outputs, the
    channel last."""
    holds = np.ones([it.extent // (lanes if n == len(loops) - 1 else 1) for n, it in enumerate(loops)], bool)
    for table in move.when:
        n = loops.index(table.index)
        values = np.array(table.values, bool)[:: lanes if n == len(loops) - 1 else 1]
        holds &= values.reshape([-1 if m == n else 1 for m in range(len(loops))])
    return np.cumsum(holds.ravel(), dtype=np.int64)

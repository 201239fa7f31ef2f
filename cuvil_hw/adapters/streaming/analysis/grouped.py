"""Sums over windows whose elements lie elsewhere: grouped convolution, windows over slices, shuffles and other views.

Outputs come in groups that read the same elements, all of them one after the other; a process brings their windows in
that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from cuvil_hw.adapters.streaming.analysis.access import access
from cuvil_hw.adapters.streaming.analysis.moved import Move
from cuvil_hw.adapters.streaming.analysis.operand import MOST_PLACES, Order
from cuvil_hw.adapters.streaming.analysis.positions import Array, evaluate
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Apply, Expr, Iter, Load
from cuvil_hw.expr.traverse import walk
from cuvil_hw.schedule.kernel import Kernel


@dataclass(frozen=True)
class Grouped:
    """`move`: the source, by position of the output, group, tap and channel of a group; `taps`: in that order;
    `channel`: the iterator over the channels of a group, if there is one."""

    move: Move
    groups: int
    taps: tuple[Iter, ...]
    channel: Iter | None
    channels: int


def grouped(
    kernel: Kernel, load: Load, guard: Expr | None, given: Order, order: Order, constants: Mapping[str, Array]
) -> Grouped | None:
    """How a reduction reads `load`; None where that is no sum of tables. `guard`: the condition under which there is an
    element; `given`, `order`: of the dimensions of the source and of the output as they stream."""
    out, reduce = kernel.iterators[order[-1]], kernel.reduce
    assert reduce is not None
    across = load.index[given[-1]]
    inside = {i: np.array([i.extent // 2]) for i in (*kernel.iterators, *reduce.iters)}  # no padding there
    values = inside | {out: np.arange(out.extent)}
    try:
        inner = [n for n in reduce.iters if np.ptp(evaluate(across, inside | {n: np.arange(n.extent)}, constants))]
        places = np.stack([np.broadcast_to(evaluate(i, values, constants), out.extent) for i in load.index])
    except CuvilError:
        return None
    taps = tuple(i for i in reduce.iters if i not in inner)
    per = next((n for n in range(1, out.extent) if (places[:, n] != places[:, 0]).any()), out.extent)
    if len(inner) > 1 or out.extent % per or (places != np.repeat(places[:, ::per], per, axis=1)).any():
        return None
    if per > 1 and not all(_alike(c, out, per, constants) for c in _each(guard)):
        return None  # a running sum, say: each output takes other elements
    groups = out.extent // per
    channel = inner[0] if inner else None
    last = {channel: np.arange(channel.extent)} if channel is not None else {out: np.zeros(1, np.int64)}
    digits: list[Mapping[Iter, Array]] = [
        *({i: np.arange(i.extent)} for d in order[:-1] if (i := kernel.iterators[d]).extent > 1),
        {out: np.arange(groups) * per},
        *({t: np.arange(t.extent)} for t in taps),
        last,
    ]
    source = kernel.operand(load.buffer).type
    found = access(load, source, digits, constants, given, _each(guard))
    if found is None:
        return None
    return Grouped(Move(load, found), groups, taps, channel, channel.extent if channel is not None else 1)


def _alike(cond: Expr, out: Iter, per: int, constants: Mapping[str, Array]) -> bool:
    """Whether a condition is the same for each `per` values of `out`, one after the other."""
    its = list(dict.fromkeys((out, *(n for n in walk(cond) if isinstance(n, Iter)))))
    if prod(i.extent for i in its) > MOST_PLACES:
        return False
    values = {i: np.arange(i.extent).reshape(-1, *[1] * (len(its) - n - 1)) for n, i in enumerate(its)}
    try:
        holds = np.broadcast_to(evaluate(cond, values, constants), [i.extent for i in its]).reshape(
            out.extent // per, per, -1
        )
    except CuvilError:
        return False
    return bool((holds == holds[:, :1]).all())


def _each(cond: Expr | None) -> list[Expr]:
    match cond:
        case None:
            return []
        case Apply(op="and", args=(a, b)):
            return [*_each(a), *_each(b)]
    return [cond]

"""Channels that a tensor gets, or loses, beside a port: zeros behind the last one, or the last ones dropped.

Where a tensor has one position, its words go on as they come: the last one is filled in part at the port, which adds
zeros or drops what is too much. Else a word holds all channels of a position.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.operand import Order
from cuvil_hw.adapters.streaming.analysis.positions import by_position, evaluate
from cuvil_hw.adapters.streaming.analysis.stage import Stage, foldable, lane_chain
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Const, Expr, Iter, Load, Select, index
from cuvil_hw.schedule.kernel import Kernel

MAX_WORD_BITS = 4096  # of a stream, which tools keep as one number


def border(kernel: Kernel, orders: Mapping[str, Order], ends: Collection[str]) -> Stage | None:
    """The stage of a kernel that does nothing else; None for others. `orders`: in which tensors stream; `ends`: those
    whose last word may be filled in part."""
    if kernel.reduce is not None or len(orders) != 1:
        return None
    ((source, order),) = orders.items()
    given, made = kernel.operand(source).type, kernel.type
    if given.rank != made.rank or not order or not dtypes.is_int(made.dtype):
        return None
    before, after = given.shape[order[-1]], made.shape[order[-1]]
    channel = kernel.iterators[order[-1]]
    rest = [(a, b) for d, (a, b) in enumerate(zip(given.shape, made.shape, strict=True)) if d != order[-1]]
    if before == after or any(a != b for a, b in rest) or not _copies(kernel.body, kernel, channel, before):
        return None
    if not {source, kernel.output} & {*ends}:
        return None
    stage = Stage(kernel, "border", (source,), before, after, order=order, lanes=(channel,))
    if stage.pixels > 1 and foldable(min(before, after)) != max(before, after):
        return None  # no padding of layers: its words needn't hold all channels
    return stage if border_lanes(stage) else None


def border_lanes(stage: Stage) -> tuple[int, ...]:
    """Legal elements a word, of the side with more."""
    most = max(stage.channels_in, stage.channels_out)
    width = dtypes.record(stage.kernel.type.dtype).bits
    legal = lane_chain(most) if stage.pixels == 1 else (most,)
    return tuple(n for n in legal if n * width <= MAX_WORD_BITS)


def _copies(body: Expr, kernel: Kernel, channel: Iter, count: int) -> bool:
    """Whether it is the source's element of the same place where there is one, and 0 elsewhere."""
    if isinstance(body, Select) and isinstance(body.other, Const) and body.other.value == 0:
        if not by_position(body.cond, kernel.sources):
            return False
        try:
            holds = evaluate(body.cond, {channel: np.arange(channel.extent)}, {})
        except CuvilError:
            return False
        if not np.array_equal(holds, np.arange(channel.extent) < count):
            return False
        body = body.then
    elif channel.extent > count:
        return False
    if not isinstance(body, Load):
        return False
    return all(
        e == it or (it.extent == 1 and e == index(0)) for e, it in zip(body.index, kernel.iterators, strict=True)
    )

"""Constants in the order in which a folded stage consumes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cuvil_hw.adapters.streaming.analysis.positions import Array, evaluate
from cuvil_hw.adapters.streaming.analysis.tables import iterators
from cuvil_hw.adapters.streaming.analysis.tables import kept as kept_axes
from cuvil_hw.expr.nodes import Iter, Load, Lookup


def gather(
    e: Load | Lookup, constant: Callable[[str], Array], grids: Mapping[Iter, Array], axes: Sequence[Sequence[Iter]]
) -> tuple[Array, tuple[int, ...]]:
    """The constants that `e` reads over the whole iteration space, and which table axes they depend on.

    `constant`: the array of a buffer; `axes`: the iterators behind each axis of the table; `grids`: each iterator's
    values, shaped to broadcast over all axes. An axis on which `e` doesn't depend is left out of the table.
    """
    used, kept = iterators(e), kept_axes(e, axes)
    values = {it: grids[it] for it in used}
    if isinstance(e, Load):
        table = constant(e.buffer)[tuple(evaluate(i, values, {}) for i in e.index)]
    else:
        table = np.asarray(e.values)[evaluate(e.index, values, {})]
    rank = len(axes)
    full = np.broadcast_to(table, np.broadcast_shapes(table.shape, *[grids[it].shape for it in used], (1,) * rank))
    return full.squeeze(axis=tuple(n for n in range(rank) if n not in kept)) if full.ndim else full, kept

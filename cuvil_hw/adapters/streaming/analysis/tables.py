"""Constants of a folded stage as tables: which loops index them, so how deep and how wide they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from cuvil_hw.adapters.streaming.analysis.exact import Ranges, stored
from cuvil_hw.expr.nodes import Expr, Iter, Load, Lookup, Reduce, State
from cuvil_hw.expr.traverse import walk


@dataclass(frozen=True, slots=True)
class Table:
    """What one access to constants reads. `dtype`: of the stored elements; `axes`: those of four (fold of outputs, fold
    of inputs, input lane, output lane) that it depends on; `by_data`: indexed by what streams in, so that each lane
    reads a place of its own; `inner`: steps over what it depends on of the second axis."""

    leaf: Load | Lookup
    dtype: str
    axes: tuple[int, ...]
    by_data: bool = False
    inner: int = 1

    def shape(self, pe: int, simd: int, folds: tuple[int, int]) -> tuple[int, int]:
        """(words, elements a word). `folds`: steps over the outputs and over the inputs, 0 for those of the table."""
        if self.by_data:
            assert isinstance(self.leaf, Lookup)
            return len(self.leaf.values), 1
        words = elements = 1
        for axis in self.axes:
            words *= folds[axis] or self.inner if axis < 2 else 1
            elements *= (simd, pe)[axis - 2] if axis >= 2 else 1
        return words, elements


def tables(
    nodes: Iterable[Expr], sources: Collection[str], loops: Sequence[Sequence[Iter]], ranges: Ranges
) -> tuple[Table, ...]:
    """The constants that `nodes` read, each once. `sources`: the buffers that stream in; `loops`: the iterators behind
    each axis."""
    found: dict[Expr, Table] = {}
    for n in nodes:
        if isinstance(n, Lookup) and indexed_by_data(n):
            found[n] = Table(n, stored(n, ranges), (), True)
        elif isinstance(n, Lookup) or (isinstance(n, Load) and n.buffer not in sources):
            inner = prod(it.extent for it in iterators(n) & set(loops[1]))
            found[n] = Table(n, stored(n, ranges), kept(n, loops), inner=inner)
    return tuple(found.values())


def kept(e: Load | Lookup, loops: Sequence[Sequence[Iter]]) -> tuple[int, ...]:
    """The axes that an access depends on."""
    used = iterators(e)
    return tuple(n for n, its in enumerate(loops) if used & set(its))


def iterators(e: Load | Lookup) -> set[Iter]:
    """Iterators that an access to a constant depends on."""
    indices = e.index if isinstance(e, Load) else (e.index,)
    return {n for i in indices for n in walk(i) if isinstance(n, Iter)}


def indexed_by_data(e: Lookup) -> bool:
    """Whether the index is computed from what streams in, so that the table is no constant of the stage."""
    return any(isinstance(n, Load | Reduce | State) for n in walk(e.index))

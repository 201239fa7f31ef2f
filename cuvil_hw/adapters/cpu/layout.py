"""Which iterator of each kernel becomes vector lanes, and how buffers lie in memory so that its loads are contiguous.

Inputs and outputs keep their logical order: they are the caller's memory. Temporaries and constants may be permuted;
constants are permuted once, when the program is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuvil_hw.adapters.sequential.nest import Layout
from cuvil_hw.expr.nodes import Expr, Iter, Load, Select
from cuvil_hw.expr.traverse import walk
from cuvil_hw.schedule.kernel import Buffer, Kernel, KernelGraph


@dataclass(frozen=True, slots=True)
class Placement:
    """How kernels and buffers are laid out.

    Attributes:
        vectors: vector iterator by kernel name; "" for none.
        layouts: physical order of dimensions by buffer; logical where a buffer isn't named.
    """

    vectors: Mapping[str, str]
    layouts: Mapping[str, Layout]


def place(graph: KernelGraph) -> Placement:
    """The layout of all kernels and buffers, decided for one kernel after another. Those in which loops have views keep
    their order."""
    logical = graph.logical
    vectors: dict[str, str] = {}
    layouts: dict[str, Layout] = {}
    for kernel in graph.kernels:
        vector = _vector(kernel, graph.buffers, layouts) if kernel.reduce else None
        vectors[kernel.name] = vector.name if vector else ""
        if vector is not None:
            for load in kernel.loads():
                dim = alone(load, vector)
                const = graph.buffers[load.buffer].role == "const" and load.buffer not in logical
                if const and dim is not None:
                    layouts.setdefault(load.buffer, _last(len(load.index), dim))
        out = graph.buffers[kernel.output]
        if out.role == "temp" and out.type.rank > 1 and out.name not in logical:
            if vector is not None:
                layouts[kernel.output] = _last(out.type.rank, kernel.iterators.index(vector))
            elif (same := _elementwise_input(kernel, layouts)) is not None:
                layouts[kernel.output] = same
    return Placement(vectors, layouts)


def alone(load: Load, it: Iter) -> int | None:
    """The dimension that `it` indexes by itself, when it appears nowhere else in the index; else None."""
    dims = [d for d, i in enumerate(load.index) if it in walk(i)]
    return dims[0] if len(dims) == 1 and load.index[dims[0]] == it else None


def vectorizable(kernel: Kernel) -> list[Iter]:
    """Parallel iterators whose neighbours read the same or neighbouring elements of every buffer, in some layout."""
    loads = kernel.loads()
    return [
        it
        for it in kernel.iterators
        if it.extent > 1 and all(alone(x, it) is not None or not _mentions(x, it) for x in loads)
    ]


def _mentions(e: Expr, it: Iter) -> bool:
    return any(node == it for node in walk(e))


def _vector(kernel: Kernel, buffers: Mapping[str, Buffer], layouts: Mapping[str, Layout]) -> Iter | None:
    """The best of `vectorizable`: fewest strided loads, no guard of its own, most lanes, innermost."""
    loads = [x for x in kernel.loads() if buffers[x.buffer].role != "const"]
    conditions = [e.cond for e in walk(kernel.body) if isinstance(e, Select)]

    def rank(it: Iter) -> tuple[int, int, int, int]:
        strided = 0
        for load in loads:
            dim = alone(load, it)
            if dim is not None:
                layout = layouts.get(load.buffer, tuple(range(len(load.index))))
                strided += layout[-1] != dim
        guards = sum(_mentions(c, it) for c in conditions)
        return (strided, guards, -min(it.extent, 16), -kernel.iterators.index(it))

    return min(vectorizable(kernel), key=rank, default=None)


def _last(rank: int, dim: int) -> Layout:
    return (*(d for d in range(rank) if d != dim), dim)


def _elementwise_input(kernel: Kernel, layouts: Mapping[str, Layout]) -> Layout | None:
    """The layout of the first input that is read at the output's own index."""
    for load in kernel.loads():
        same = len(load.index) == len(kernel.iterators) and all(
            i == it or it.extent == 1 for i, it in zip(load.index, kernel.iterators, strict=True)
        )
        if same and load.buffer in layouts:
            return layouts[load.buffer]
    return None

"""Which iterator of each kernel becomes vector lanes, and how buffers lie in memory so that its loads are contiguous.

Inputs and outputs keep their logical order: they are the caller's memory. Temporaries may be permuted; constants are
permuted, and packed in blocks of lanes in the order in which a sum reads them, once, when the program is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cuvil_hw import dtypes
from cuvil_hw.adapters.cpu import cost
from cuvil_hw.adapters.cpu.reach import alone, beside
from cuvil_hw.adapters.sequential.nest import LaneBlocks, Layout
from cuvil_hw.adapters.sequential.product import Product, product_of
from cuvil_hw.expr.nodes import Expr, Iter, Load, Select
from cuvil_hw.expr.traverse import walk
from cuvil_hw.schedule.kernel import Buffer, Kernel, KernelGraph
from cuvil_hw.target.profile import Profile

# Vectors side by side of a tile of several rows, and of one row alone, whose sums would wait for one another.
BESIDE_ROWS, ALONE = 2, 8


@dataclass(frozen=True, slots=True)
class Placement:
    """How kernels and buffers are laid out.

    Attributes:
        vectors: vector iterator by kernel name; "" for none.
        layouts: physical order of dimensions by buffer; logical where a buffer isn't named.
        packed: constants in blocks of lanes.
    """

    vectors: Mapping[str, str]
    layouts: Mapping[str, Layout]
    packed: Mapping[str, LaneBlocks]


def place(graph: KernelGraph, profile: Profile) -> Placement:
    """The layout of all kernels and buffers, decided for one kernel after another. Those in which loops have views keep
    their order."""
    logical = graph.logical
    vectors: dict[str, str] = {}
    layouts: dict[str, Layout] = {}
    packed: dict[str, LaneBlocks] = {}
    readers: dict[str, int] = {}
    wanted = _wanted(graph)
    for kernel in graph.kernels:
        for name in kernel.inputs:
            readers[name] = readers.get(name, 0) + 1
    for kernel in graph.kernels:
        vector = _vector(kernel, graph.buffers, layouts) if kernel.reduce else None
        vectors[kernel.name] = vector.name if vector else ""
        if vector is not None:
            own = _packed(kernel, vector, profile)
            for load in kernel.loads():
                dim = alone(load, vector)
                if graph.buffers[load.buffer].role != "const" or load.buffer in logical or dim is None:
                    continue
                if load.buffer not in layouts:
                    layouts[load.buffer] = _read_order(kernel, load, dim)
                    if readers[load.buffer] == 1 and load.buffer in own:
                        packed[load.buffer] = own[load.buffer]
        out = graph.buffers[kernel.output]
        if out.role == "temp" and out.type.rank > 1 and out.name not in logical:
            if kernel.output in wanted:
                layouts[kernel.output] = wanted[kernel.output]
            elif vector is not None:
                layouts[kernel.output] = _last(out.type.rank, kernel.iterators.index(vector))
            elif (same := _elementwise_input(kernel, layouts)) is not None:
                layouts[kernel.output] = same
    return Placement(vectors, layouts, packed)


def pairs_of(kernel: Kernel, product: Product, lane: Iter) -> bool:
    """Can products of bytes be added up by pairs: of a constant with the lanes and zero point 0, and of what the rows
    read, both along the innermost iterator of the reduction?"""
    own, other = product.sides(lane)
    if own.bytes is None or other.bytes is None or own.bytes.zero or lane in other.iters or not product.reduce.iters:
        return False
    inner = product.reduce.iters[-1]
    return (
        kernel.operand(own.bytes.load.buffer).role == "const"
        and alone(own.bytes.load, inner) is not None
        and alone(own.bytes.load, lane) is not None
        and _whole_bytes(own.bytes.load)
        and product.reduce.dtype != "u32"
        and not any(lane in walk(g) for g in product.guards)
    )


def _whole_bytes(load: Load) -> bool:
    return load.dtype in ("i8", "u8")


def _packed(kernel: Kernel, lane: Iter, profile: Profile) -> dict[str, LaneBlocks]:
    """Of the constants that a tile reads by lanes alone, how they are packed."""
    product = product_of(kernel)
    if product is None or product.reduce is None:
        return {}
    own, other = product.sides(lane)
    if lane in other.iters or lane not in own.iters:
        return {}
    pairs = pairs_of(kernel, product, lane)
    if not pairs and not dtypes.is_float(product.reduce.dtype):
        return {}
    bits = 32 if pairs else dtypes.record(product.reduce.dtype).bits
    width = max(1, cost.vector_bits(profile) // bits)
    rows = any(i.extent > 1 for i in other.iters if i not in own.iters)
    beside = min(BESIDE_ROWS if rows else ALONE, -(-lane.extent // width))
    found = {}
    for load in kernel.loads():
        if alone(load, lane) is not None and kernel.operand(load.buffer).role == "const":
            weights = own.bytes is not None and load == own.bytes.load
            found[load.buffer] = LaneBlocks(beside * width, pairs and weights)
    return found


def _computed(kernel: Kernel) -> tuple[Load, Load] | None:
    """The factors of a product of two tensors that are both computed, without conditions."""
    product = product_of(kernel) if kernel.reduce is not None else None
    if product is None or product.guards or not (product.left.batched and product.right.batched):
        return None
    left, right = product.left.value, product.right.value
    return (left, right) if isinstance(left, Load) and isinstance(right, Load) else None


def _wanted(graph: KernelGraph) -> dict[str, Layout]:
    """Of products of two computed tensors neither of which has lanes side by side: the order in which one has them,
    for the kernel that writes it."""
    found: dict[str, Layout] = {}
    for kernel in graph.kernels:
        loads = _computed(kernel)
        several = [it for it in reversed(kernel.iterators) if it.extent > 1]
        if loads is None or any(beside(x, it) == len(x.index) - 1 for x in loads for it in several):
            continue
        ways = [(x, d) for it in several for x in loads if (d := alone(x, it)) is not None]
        load, dim = next(((x, d) for x, d in ways if graph.buffers[x.buffer].role == "temp"), (None, 0))
        if load is not None:
            found.setdefault(load.buffer, _last(len(load.index), dim))
    return found


def vectorizable(kernel: Kernel) -> list[Iter]:
    """Parallel iterators whose neighbours read the same or neighbouring elements of every buffer, in some layout."""
    loads, near = kernel.loads(), _near(kernel)
    return [
        it
        for it in kernel.iterators
        if it.extent > 1 and all(near(x, it) is not None or not _mentions(x, it) for x in loads)
    ]


def _near(kernel: Kernel) -> Callable[[Load, Iter], int | None]:
    return alone if _computed(kernel) is None else beside


def _mentions(e: Expr, it: Iter) -> bool:
    return any(node == it for node in walk(e))


def _vector(kernel: Kernel, buffers: Mapping[str, Buffer], layouts: Mapping[str, Layout]) -> Iter | None:
    """The best of `vectorizable`: fewest strided loads, no guard of its own, most lanes, innermost."""
    loads = [x for x in kernel.loads() if buffers[x.buffer].role != "const"]
    conditions = [e.cond for e in walk(kernel.body) if isinstance(e, Select)]
    near = _near(kernel)

    def rank(it: Iter) -> tuple[int, int, int, int]:
        strided = 0
        for load in loads:
            dim = near(load, it)
            if dim is not None:
                layout = layouts.get(load.buffer, tuple(range(len(load.index))))
                strided += layout[-1] != dim
        guards = sum(_mentions(c, it) for c in conditions)
        return (strided, guards, -min(it.extent, 16), -kernel.iterators.index(it))

    return min(vectorizable(kernel), key=rank, default=None)


def _read_order(kernel: Kernel, load: Load, lane: int) -> Layout:
    """The dimensions as the loops of a reduction run through them, lanes last."""
    loops = {it: n for n, it in enumerate(kernel.reduction_iters)}

    def depth(d: int) -> tuple[int, int]:
        return max((1 + loops[it] for it in walk(load.index[d]) if isinstance(it, Iter) and it in loops), default=0), d

    return (*sorted((d for d in range(len(load.index)) if d != lane), key=depth), lane)


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

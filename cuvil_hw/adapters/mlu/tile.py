"""Which part of each operand a tile of the output needs, and how large tiles may be. Nothing is emitted here.

A tile is a run of neighbouring output elements: iterators before the split one have one value, the split one a range of
`size` values, those after it all of theirs. So a finished tile leaves NRAM by one contiguous copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from cuvil_hw.dtypes import to_numpy
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, affine, index, index_op
from cuvil_hw.expr.traverse import substitute, walk
from cuvil_hw.schedule.kernel import Kernel

# "NFU_ALIGN_SIZE" of Cambricon's own kernels (mlu-ops, kernels/kernel.h): every array in NRAM starts at a multiple.
ALIGN_BYTES = 128
# Of an operand that is read at computed positions (gather), at most this share of NRAM; a larger one stays in GDRAM and
# is read from there element by element.
GATHER_SHARE = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Positions along one dimension: `extent` of them from `start` on. The start may lie outside the tensor where a
    condition guards the reads; None: unknown, so the whole dimension."""

    start: Expr | None
    extent: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """The box of a buffer that one load may touch while a tile is computed. `direct`: it isn't staged at all."""

    load: Load
    spans: tuple[Span, ...]
    shape: tuple[int, ...]
    direct: bool

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(s.extent for s in self.spans)

    @property
    def elements(self) -> int:
        return prod(self.extents)

    @property
    def bytes(self) -> int:
        return self.elements * to_numpy(self.load.dtype).itemsize

    @property
    def fixed(self) -> bool:
        """The same for every tile."""
        return all(s.start is None or isinstance(s.start, Const) for s in self.spans)


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a kernel that is computed at once, in NRAM.

    Attributes:
        split: position of the iterator that is cut; the rank, when none is.
        size: how much of that iterator a part takes.
        far: operands that stay in GDRAM, because they don't fit NRAM.
    """

    kernel: Kernel = field(compare=False, repr=False)
    split: int
    size: int
    far: tuple[str, ...]
    regions: tuple[Footprint, ...] = field(compare=False, repr=False)

    @property
    def outer(self) -> tuple[Iter, ...]:
        return self.kernel.iterators[: self.split]

    @property
    def inner(self) -> tuple[Iter, ...]:
        return self.kernel.iterators[self.split + 1 :]

    @property
    def cut(self) -> Iter | None:
        return self.kernel.iterators[self.split] if self.split < len(self.kernel.iterators) else None

    @property
    def steps(self) -> int:
        """Tiles along the split iterator."""
        return -(-self.cut.extent // self.size) if self.cut is not None else 1

    @property
    def count(self) -> int:
        """Tiles in all."""
        return prod(i.extent for i in self.outer) * self.steps

    @property
    def elements(self) -> int:
        """Of the output, in one whole tile."""
        return self.size * prod(i.extent for i in self.inner)

    @property
    def output_bytes(self) -> int:
        return self.elements * to_numpy(self.kernel.type.dtype).itemsize

    @property
    def staged(self) -> tuple[Footprint, ...]:
        return tuple(r for r in self.regions if not r.direct)

    @property
    def nram_bytes(self) -> int:
        return aligned(self.output_bytes) + sum(aligned(r.bytes) for r in self.staged)


def aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGN_BYTES) * ALIGN_BYTES


def tiles(kernel: Kernel, nram_bytes: float, cores: int) -> list[Tile]:
    """Every cut at a power of two, at what gives each core one tile, and none; those that fit. When none does, the
    smallest with its largest operands left in GDRAM: a sum may be longer than NRAM."""
    if kernel.type.size == 0:
        return [_tile(kernel, len(kernel.iterators), 1, nram_bytes)]
    several = [d for d, i in enumerate(kernel.iterators) if i.extent > 1]
    found: list[Tile] = [] if several else [_tile(kernel, len(kernel.iterators), 1, nram_bytes)]
    for split in several:
        extent = kernel.iterators[split].extent
        outer = prod(i.extent for i in kernel.iterators[:split])
        share = max(1, -(-extent * outer // cores))
        sizes = {extent, min(share, extent), *(1 << k for k in range(extent.bit_length()) if 1 << k < extent)}
        found += [_tile(kernel, split, size, nram_bytes) for size in sorted(sizes)]
    fitting = [t for t in found if t.nram_bytes <= nram_bytes]
    if fitting:
        return fitting
    least = min(found, key=lambda t: t.nram_bytes)
    far: list[str] = []
    for region in sorted(least.staged, key=lambda r: r.bytes, reverse=True):
        if region.load.buffer in far:
            continue
        far.append(region.load.buffer)
        least = _tile(kernel, least.split, least.size, nram_bytes, tuple(far))
        if least.nram_bytes <= nram_bytes:
            break
    return [least]


def _tile(kernel: Kernel, split: int, size: int, nram_bytes: float, far: tuple[str, ...] = ()) -> Tile:
    widths = {i.name: 1 if d < split else size if d == split else i.extent for d, i in enumerate(kernel.iterators)}
    widths |= {i.name: i.extent for i in kernel.reduction_iters}
    whole = [i for d, i in enumerate(kernel.iterators) if d > split] + list(kernel.reduction_iters)
    origin: dict[Iter, Expr] = {i: index(0) for i in whole}
    regions = []
    for load in kernel.loads():
        shape = kernel.operand(load.buffer).type.shape
        spans = tuple(_span(i, n, widths, origin) for i, n in zip(load.index, shape, strict=True))
        region = Footprint(load, spans, shape, False)
        gathers = any(isinstance(e, Load) for i in load.index for e in walk(i))
        direct = load.buffer in far or (gathers and region.bytes * GATHER_SHARE > nram_bytes)
        regions.append(Footprint(load, spans, shape, direct))
    return Tile(kernel, split, size, far, tuple(regions))


def _span(e: Expr, extent: int, widths: Mapping[str, int], origin: Mapping[Iter, Expr]) -> Span:
    known = _interval(e, widths)
    if known is None or known[1] + 1 >= extent:
        return Span(None, extent)
    return Span(substitute(known[0], origin), known[1] + 1)


def _interval(e: Expr, widths: Mapping[str, int]) -> tuple[Expr, int] | None:
    """(low, spread): the values of an index lie in low…low + spread, where `low` is an index with every iterator at
    the first of its values. None when that isn't known."""
    if isinstance(e, Const):
        return e, 0
    if isinstance(e, Iter):
        return e, max(widths[e.name] - 1, 0)
    if not isinstance(e, Apply):
        return None
    if e.op in ("add", "mul", "sub"):
        terms, constant = affine(e)
        if e in terms:
            return None
        low: Expr = index(constant)
        spread = 0
        for atom, factor in terms.items():
            part = _interval(atom, widths)
            if part is None:
                return None
            first = part[0] if factor > 0 else index_op("add", part[0], index(part[1]))
            low = index_op("add", low, index_op("mul", first, index(factor)))
            spread += abs(factor) * part[1]
        return low, spread
    if len(e.args) != 2:
        return None
    left, right = (_interval(a, widths) for a in e.args)
    if left is None or right is None:
        return None
    (a, spread), (b, other) = left, right
    if e.op in ("min", "max"):
        return index_op(e.op, a, b), max(spread, other)
    if e.op in ("floordiv", "mod") and isinstance(b, Const) and int(b.value) > 0:
        by = int(b.value)
        if e.op == "floordiv":
            return index_op("floordiv", a, b), -(-spread // by)
        return (index_op("mod", a, b), 0) if spread == 0 else (index(0), by - 1)
    return None


def strided(extents: Sequence[int], shape: Sequence[int]) -> list[tuple[int, int, int]]:
    """A box of a tensor as loops (count, stride in the tensor, stride in the dense box), innermost last; dimensions
    that follow one another without a gap are one."""
    loops: list[tuple[int, int, int]] = []
    inside = outside = 1
    for extent, whole in zip(reversed(extents), reversed(shape), strict=True):
        if extent != 1:
            if loops and loops[-1][0] * loops[-1][1] == outside:
                count, far, near = loops.pop()
                loops.append((count * extent, far, near))
            else:
                loops.append((extent, outside, inside))
        inside *= extent
        outside *= whole
    return loops[::-1]

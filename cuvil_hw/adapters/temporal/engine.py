"""Sizes of the shared engine, how a layer is cut into tiles for it, and how long it takes: analytic, not checked.

The loops are those of hls/cuvil_engine.h. A step is a block of output channels of a tile: while its sums are made, the
weights of the next step and the features of the next tile fill the other halves of their memories. Processes run at
the same time, so a layer takes as long as the slowest, and the first tile and the last one beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.cost import Fabric, Use, block_rams, multiplier_blocks
from cuvil_hw.adapters.temporal.image import WORD_BYTES
from cuvil_hw.adapters.temporal.layer import Convolution, Sum
from cuvil_hw.adapters.temporal.memory import pixel_words

# Cycles from asking for a burst to its first word. Nominal: it depends on the board's memory controller.
BURST_CYCLES = 40
_START_CYCLES = 100  # reading a pass from memory, filling the pipelines


@dataclass(frozen=True, slots=True)
class Engine:
    """`outputs` × `inputs` products a cycle; `lanes` results a cycle are rescaled. Depth of one half of each memory:
    `features` in groups of `inputs`, `weights` in lines of all products, `results` in words. `uram`: weights lie in
    UltraRAM."""

    outputs: int
    inputs: int
    lanes: int
    features: int
    weights: int
    results: int
    uram: bool = False

    @property
    def banks(self) -> int:
        """Memories of weights, a word wide each."""
        return self.outputs * self.inputs // WORD_BYTES

    @property
    def urams(self) -> int:
        """UltraRAM blocks: 4,096 lines of 72 bits each (UG573)."""
        return self.banks * -(-2 * self.weights // 4096) if self.uram else 0

    def floor(self, layers: Sequence[Convolution | Sum | str]) -> int:
        """Cycles that all layers take at least: their products, each multiplier busy all the time but for channels that
        fill no group."""
        return sum(self._products(layer) for layer in layers if isinstance(layer, Convolution))

    def _products(self, layer: Convolution) -> int:
        window = layer.rows.out * layer.cols.out * layer.rows.kernel * layer.cols.kernel
        if layer.kind != "dense":
            return window * -(-layer.channels_out // self.inputs)
        return window * -(-layer.channels_out // self.outputs) * -(-layer.channels_in // self.inputs)

    def describe(self) -> str:
        return f"{self.outputs}×{self.inputs} products and {self.lanes} rescaled results a cycle"

    def use(self, fabric: Fabric) -> Use:
        """Multipliers, memories, and logic: of a product's share of its adder tree, of buses and counters."""
        products = self.outputs * self.inputs
        use = Use(dsp=products * multiplier_blocks(fabric, 9, 8))
        # Of a lane: a sum by its multiplier; two bytes by theirs, in `combine`.
        use.dsp += self.lanes * (multiplier_blocks(fabric, 32, 32) + 2 * multiplier_blocks(fabric, 9, 32))
        words = self.inputs // WORD_BYTES
        use.ram += words * block_rams(fabric, 2 * self.features, 72)
        use.ram += 0 if self.uram else self.banks * block_rams(fabric, 2 * self.weights, 64)
        use.ram += block_rams(fabric, 2 * self.results, 64) + 2
        use.lut += products * 18 + self.outputs * 64 + self.lanes * 2 * 600 + 9000
        use.ff += products * 17 + self.outputs * 64 + self.lanes * 2 * 500 + 12000
        use.lutram += self.outputs * 8
        return use


def engines() -> list[Engine]:
    """The sizes that are tried."""
    shapes = ((64, 16), (32, 32), (48, 16), (32, 16), (24, 16), (16, 16), (32, 8), (16, 8), (8, 8))
    depths = product((8192, 4096, 2048, 1024), (1024, 576, 512, 256), (8192, 4096, 2048, 1024))
    made = [Engine(o, i, lanes, *each) for (o, i), lanes, each in product(shapes, (4, 2, 1), depths)]
    return [*made, *(replace(e, weights=2048, uram=True) for e in made if e.weights == 1024)]


@dataclass(frozen=True, slots=True)
class BoardMemory:
    """Bytes a cycle that the board's memory gives to all ports together."""

    bytes_per_cycle: float


@dataclass(frozen=True, slots=True)
class TiledConvolution:
    """A convolution in tiles of `rows` × `cols` output pixels. `parts`: a sum is made in as many steps; `chunks`:
    groups of input channels; `blocks`: of `lanes` output channels."""

    layer: Convolution
    engine: Engine
    rows: int
    cols: int

    @property
    def in_words(self) -> int:
        return pixel_words(self.layer.kernel.operand(self.layer.source).type)

    @property
    def out_words(self) -> int:
        return pixel_words(self.layer.kernel.type)

    @property
    def dense(self) -> bool:
        return self.layer.kind == "dense"

    @property
    def chunks(self) -> int:
        return -(-self.in_words * WORD_BYTES // self.engine.inputs)

    @property
    def taps(self) -> int:
        return self.layer.rows.kernel * self.layer.cols.kernel

    @property
    def parts(self) -> int:
        return parts(self.taps * (self.chunks if self.dense else 1), self.engine.weights)

    @property
    def depth(self) -> int:
        """Cycles of one part of a sum."""
        return self.taps * (self.chunks if self.dense else 1) // self.parts

    @property
    def lanes(self) -> int:
        return self.engine.outputs if self.dense else self.engine.inputs

    @property
    def blocks(self) -> int:
        return -(-self.layer.channels_out // self.lanes)

    @property
    def step_words(self) -> int:
        """Words of weights that a step needs."""
        return self.depth * self.engine.inputs * (self.engine.outputs if self.dense else 1) // WORD_BYTES

    @property
    def block_words(self) -> int:
        return self.lanes * dtypes.to_numpy(self.layer.kernel.type.dtype).itemsize // WORD_BYTES

    def sides(self) -> Iterator[tuple[int, int, int]]:
        """(rows, cols, how often) of the tiles: whole ones, and what is left at both edges."""
        for rows, down in _split(self.layer.rows.out, self.rows):
            for cols, right in _split(self.layer.cols.out, self.cols):
                yield rows, cols, down * right

    def source(self, rows: int, cols: int) -> tuple[int, int]:
        """Rows and columns of the source under a tile."""
        r, c = self.layer.rows, self.layer.cols
        return (rows - 1) * r.stride + r.span, (cols - 1) * c.stride + c.span

    def fits(self) -> bool:
        rows, cols = self.source(self.rows, self.cols)
        within = rows * cols * self.chunks <= self.engine.features
        within &= self.rows * self.cols * self.out_words <= self.engine.results
        return within and (self.parts == 1 or self.rows * self.cols == 1)

    def cost(self, memory: BoardMemory) -> Cost:
        total, steps, tiles, products, moved = 0.0, 0.0, 0, 0, 0
        loads = stores = rescales = weights = 0
        for rows, cols, times in self.sides():
            pixels, (high, wide) = rows * cols, self.source(rows, cols)
            words = high * wide * self.chunks * (self.engine.inputs // WORD_BYTES)
            sums = pixels * self.depth
            step = max(sums, self.step_words)
            steps += times * max(self.blocks * self.parts * step, words)
            products += times * self.blocks * self.parts * sums
            rescales += times * self.blocks * (2 * self.lanes + pixels * self.lanes // self.engine.lanes)
            bursts = high if self.in_words else 0
            loads += times * (max(words, high * wide * self.in_words) + bursts * BURST_CYCLES)
            stores += times * (pixels * self.out_words + rows * BURST_CYCLES)
            weights += times * self.blocks * (self.parts * self.step_words + 2 * self.lanes + 2 * BURST_CYCLES)
            moved += times * (high * wide * self.in_words + pixels * self.out_words)
            moved += times * self.blocks * (self.parts * self.step_words + 2 * self.lanes)
            tiles += times
        shared = moved * WORD_BYTES / memory.bytes_per_cycle
        waits = steps if steps > products else 0  # of products for weights or features
        compute, traffic = max(products, rescales), max(loads, stores, weights, shared, waits)
        first = self.source(self.rows, self.cols)
        ends = first[0] * first[1] * self.chunks + self.step_words + self.rows * self.cols * self.out_words
        total = max(compute, traffic, steps) + ends + _START_CYCLES
        return Cost(round(total), "compute" if compute >= traffic else "bandwidth", moved * WORD_BYTES)


@dataclass(frozen=True, slots=True)
class Cost:
    """`bound`: "compute" or "bandwidth", whichever takes longer; `moved`: bytes between memory and chip."""

    cycles: int
    bound: str
    moved: int


def parts(depth: int, most: int) -> int:
    """The least number of equal parts of at most `most`."""
    return next(n for n in range(-(-depth // most), depth + 1) if depth % n == 0)


def _split(extent: int, size: int) -> list[tuple[int, int]]:
    whole, rest = divmod(extent, size)
    return [(n, times) for n, times in ((size, whole), (rest, 1)) if n and times]


def tiling(layer: Convolution, engine: Engine, memory: BoardMemory) -> tuple[TiledConvolution, Cost] | None:
    """The fastest tiling: full rows where they fit, as many as fit, in equal pieces. None when a pixel's window
    doesn't fit."""
    best: tuple[TiledConvolution, Cost] | None = None
    seen = set()
    for pieces in range(1, layer.cols.out + 1):
        cols = -(-layer.cols.out // pieces)
        if cols in seen:
            continue
        seen.add(cols)
        rows = layer.rows.out
        while rows > 1 and not TiledConvolution(layer, engine, rows, cols).fits():
            rows = _fewer(layer, engine, rows, cols)
        made = TiledConvolution(layer, engine, rows, cols)
        if not made.fits():
            continue
        even = TiledConvolution(layer, engine, -(-layer.rows.out // -(-layer.rows.out // rows)), cols)
        cost = even.cost(memory)
        if best is not None and cost.cycles >= best[1].cycles:
            break
        best = even, cost
    return best


def _fewer(layer: Convolution, engine: Engine, rows: int, cols: int) -> int:
    """Fewer rows of a tile, at most as many as the memories hold."""
    made = TiledConvolution(layer, engine, rows, cols)
    wide = made.source(rows, cols)[1] * made.chunks
    source = (engine.features // max(wide, 1) - layer.rows.span) // layer.rows.stride + 1
    target = engine.results // max(cols * made.out_words, 1)
    return max(1, min(rows - 1, source, target))


def sum_cost(layer: Sum, engine: Engine, memory: BoardMemory) -> Cost:
    """A word of each map a cycle, `lanes` of its elements rescaled a cycle."""
    kind = layer.kernel.type
    channels = pixel_words(kind)
    words = channels * (kind.size // max(1, _channels(layer)))
    compute = words * WORD_BYTES // engine.lanes
    moved = words * (len(layer.sources) + 1)
    shared = moved * WORD_BYTES / memory.bytes_per_cycle
    cycles = max(compute, words, shared) + BURST_CYCLES * (1 + words // 256) + _START_CYCLES
    return Cost(round(cycles), "compute" if compute >= max(words, shared) else "bandwidth", moved * WORD_BYTES)


def _channels(layer: Sum) -> int:
    from_shape = layer.kernel.type.shape
    return from_shape[1] if len(from_shape) > 2 else from_shape[-1]

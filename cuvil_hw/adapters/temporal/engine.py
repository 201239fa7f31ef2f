"""Sizes of the shared engine, how a layer is cut into tiles for it, and how long it takes by a formula.

The loops are those of hls/cuvil_engine.h. A step is a block of output channels of a tile: while its sums are made, the
weights of the next step and the features of the next tile fill the other halves of their memories. Processes run at
the same time, so a layer takes as long as the slowest, and the first tile and the last one beside it; where all ports
share a slow memory, they wait for one another, which is counted on average. Tests hold the formula to the simulation
with clocks of the same sources (zynq/temporal_sim.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil
from typing import ClassVar

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric, Use, block_rams, multiplier_blocks
from cuvil_hw.adapters.temporal.image import WORD_BYTES
from cuvil_hw.adapters.temporal.layer import Convolution, Sum
from cuvil_hw.adapters.temporal.memory import pixel_words

_PASS_CYCLES = 60  # of the numbers of a pass
_TABLE_CYCLES = 256
# Of hls/cuvil_engine.h: words in the streams of results, sums before they are rescaled, words fetched and not yet used.
_ROOM, _SUMS, _FETCHED = 32, 4, 512
# Of the model of the memory (cuvil_sim_bursts.h): words of a turn, how many a port may have under way, and ports.
_TURN, _UNDER_WAY, _PORTS = 16, 8, 3


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
    FACTORS: ClassVar = (9, 8)  # bits of a product's: a byte less its zero point, and a weight

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
        """Multipliers and memories, as the fabric's cost formulas have them; logic by guess: a product's share of its
        adder tree, buses and counters. No synthesis has confirmed those numbers of LUTs and flip-flops."""
        products = self.outputs * self.inputs
        use = Use(dsp=products * multiplier_blocks(fabric, *self.FACTORS))
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
    """`bytes_per_cycle`: for all ports together; `latency`: cycles from asking for a burst to its first word, and from
    the last word written to its end."""

    bytes_per_cycle: float
    latency: int

    @property
    def contended(self) -> bool:
        """Whether ports wait for one another: all of them ask for more than it moves."""
        return self.bytes_per_cycle < _PORTS * WORD_BYTES


@dataclass(frozen=True)
class TiledConvolution:
    """A convolution in tiles of `rows` × `cols` output pixels. `parts`: a sum is made in as many steps; `chunks`:
    groups of input channels; `blocks`: of `lanes` output channels."""

    layer: Convolution
    engine: Engine
    rows: int
    cols: int

    @cached_property
    def in_words(self) -> int:
        return pixel_words(self.layer.kernel.operand(self.layer.source).type)

    @cached_property
    def out_words(self) -> int:
        return pixel_words(self.layer.kernel.type)

    @cached_property
    def dense(self) -> bool:
        return self.layer.kind == "dense"

    @cached_property
    def chunks(self) -> int:
        return -(-self.in_words * WORD_BYTES // self.engine.inputs)

    @cached_property
    def sum_chunks(self) -> int:
        """Groups of input channels that a block's sums go over."""
        return self.chunks if self.dense else 1

    @cached_property
    def same_blocks(self) -> int:
        """Blocks in a row whose sums start at the same group of inputs."""
        return 1

    @cached_property
    def next_chunks(self) -> int:
        """From there to the first group of the next such blocks."""
        return 0 if self.dense else 1

    @cached_property
    def taps(self) -> int:
        return self.layer.rows.kernel * self.layer.cols.kernel

    @cached_property
    def parts(self) -> int:
        return parts(self.taps * self.sum_chunks, self.engine.weights)

    @cached_property
    def depth(self) -> int:
        """Cycles of one part of a sum."""
        return self.taps * self.sum_chunks // self.parts

    @cached_property
    def lanes(self) -> int:
        return self.engine.outputs if self.dense else self.engine.inputs

    @cached_property
    def blocks(self) -> int:
        return -(-self.layer.channels_out // self.lanes)

    @cached_property
    def step_words(self) -> int:
        """Words of weights that a step needs."""
        return self.depth * self.engine.inputs * (self.engine.outputs if self.dense else 1) // WORD_BYTES

    @cached_property
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
        """The sum over all tiles of what takes longest while their sums are made; before them the first features and
        weights come alone, behind them the last results leave alone."""
        *sides, (rows, cols, times) = self.sides()
        spans = [self._span(*side, memory) for side in (*sides, (rows, cols, times - 1))]
        last = self._span(rows, cols, 1, memory, last=True)
        first, spans = spans[0], [*spans, last]
        total = sum(s.times * s.cycles for s in spans)
        totals = {
            "compute": sum(s.times * s.compute for s in spans),
            "weights": sum(s.times * s.weights for s in spans),
            "feature maps": sum(s.times * max(s.features, s.results) for s in spans),
        }
        bound = max(totals, key=lambda name: totals[name])
        if sum(s.times * s.shared for s in spans) > max(totals.values()):
            bound = max("weights", "feature maps", key=lambda name: totals[name])
        table = memory.latency + _TABLE_CYCLES if self.layer.finish.table else 0
        ends = max(first.alone, table + memory.latency + self.step_words) + last.results
        return Cost(total + ends + start_cycles(memory), bound, sum(s.times * s.moved for s in spans) * WORD_BYTES)

    def _span(self, rows: int, cols: int, times: int, memory: BoardMemory, last: bool = False) -> _Span:
        """What happens while the sums of a tile are made. Behind the `last` no tile comes, so neither features nor
        weights do in its last step."""
        pixels, (high, wide) = rows * cols, self.source(rows, cols)
        groups = self.engine.inputs // WORD_BYTES
        # Source rows and columns without padding, at most; whole rows are one burst.
        high_in, wide_in = min(high, self.layer.rows.size), min(wide, self.layer.cols.size)
        placed, fetched = high * wide * self.chunks * groups, high_in * wide_in * self.in_words
        bursts = 1 if wide_in == self.layer.cols.size else high_in
        features = max(placed + memory.latency, fetched + bursts * memory.latency)
        sums = pixels * self.depth
        step = max(sums, self.step_words)
        rescaled = 2 * self.lanes + pixels * self.lanes // self.engine.lanes
        late = max(0, placed - self.blocks * self.parts * step)  # of the next tile's words, which come one a step
        compute = self.blocks * max(self.parts * sums, rescaled)
        busy = self.blocks * max(self.parts * step, rescaled) + late
        if last:
            busy, features, fetched = max(compute, busy - late - (step - sums)), 0, 0
        loads = (2 if self.step_words else 1) * memory.latency
        weights = self.blocks * (self.parts * self.step_words + 2 * self.lanes + loads)
        weights -= self.step_words + memory.latency if last else 0
        leave = pixels * self.out_words + (1 if cols == self.layer.cols.out else rows) * memory.latency
        results = max(leave, pixels * self.blocks * self.block_words)
        moved = fetched + pixels * self.out_words + self.blocks * (self.parts * self.step_words + 2 * self.lanes)
        shared = ceil(moved * WORD_BYTES / memory.bytes_per_cycle)
        reads = [
            (bursts, fetched),
            *[(self.blocks, self.blocks * n) for n in (self.parts * self.step_words, 2 * self.lanes)],
        ]
        busy += self._held(rows, cols, reads, memory)
        without, alone = max(busy, weights, results, shared), features
        if memory.contended:
            # Words of others come between those that are asked for when a burst is under way.
            others = (moved - fetched) * max(0, fetched - bursts * _TURN * _UNDER_WAY) / max(features, without)
            mixed = ceil((fetched + others) * WORD_BYTES / memory.bytes_per_cycle)
            features = max(features, mixed + bursts * memory.latency)
        return _Span(times, compute, without, weights, features, alone, results, moved, shared)

    def _held(self, rows: int, cols: int, reads: Sequence[tuple[int, int]], memory: BoardMemory) -> int:
        """Cycles of a tile for which its results can neither leave nor wait in streams: while a burst of them ends, and
        while a memory that can't serve all ports at once serves `reads` (bursts, words) that were asked for before. A
        few sums wait too, where products take longer than rescaling."""
        sums = self.parts * rows * cols * self.depth
        rescaled = 2 * self.lanes + rows * cols * self.lanes // self.engine.lanes
        pace = self.blocks * max(sums, self.parts * self.step_words, rescaled) / (rows * cols * self.out_words)
        room = _ROOM * pace + _SUMS * self.depth * self.parts * max(0.0, 1 - rescaled / sums)
        held = (1 if cols == self.layer.cols.out else rows) * max(0.0, memory.latency - room)
        word = WORD_BYTES / memory.bytes_per_cycle
        ahead = max(1.0, _UNDER_WAY - memory.latency / (_TURN * word))  # turns of a long burst before each of ours
        for bursts, words in reads if memory.contended else ():
            count = min(words / max(1, bursts), _FETCHED)
            ours = max(0.0, count - _TURN * _UNDER_WAY) / ahead  # words meanwhile
            held += bursts * max(0.0, (count + ours) * word - ours * pace - room)
        return ceil(held)


@dataclass(frozen=True, slots=True)
class _Span:
    """Cycles for which a tile keeps each part of the engine busy, for `times` tiles. `without_features`: of all but the
    next tile's features; `alone`: of features while nothing else runs; `moved`: words, for which the memory
    needs `shared` cycles."""

    times: int
    compute: int
    without_features: int
    weights: int
    features: int
    alone: int
    results: int
    moved: int
    shared: int

    @property
    def cycles(self) -> int:
        return max(self.without_features, self.features)


@dataclass(frozen=True, slots=True)
class Cost:
    """`bound`: what takes longest: "compute", or "weights" or "feature maps" that come from memory; `moved`: bytes
    between memory and chip."""

    cycles: int
    bound: str
    moved: int


def start_cycles(memory: BoardMemory) -> int:
    """Reading a pass from memory."""
    return memory.latency + _PASS_CYCLES


def parts(depth: int, most: int) -> int:
    """The least number of equal parts of at most `most`."""
    return next(n for n in range(-(-depth // most), depth + 1) if depth % n == 0)


def _split(extent: int, size: int) -> list[tuple[int, int]]:
    whole, rest = divmod(extent, size)
    return [(n, times) for n, times in ((size, whole), (rest, 1)) if n and times]


Tiling = tuple[TiledConvolution, Cost]


class Tilings:
    """The fastest tiling of each layer on each engine; of layers with equal numbers it is found once."""

    def __init__(self, memory: BoardMemory) -> None:
        self._memory = memory
        self._found: dict[Hashable, Tiling | None] = {}

    def best(self, layer: Convolution, engine: Engine) -> Tiling | None:
        """See `tiling`."""
        key = (layer.numbers, engine)
        if key not in self._found:
            self._found[key] = tiling(layer, engine, self._memory)
        found = self._found[key]
        return found and (replace(found[0], layer=layer), found[1])


def tiling(layer: Convolution, engine: Engine, memory: BoardMemory) -> Tiling | None:
    """The fastest tiling: full rows where they fit, as many as fit, in equal pieces. None when a pixel's window
    doesn't fit."""
    best: Tiling | None = None
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
    words = pixel_words(kind) * (kind.size // max(1, _channels(layer)))
    compute = words * WORD_BYTES // engine.lanes
    moved = words * (len(layer.sources) + 1) * WORD_BYTES
    traffic = max(words, ceil(moved / memory.bytes_per_cycle))
    ends = 2 * memory.latency + (_TABLE_CYCLES if layer.finish.table else 0)
    bound = "compute" if compute >= traffic else "feature maps"
    return Cost(max(compute, traffic) + ends + start_cycles(memory), bound, moved)


def _channels(layer: Sum) -> int:
    from_shape = layer.kernel.type.shape
    return from_shape[1] if len(from_shape) > 2 else from_shape[-1]

"""Reductions in vector registers: a tile of rows × lanes of the output is summed up at once.

    for every other output position
      for each band of rows
        stage: the part of the input that the band reads, padding included (sequential/stage.py)
        for each tile of lanes
          for each tile of rows of the band
            acc[rows][lanes] = init
            for the reduction iterators: acc[row][lanes] += value of the row · values of the lanes
            output = rest of the body, in vectors where it can be

A step loads each vector of lanes once for all rows. No sum is reordered; floats are multiplied and added as one
operation where the processor has it. Without a stage, rows beside an edge, where taps fall outside, go one by one with
their conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from cuvil_hw.adapters.cpu.block import Iters, RegisterBlock
from cuvil_hw.adapters.sequential.nest import Lowering
from cuvil_hw.adapters.sequential.stage import OperandStage
from cuvil_hw.expr.nodes import Iter, Load, Reduce
from cuvil_hw.expr.traverse import walk
from cuvil_hw.lower.emit import Env
from cuvil_hw.schedule.kernel import Buffer


@dataclass(frozen=True, slots=True)
class Registers:
    """A tile: `rows` neighbours of the iterator `row` ("": one row), each with `vectors` registers of `width` lanes.

    Attributes:
        inner: where such tiles may lie without a condition, see inner_range.
        band: the iterator of which `high` values share a stage ("": none).
        stage: the copy of what the rows read; `pairs`: its products are added up by pairs of 16 bits.
        wide: sums of narrow integers, in lanes of 32 bits.
    """

    row: str
    inner: tuple[int, int]
    rows: int
    vectors: int
    width: int
    band: str = ""
    high: int = 1
    stage: OperandStage | None = None
    pairs: bool = False
    wide: bool = False

    @property
    def lanes(self) -> int:
        return self.vectors * self.width


@dataclass(frozen=True, slots=True)
class InRegisters(Lowering):
    """One kernel with a tile of registers; `nest.vector` and `nest.lanes` are the lanes of a tile. `parts`: of the
    index of a lane, the number of its tile and its place in it."""

    tile_of: Registers
    parts: dict[SSAValue, tuple[SSAValue, SSAValue]] = field(default_factory=dict)

    def run(self) -> None:
        by_dim = dict(enumerate(self.kernel.iterators))
        order = [by_dim[d] for d in self.nest.layout(self.buffers[self.kernel.output])]
        lane, row, band = (self._iterator(n) for n in (self.nest.vector, self.tile_of.row, self.tile_of.band))
        outer = [i for i in order if i not in (lane, row, band)]
        self.loops(outer, {}, lambda iters: self._bands(band, iters))

    def _iterator(self, name: str) -> Iter | None:
        return next((i for i in self.kernel.iterators if i.name == name), None)

    @property
    def summed(self) -> Reduce:
        assert self.kernel.reduce is not None
        return self.kernel.reduce

    @property
    def lane(self) -> Iter:
        lane = self._iterator(self.nest.vector)
        assert lane is not None
        return lane

    def _bands(self, band: Iter | None, iters: Iters) -> None:
        if band is None:
            self._band(None, 1, iters)
            return
        high = min(self.tile_of.high, band.extent)
        full = band.extent // high * high

        def one(start: SSAValue, count: int) -> None:
            self._band(band, count, {**iters, band.name: start})

        if full == high:
            one(self.e.const(0, "index"), high)
        else:
            self.e.loop(full, f"{band.name}_band", lambda i, _: one(i, high), step=high)
        if band.extent > full:
            one(self.e.const(full, "index"), band.extent - full)

    def _band(self, band: Iter | None, count: int, iters: Iters) -> None:
        """`iters` holds the band's start."""
        staged = self._staged(band, count, iters) if self.tile_of.stage is not None else None

        def across(tile: SSAValue, lanes: int) -> None:
            first = self._scaled(tile, self.tile_of.lanes)
            self.parts[first] = tile, self.e.const(0, "index")

            def of_row(j: SSAValue, _: object) -> None:
                here = dict(iters)
                if band is not None:
                    here |= {band.name: self.plus(iters[band.name], j), f"{band.name}'": j}
                self._rows(tile, lanes, {**here, self.lane.name: first}, staged)

            if band is None:
                of_row(self.e.const(0, "index"), None)
            else:
                self.e.loop(count, band.name, of_row)

        whole, rest = divmod(self.lane.extent, self.tile_of.lanes)
        if whole:
            self.e.loop(whole, f"{self.lane.name}_tile", lambda t, _: across(t, self.tile_of.lanes))
        if rest:
            across(self.e.const(whole, "index"), rest)

    def _staged(self, band: Iter | None, count: int, iters: Iters) -> SSAValue:
        stage, e = self.tile_of.stage, self.e
        assert stage is not None
        sizes = stage.sizes({band.name: count} if band is not None else {})
        memory = e.alloca([sizes[d][1] for d in stage.order], stage.dtype, "stage")
        buffer, env = self.buffers[stage.load.buffer], self.env(iters)

        def value(at: Sequence[SSAValue]) -> SSAValue:
            where = [at[d] for d in self.nest.layout(buffer)]
            got = e.load(self.memories[stage.load.buffer], *self.place(buffer, where, env))
            if stage.dtype == stage.load.dtype:
                return got
            wide = e.convert(got, stage.load.dtype, stage.dtype)
            return e.put(arith.SubiOp(wide, e.const(stage.zero, stage.dtype))) if stage.zero else wide

        part = band if band is not None and count < band.extent else None
        stage.copy(e, env, sizes, part, value, lambda v, at: e.store(v, memory, *at))
        return memory

    def _rows(self, tile: SSAValue, lanes: int, iters: Iters, staged: SSAValue | None) -> None:
        """All rows of one position and some lanes of it. Lanes beyond the last whole vector are summed up, too, where
        all that is read for them is there."""
        width, row = self.tile_of.width, self._iterator(self.tile_of.row)
        done = lanes if self._filled else lanes // width * width
        if done:
            self._row_tiles(row, tile, done, iters, staged)
        left = lanes - done
        if left:
            at = {**iters, self.lane.name: self.at_lane(tile, iters, done)}
            one = lambda here: self.tile(self.summed, here, self.lane if left > 1 else None, left)  # noqa: E731
            self.loops([row] if row else [], at, one)

    def _row_tiles(self, row: Iter | None, tile: SSAValue, lanes: int, iters: Iters, staged: SSAValue | None) -> None:
        def block(at: Iters, rows: int, inside: bool) -> None:
            RegisterBlock(self, tile, lanes, row, rows, staged, inside).run(at)

        if row is None:
            block(iters, 1, False)
            return
        (low, high), rows = self.tile_of.inner, self.tile_of.rows
        full = low + (high - low) // rows * rows

        def edge(start: int, end: int) -> None:
            if end > start:
                one = lambda i, _: block({**iters, row.name: i}, 1, False)  # noqa: E731
                self.e.loop(end, row.name, one, start=start)

        edge(0, low)
        if full > low:
            many = lambda i, _: block({**iters, row.name: i}, rows, True)  # noqa: E731
            self.e.loop(full, f"{row.name}_tile", many, start=low, step=rows)
        if high > full:
            block({**iters, row.name: self.e.const(full, "index")}, high - full, True)
        edge(high, row.extent)

    @property
    def _filled(self) -> bool:
        """Whether all that a step reads by lanes lies in blocks that are filled up."""
        reads = [x for r in (*self.summed.update, *self.summed.init) for x in walk(r) if isinstance(x, Load)]
        return all(x.buffer in self.nest.packed for x in reads if any(self.lane in walk(i) for i in x.index))

    def place(self, buffer: Buffer, index: Sequence[SSAValue], env: Env) -> Sequence[SSAValue]:
        packed = self.nest.packed.get(buffer.name)
        if packed is not None and index[-1] in self.parts and packed.lanes == self.tile_of.lanes:
            return self.in_blocks(packed, *self.parts[index[-1]], index[:-1])
        return Lowering.place(self, buffer, index, env)

    def at_lane(self, tile: SSAValue, iters: Iters, offset: int | SSAValue) -> SSAValue:
        by = self.e.const(offset, "index") if isinstance(offset, int) else offset
        at = self.plus(iters[self.lane.name], by)
        self.parts[at] = tile, by
        return at

    def plus(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.e.put(arith.AddiOp(a, b))

    def _scaled(self, a: SSAValue, k: int) -> SSAValue:
        return self.e.put(arith.MuliOp(a, self.e.const(k, "index")))

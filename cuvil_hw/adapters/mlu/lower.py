"""A kernel as a BANG C entry function: a BLOCK task on every core works through its share of the tiles.

copy what all tiles share into NRAM
for (tile = own first; tile < own last; ++tile)
  copy the regions of the operands that this tile reads into NRAM
  for every output element of the tile: compute it, from NRAM to NRAM
  copy the tile to GDRAM
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from xdsl.dialects import arith, func, gpu
from xdsl.dialects.builtin import FunctionType
from xdsl.ir import Block, Region, SSAValue

from cuvil_hw.adapters.mlu.tile import Footprint, Span, Tile, strided
from cuvil_hw.adapters.sequential.nest import Lowering, Nest, box_bits, comment, memory_type
from cuvil_hw.expr.nodes import Const, Iter, Load, bounds
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Args, Role, annotate
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.schedule.kernel import Buffer, Kernel

MAX_SEGMENTS = 65536  # __memcpy counts them from 0 to 65535
Starts = tuple[SSAValue | None, ...]


def lower(kernel: Kernel, tile: Tile, buffers: Mapping[str, Buffer], tables: Tables, symbol: str) -> func.FuncOp:
    """The level2 function @symbol(inputs…, output) of a kernel."""
    names = [*kernel.inputs, kernel.output]
    block = Block(arg_types=[memory_type(buffers[n], tuple(range(buffers[n].type.rank))) for n in names])
    memories = dict(zip(names, block.args, strict=True))
    if kernel.type.size:
        _Tiled(kernel, Nest(), buffers, memories, Emitter(block, tables), tile).run()
    block.add_op(func.ReturnOp())
    op = func.FuncOp(symbol, FunctionType.from_lists([a.type for a in block.args], []), Region(block))
    annotate(op, Role("kernel"), Args(tuple(names)), comment(kernel))
    return op


@dataclass(frozen=True, slots=True)
class _Tiled(Lowering):
    """`staged`: where each load finds its region in NRAM, and where in the tensor that region starts."""

    cut: Tile
    staged: dict[Load, tuple[SSAValue, Starts]] = field(default_factory=dict)

    def run(self) -> None:
        e, cut = self.e, self.cut
        shape = [cut.size, *(i.extent for i in cut.inner)]
        dtype = self.kernel.type.dtype
        width = box_bits(dtype)
        result = e.alloca(shape, f"i{width}" if width else dtype, f"{self.kernel.output}_tile", space="nram")
        arrays = {b.load: self._array(b) for b in cut.staged}
        origin = self._origin({}, None)
        for box in cut.staged:
            if box.fixed:
                self._stage(box, arrays[box.load], origin)
        first, last = self._share()

        def one(tile: SSAValue, _: tuple[SSAValue, ...]) -> None:
            outer, base = self._position(tile)
            here = self._origin(outer, base)
            for box in cut.staged:
                if not box.fixed:
                    self._stage(box, arrays[box.load], here)
            count = self._count(base)
            self._compute(outer, base, count, result)
            self._leave(outer, base, count, result)

        e.loop(last, "tile", one, start=first)

    # -- which tiles -------------------------------------------------------------------------------------------------

    def _share(self) -> tuple[SSAValue, SSAValue]:
        """First tile of this task, and the one after its last."""
        e = self.e
        x = gpu.DimensionAttr(gpu.DimensionEnum.X)
        count, tasks = e.const(self.cut.count, "index"), e.put(gpu.GridDimOp(x), "tasks")
        up = e.put(arith.AddiOp(count, e.put(arith.SubiOp(tasks, e.const(1, "index")))))
        each = e.put(arith.DivUIOp(up, tasks), "tiles_each")
        first = e.put(arith.MuliOp(e.put(gpu.BlockIdOp(x)), each), "first")
        return first, e.put(arith.MinSIOp(e.put(arith.AddiOp(first, each)), count), "last")

    def _position(self, tile: SSAValue) -> tuple[dict[str, SSAValue], SSAValue | None]:
        """Values of the outer iterators in a tile, and the first value of the split one."""
        e, cut = self.e, self.cut
        if cut.cut is None:
            return {i.name: e.const(0, "index") for i in cut.outer}, None
        base: SSAValue = e.const(0, "index")
        rest = tile
        if cut.steps > 1:
            steps, alone = e.const(cut.steps, "index"), cut.count == cut.steps
            number = tile if alone else e.put(arith.RemUIOp(tile, steps))
            rest = tile if alone else e.put(arith.DivUIOp(tile, steps))
            name = f"{cut.cut.name}_base"
            base = number if cut.size == 1 else e.put(arith.MuliOp(number, e.const(cut.size, "index")), name)
        outer: dict[str, SSAValue] = {i.name: e.const(0, "index") for i in cut.outer}
        several = [i for i in cut.outer if i.extent > 1]
        for n, it in enumerate(reversed(several)):
            extent = e.const(it.extent, "index")
            outer[it.name] = rest if n == len(several) - 1 else e.put(arith.RemUIOp(rest, extent), it.name)
            rest = rest if n == len(several) - 1 else e.put(arith.DivUIOp(rest, extent))
        return outer, base

    def _origin(self, outer: Mapping[str, SSAValue], base: SSAValue | None) -> Env:
        """Every iterator at its first value in the tile."""
        zero = self.e.const(0, "index")
        every = [*self.kernel.iterators, *self.kernel.reduction_iters]
        iters = {i.name: zero for i in every} | dict(outer)
        if self.cut.cut is not None and base is not None:
            iters[self.cut.cut.name] = base
        return Env(iters=iters)

    def _count(self, base: SSAValue | None) -> SSAValue:
        """How many values the split iterator takes in a tile: the last tile may be smaller."""
        e, cut = self.e, self.cut
        size = e.const(cut.size, "index")
        if cut.cut is None or base is None or cut.cut.extent % cut.size == 0:
            return size
        left = e.put(arith.SubiOp(e.const(cut.cut.extent, "index"), base))
        return e.put(arith.MinSIOp(left, size), f"{cut.cut.name}_count")

    # -- in ----------------------------------------------------------------------------------------------------------

    def _array(self, box: Footprint) -> SSAValue:
        buffer = self.buffers[box.load.buffer]
        width = box_bits(buffer.type.dtype)
        extents = list(box.extents) or [1]
        return self.e.alloca(
            extents, f"i{width}" if width else buffer.type.dtype, f"{box.load.buffer}_tile", space="nram"
        )

    def _stage(self, box: Footprint, array: SSAValue, origin: Env) -> None:
        """Copy a region into NRAM. It is moved, not cut, where it would leave the tensor."""
        e = self.e
        starts = tuple(self._start(s, whole, origin) for s, whole in zip(box.spans, box.shape, strict=True))
        self.staged[box.load] = array, starts
        if not box.elements:
            return
        offset: SSAValue = e.const(0, "index")
        for n, start in enumerate(starts):
            if start is not None:
                far = e.const(prod(box.shape[n + 1 :]), "index")
                offset = e.put(arith.AddiOp(offset, e.put(arith.MuliOp(start, far))))
        loops = strided(box.extents, box.shape)
        run = loops.pop()[0] if loops and loops[-1][1] == 1 else 1
        segments = loops.pop() if loops and loops[-1][0] <= MAX_SEGMENTS else (1, 0, 0)
        source = self.memories[box.load.buffer]

        def level(n: int, far: SSAValue, near: SSAValue) -> None:
            if n == len(loops):
                count = e.const(run, "index")
                e.do(level2.CopyOp((source, far), (array, near), count, *segments))
                return
            many, *strides = loops[n]

            def step(i: SSAValue, _: tuple[SSAValue, ...]) -> None:
                moved = [e.put(arith.AddiOp(at, e.put(arith.MuliOp(i, e.const(by, "index")))))
                         for at, by in zip((far, near), strides, strict=True)]  # fmt: skip
                level(n + 1, *moved)

            e.loop(many, "n", step)

        level(0, offset, e.const(0, "index"))

    def _start(self, span: Span, whole: int, origin: Env) -> SSAValue | None:
        """First position of a region along a dimension; None for 0."""
        e, room = self.e, whole - span.extent
        if span.start is None or room <= 0:
            return None
        if isinstance(span.start, Const):
            fixed = min(max(int(span.start.value), 0), room)
            return e.const(fixed, "index") if fixed else None
        low, high = bounds(span.start)
        start = e.value(span.start, origin)
        if low < 0:
            start = e.put(arith.MaxSIOp(start, e.const(0, "index")))
        if high > room:
            start = e.put(arith.MinSIOp(start, e.const(room, "index")))
        return start

    # -- compute -----------------------------------------------------------------------------------------------------

    def _compute(self, outer: Mapping[str, SSAValue], base: SSAValue | None, count: SSAValue, result: SSAValue) -> None:
        e, cut = self.e, self.cut
        inner = replace(self, memories={**self.memories, self.kernel.output: result})

        def element(iters: Mapping[str, SSAValue]) -> None:
            reduce = self.kernel.reduce
            if reduce is None:
                inner.store(inner.env(iters))
            else:
                inner.tile(reduce, iters, None, 0)

        if cut.cut is None or base is None:
            self.loops(cut.inner, outer, lambda iters: element({**iters, LOCAL: e.const(0, "index")}))
            return
        name = cut.cut.name

        def along(i: SSAValue, _: tuple[SSAValue, ...]) -> None:
            at = {**outer, name: e.put(arith.AddiOp(base, i)), LOCAL: i}
            self.loops(cut.inner, at, element)

        if cut.size == 1:
            self.loops(cut.inner, {**outer, name: base, LOCAL: e.const(0, "index")}, element)
            return
        whole = cut.cut.extent % cut.size == 0
        e.loop(cut.size if whole else count, name, along)

    def load(self, node: Load, e: Emitter, env: Env) -> SSAValue:
        if node not in self.staged:
            return super(_Tiled, self).load(node, e, env)
        array, starts = self.staged[node]
        where = [_less(e, e.value(i, env), start) for i, start in zip(node.index, starts, strict=True)]
        value = e.load(array, *(where or [e.const(0, "index")]))
        narrow = level2.signless(node.dtype)
        return e.put(arith.TruncIOp(value, narrow)) if box_bits(node.dtype) else value

    def place(self, buffer: Buffer, index: Sequence[SSAValue], env: Env) -> Sequence[SSAValue]:
        if buffer.name != self.kernel.output:
            return index
        return [env.iters[LOCAL], *index[self.cut.split + 1 :]]

    # -- out ---------------------------------------------------------------------------------------------------------

    def _leave(self, outer: Mapping[str, SSAValue], base: SSAValue | None, count: SSAValue, result: SSAValue) -> None:
        e, cut = self.e, self.cut
        each = e.const(prod(i.extent for i in cut.inner), "index")
        offset: SSAValue = e.const(0, "index")
        first: list[tuple[Iter, SSAValue]] = [(i, outer[i.name]) for i in cut.outer]
        if cut.cut is not None and base is not None:
            first.append((cut.cut, base))
        for it, at in first:
            offset = e.put(arith.AddiOp(e.put(arith.MuliOp(offset, e.const(it.extent, "index"))), at))
        offset = e.put(arith.MuliOp(offset, each))
        elements = e.put(arith.MuliOp(count, each))
        e.do(level2.CopyOp((result, e.const(0, "index")), (self.memories[self.kernel.output], offset), elements))


# The position of an element within its tile, among the iterators.
LOCAL = "position in the tile"


def _less(e: Emitter, index: SSAValue, start: SSAValue | None) -> SSAValue:
    if start is None:
        return index
    return e.const(0, "index") if start == index else e.put(arith.SubiOp(index, start))

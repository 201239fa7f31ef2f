"""Sums of products by tiles: a block brings pieces of both factors into shared memory and every thread accumulates a
small rectangle in registers. Dense layers, convolutions (whose windows are gathered while staging) and matrix products.

    for each tile of rows × columns of the output
      acc[rows per thread][columns per thread] = 0
      for each k tile
        all threads: rows_tile[row][k] = left, columns_tile[column][k] = right; outside and under padding: nothing
        barrier; acc += products; barrier
      output = rest of the body (bias, rescale, activation) of init + acc

With `dot4` the tiles hold bytes and four steps of k are one 8-bit dot product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects import arith, func, gpu
from xdsl.ir import SSAValue

from cuvil_hw.adapters.cuda.threads import SAMPLE, Elements, begin, digits, dot, finish
from cuvil_hw.adapters.sequential.nest import Nest
from cuvil_hw.adapters.sequential.product import Factor, MatrixProduct, Side, along_k
from cuvil_hw.expr.nodes import Apply, Expr, State
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Env, Tables
from cuvil_hw.schedule.kernel import Buffer, Kernel


@dataclass(frozen=True, slots=True)
class Sizes:
    """A tile: `rows` × `columns` outputs of a block, `k` steps at a time, `row_each` × `column_each` of each thread."""

    rows: int
    columns: int
    k: int
    row_each: int
    column_each: int
    dot4: bool

    @property
    def threads(self) -> int:
        return self.rows // self.row_each * (self.columns // self.column_each)

    @property
    def pitch(self) -> int:
        """Elements from one row in shared memory to the next: one bank more, so that rows don't meet in one bank."""
        return self.k + (4 if self.dot4 else 1)


def lower_tile(
    kernel: Kernel,
    shape: MatrixProduct,
    sizes: Sizes,
    buffers: Mapping[str, Buffer],
    tables: Tables,
    symbol: str,
    layer: int,
) -> func.FuncOp:
    """The level2 function of a kernel that computes tiles of a sum of products."""
    block, memories, emitter = begin(kernel, buffers, tables, layer)
    ByTiles(kernel, Nest(), buffers, memories, emitter, sizes.threads, block.args[-1], shape, sizes).run()
    return finish(kernel, block, symbol, sizes.threads)


@dataclass(frozen=True, slots=True)
class ByTiles(Elements):
    shape: MatrixProduct
    sizes: Sizes

    def run(self) -> None:
        e, s = self.e, self.sizes
        rows, columns = self._extent(self.shape.rows), self._extent(self.shape.columns)
        down = self._count(self.shape.rows, rows, s.rows)
        across = self._count(self.shape.columns, columns, s.columns)
        batch = e.const(prod(i.extent for i in self.shape.batch), "index")
        if self.shape.sampled:
            batch = self._mul(batch, self.samples)
        blocks = self._mul(self._mul(down, across), batch)
        staged = [e.alloca([n, s.pitch], self._staged(side.factor), name, space="shared")
                  for n, side, name in ((s.rows, self.shape.rows, "rows_tile"),
                                        (s.columns, self.shape.columns, "columns_tile"))]  # fmt: skip
        thread = self.dim(gpu.ThreadIdOp)

        def each(tile: SSAValue, _: tuple[SSAValue, ...]) -> None:
            rest = self._div(tile, across)
            column = self._mul(self._rem(tile, across), e.const(s.columns, "index"))
            row = self._mul(self._rem(rest, down), e.const(s.rows, "index"))
            fixed = digits(e, self._div(rest, down), self.shape.batch, SAMPLE if self.shape.sampled else "")
            self._tile(thread, staged, (row, rows), (column, columns), fixed)

        e.loop(blocks, "tile", each, start=self.dim(gpu.BlockIdOp), step=self.dim(gpu.GridDimOp))

    # -- one tile ----------------------------------------------------------------------------------------------------

    def _tile(
        self,
        thread: SSAValue,
        staged: Sequence[SSAValue],
        row: tuple[SSAValue, SSAValue],
        column: tuple[SSAValue, SSAValue],
        fixed: Mapping[str, SSAValue],
    ) -> None:
        """`row`, `column`: first one of the tile, and how many there are in all."""
        e, s = self.e, self.sizes
        result = self.shape.product.reduce.init[0].dtype
        dtype = "i32" if s.dot4 else result
        wide = s.columns // s.column_each
        x, y = self._rem(thread, e.const(wide, "index")), self._div(thread, e.const(wide, "index"))
        acc = e.alloca([s.row_each, s.column_each], dtype, "acc")
        self._each(lambda r, c: e.store(e.const(0, dtype), acc, r, c))

        def chunk(k0: SSAValue, _: tuple[SSAValue, ...]) -> None:
            for memory, side, (first, extent), n in ((staged[0], self.shape.rows, row, s.rows),
                                                     (staged[1], self.shape.columns, column, s.columns)):  # fmt: skip
                self._stage(thread, memory, side, first, extent, n, k0, fixed)
            self._barrier()
            self._multiply(staged, acc, y, x)
            self._barrier()

        e.loop(-(-self.shape.steps // s.k) * s.k, "k0", chunk, step=s.k)

        def write(r: SSAValue, c: SSAValue) -> None:
            at_row = self._add(row[0], self._add(y, self._mul(r, e.const(s.rows // s.row_each, "index"))))
            at_column = self._add(column[0], self._add(x, self._mul(c, e.const(wide, "index"))))
            inside = [self._within(at_row, row[1], self.shape.rows, s.rows),
                      self._within(at_column, column[1], self.shape.columns, s.columns)]  # fmt: skip
            total = e.convert(e.load(acc, r, c), dtype, result)
            self._where(inside, lambda: self._finish(at_row, at_column, fixed, total))

        self._each(write)

    def _finish(self, row: SSAValue, column: SSAValue, fixed: Mapping[str, SSAValue], total: SSAValue) -> None:
        iters = {**fixed, **self._digits(self.shape.rows, row), **self._digits(self.shape.columns, column)}
        iters = {**{i.name: self.e.const(0, "index") for i in self.kernel.iterators}, **iters}
        env = self.env(iters)
        init = self.shape.product.reduce.init[0]
        sum_of = Apply(init.dtype, "add", (State(init.dtype, 0), State(init.dtype, 1)))
        start = self.e.value(init, env)
        self.store(env, self.e.value(sum_of, replace(env, states=(start, total))))

    def _stage(
        self,
        thread: SSAValue,
        memory: SSAValue,
        side: Side,
        first: SSAValue,
        extent: SSAValue,
        n: int,
        k0: SSAValue,
        fixed: Mapping[str, SSAValue],
    ) -> None:
        e, s = self.e, self.sizes
        along_k = self._along_k(side)

        def element(c: SSAValue, _: tuple[SSAValue, ...]) -> None:
            number = self._add(thread, self._mul(c, e.const(s.threads, "index")))
            fast = e.const(s.k if along_k else n, "index")
            high, low = self._div(number, fast), self._rem(number, fast)
            at, k = (high, low) if along_k else (low, high)
            e.store(self._staged_value(side, self._add(first, at), extent, n, self._add(k0, k), fixed), memory, at, k)

        e.loop(n * s.k // s.threads, "c", element, unroll=True)

    def _staged_value(
        self, side: Side, at: SSAValue, extent: SSAValue, n: int, k: SSAValue, fixed: Mapping[str, SSAValue]
    ) -> SSAValue:
        """The factor at a row (or column) and step; what adds nothing where there is none."""
        e, product, dtype = self.e, self.shape.product, self._staged(side.factor)
        ends = [self._within(at, extent, side, n)]
        if self.shape.steps % self.sizes.k:
            ends.append(e.compare("lt", k, e.const(self.shape.steps, "index")))
        neutral = side.factor.bytes.byte_zero if self.sizes.dot4 and side.factor.bytes else 0

        def load() -> Sequence[SSAValue]:
            iters = {**fixed, **self._digits(side, at), **digits(e, k, product.reduce.iters)}
            iters = {**{i.name: e.const(0, "index") for i in self.kernel.iterators}, **iters}
            env = self.env(iters)
            guards = product.guards if side.factor is product.left else ()
            return [self._if(guards, env, lambda: self._value(side.factor, env), e.const(neutral, dtype))]

        conds = [c for c in ends if c is not None]
        if not conds:
            return load()[0]
        return e.branch(self._all(conds), load, lambda: [e.const(neutral, dtype)])[0]

    def _if(self, guards: Sequence[Expr], env: Env, then: Callable[[], SSAValue], other: SSAValue) -> SSAValue:
        if not guards:
            return then()
        cond = self._all([self.e.value(g, env) for g in guards])
        return self.e.branch(cond, lambda: [then()], lambda: [other])[0]

    def _value(self, factor: Factor, env: Env) -> SSAValue:
        if not self.sizes.dot4:
            return self.e.value(factor.value, env)
        assert factor.bytes is not None
        load = factor.bytes.load
        byte = self.e.convert(self.load(load, self.e, env), load.dtype, "i8" if load.dtype[0] == "i" else "u8")
        return self.e.put(arith.XOrIOp(byte, self.e.const(-128, "i8"))) if factor.bytes.offset else byte

    def _multiply(self, staged: Sequence[SSAValue], acc: SSAValue, y: SSAValue, x: SSAValue) -> None:
        """acc += rows_tile · columns_tile over the staged steps."""
        e, s, product = self.e, self.sizes, self.shape.product
        dtype = product.reduce.init[0].dtype
        kind = "i32" if s.dot4 else dtype
        stride = [e.const(s.rows // s.row_each, "index"), e.const(s.columns // s.column_each, "index")]

        def step(k: SSAValue, _: tuple[SSAValue, ...]) -> None:
            row = e.alloca([s.row_each], kind, "row")
            column = e.alloca([s.column_each], kind, "column")
            for values, memory, n, first, by in ((row, staged[0], s.row_each, y, stride[0]),
                                                 (column, staged[1], s.column_each, x, stride[1])):  # fmt: skip

                def fetch(
                    i: SSAValue, _: object, values: SSAValue = values, memory: SSAValue = memory,
                    first: SSAValue = first, by: SSAValue = by,
                ) -> None:  # fmt: skip
                    at = self._add(first, self._mul(i, by))
                    read = e.put(level2.LoadWordOp(memory, [at, k])) if s.dot4 else e.load(memory, at, k)
                    e.store(read, values, i)

                e.loop(n, "i", fetch, unroll=True)

            def add(r: SSAValue, c: SSAValue) -> None:
                e.store(self._sum(e.load(row, r), e.load(column, c), e.load(acc, r, c)), acc, r, c)

            self._each(add)

        e.loop(s.k, "k", step, step=4 if s.dot4 else 1)

    def _sum(self, row: SSAValue, column: SSAValue, acc: SSAValue) -> SSAValue:
        product = self.shape.product
        left, right = (row, column) if self.shape.rows.factor is product.left else (column, row)
        dtype = product.reduce.init[0].dtype
        if self.sizes.dot4:
            return dot(self.e, product, left, right, acc)
        a, b, total = (State(dtype, n) for n in range(3))
        made = Apply(dtype, "add", (total, Apply(dtype, "mul", (a, b))))
        return self.e.value(made, Env(states=(left, right, acc)))

    # -- pieces ------------------------------------------------------------------------------------------------------

    def _each(self, body: Callable[[SSAValue, SSAValue], None]) -> None:
        """For every output of a thread."""
        e, s = self.e, self.sizes
        e.loop(s.row_each, "r", lambda r, _: self._columns(r, body), unroll=True)

    def _columns(self, r: SSAValue, body: Callable[[SSAValue, SSAValue], None]) -> None:
        self.e.loop(self.sizes.column_each, "c", lambda c, _: body(r, c), unroll=True)

    def _staged(self, factor: Factor) -> str:
        return "i8" if self.sizes.dot4 else factor.value.dtype

    def _barrier(self) -> None:
        self.e.do(gpu.BarrierOp())  # type: ignore[no-untyped-call]

    def _along_k(self, side: Side) -> bool:
        """Do neighbouring steps read neighbouring elements, rather than neighbouring rows?"""
        return along_k(side, self.shape.product)

    def _extent(self, side: Side) -> SSAValue:
        extent = self.e.const(side.extent, "index")
        return self._mul(extent, self.samples) if side.sampled else extent

    def _count(self, side: Side, extent: SSAValue, size: int) -> SSAValue:
        if not side.sampled:
            return self.e.const(-(-side.extent // size), "index")
        return self._div(self._add(extent, self.e.const(size - 1, "index")), self.e.const(size, "index"))

    def _digits(self, side: Side, flat: SSAValue) -> dict[str, SSAValue]:
        return digits(self.e, flat, side.iters, SAMPLE if side.sampled else "")

    def _within(self, at: SSAValue, extent: SSAValue, side: Side, size: int) -> SSAValue | None:
        """Is a row (or column) of the tile one of the output? None: always."""
        return None if side.extent % size == 0 else self.e.compare("lt", at, extent)

    def _where(self, conditions: Sequence[SSAValue | None], body: Callable[[], None]) -> None:
        real = [c for c in conditions if c is not None]
        if real:
            self.e.branch(self._all(real), body)
        else:
            body()

    def _all(self, conditions: Sequence[SSAValue]) -> SSAValue:
        result = conditions[0]
        for c in conditions[1:]:
            result = self.e.put(arith.AndIOp(result, c))
        return result

    def _add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.e.put(arith.AddiOp(a, b))

    def _mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.e.put(arith.MuliOp(a, b))

    def _div(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.e.put(arith.DivUIOp(a, b))

    def _rem(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.e.put(arith.RemUIOp(a, b))

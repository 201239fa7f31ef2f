"""Sums of products in vector registers: a tile of rows × lanes of the output is summed up at once.

    for each tile of lanes
      for every other output position
        rows beside an edge, where taps fall outside: one after another (sequential/nest.py)
        for each tile of rows in between, where none does
          acc[rows][lanes] = init
          for the reduction iterators: acc[row][lanes] += value of the row · values of the lanes
          for the rows, lanes: output = rest of the body

A step loads each vector of lanes once for all rows. No sum is reordered: results have the bits of the plain loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil

from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import VectorType
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.adapters.cpu.layout import alone
from cuvil_hw.adapters.sequential.nest import Lowering, box_bits, hoisted
from cuvil_hw.adapters.sequential.product import matrix_product, product_of
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Reduce, State, affine
from cuvil_hw.expr.traverse import walk
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Env
from cuvil_hw.schedule.kernel import Kernel

_RING = {
    ("add", True): arith.AddfOp, ("sub", True): arith.SubfOp, ("mul", True): arith.MulfOp,
    ("add", False): arith.AddiOp, ("sub", False): arith.SubiOp, ("mul", False): arith.MuliOp,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Registers:
    """A tile: `rows` neighbours of the iterator `row` ("": one row), each with `vectors` registers of `width` lanes.
    `inner`: where such tiles may lie, see inner_range."""

    row: str
    inner: tuple[int, int]
    rows: int
    vectors: int
    width: int

    @property
    def lanes(self) -> int:
        return self.vectors * self.width


def rows_of(kernel: Kernel, lane: Iter) -> tuple[Iter, tuple[int, int]] | None:
    """The iterator whose neighbours use the same values of the lanes, and its inner_range; None: there is none, a tile
    has one row."""
    product = product_of(kernel)
    shape = matrix_product(kernel, product) if product is not None else None
    if shape is None:
        return None
    sides = (shape.rows, shape.columns)
    if not any(lane in side.iters for side in sides):
        return None
    other = next(side for side in sides if lane not in side.iters)
    found = ((i, inner_range(kernel, i)) for i in reversed(other.iters))
    return next(((i, inner) for i, inner in found if inner is not None), None)


def inner_range(kernel: Kernel, row: Iter) -> tuple[int, int] | None:
    """The values of `row`, first and one after the last, for which no condition on it is false at any step of the
    reduction; None when that isn't known or there are none."""
    assert kernel.reduce is not None
    guards, _ = hoisted(kernel.reduce, None)
    low, high = 0, row.extent
    for guard in guards:
        if row not in walk(guard):
            continue
        bound = _bound(guard, row)
        if bound is None:
            return None
        low, high = max(low, bound[0]), min(high, bound[1])
    return (low, high) if low < high else None


def _bound(guard: Expr, row: Iter) -> tuple[int, int] | None:
    """Where `index ≥ c` or `index < c` holds for all steps, as a range of `row`."""
    if not (isinstance(guard, Apply) and guard.op in ("ge", "lt") and isinstance(guard.args[1], Const)):
        return None
    limit = int(guard.args[1].value)
    terms, constant = affine(guard.args[0])
    factor = terms.pop(row, 0)
    if factor < 1 or not all(isinstance(i, Iter) and i.kind == "reduction" for i in terms):
        return None
    spans = [k * (i.extent - 1) for i, k in terms.items() if isinstance(i, Iter)]
    if guard.op == "ge":
        return max(0, ceil((limit - constant - sum(min(s, 0) for s in spans)) / factor)), row.extent
    return 0, (limit - 1 - constant - sum(max(s, 0) for s in spans)) // factor + 1


def fits(kernel: Kernel, lane: Iter, last: Callable[[Load], int | None]) -> bool:
    """Whether a step is arithmetic on vectors of `lane`: sums, differences, products and widenings of loads whose
    lanes are neighbours. `last`: the innermost dimension of a load's buffer in memory."""
    reduce = kernel.reduce
    if reduce is None or reduce.kind != "sum" or len(reduce.update) != 1:
        return False
    _, (update,) = hoisted(reduce, lane)
    if not (isinstance(update, Apply) and update.op == "add" and isinstance(update.args[0], State)):
        return False
    return _in_lanes(update.args[1], lane, last) and _in_lanes(reduce.init[0], lane, last)


def _in_lanes(e: Expr, lane: Iter, last: Callable[[Load], int | None]) -> bool:
    if lane not in walk(e):
        return _whole(e.dtype)
    match e:
        case Load():
            dim = alone(e, lane)
            return _whole(e.dtype) and dim is not None and dim == last(e)
        case Apply(op="cast", args=(a,)):
            return _widens(a.dtype, e.dtype) and _in_lanes(a, lane, last)
        case Apply(op="add" | "sub" | "mul", args=args):
            return _whole(e.dtype) and all(_in_lanes(a, lane, last) for a in args)
    return False


def _whole(dtype: str) -> bool:
    """Whether vectors of it are those of a machine: types that fill their container, and no narrow floats."""
    if dtypes.is_float(dtype):
        return dtype in ("f32", "f64")
    width = dtypes.int_width(dtype)
    return dtype != "bool" and width is not None and width[1] in (8, 16, 32, 64) and not box_bits(dtype)


def _widens(source: str, dtype: str) -> bool:
    bits = [dtypes.record(d).bits for d in (source, dtype)]
    return _whole(source) and _whole(dtype) and bits[0] <= bits[1] and not dtypes.is_float(source)


@dataclass(frozen=True, slots=True)
class InRegisters(Lowering):
    """One kernel with a tile of registers; `nest.vector` and `nest.lanes` are the lanes of a tile."""

    tile_of: Registers

    def run(self) -> None:
        reduce, lane = self.kernel.reduce, self._vector()
        assert reduce is not None
        assert lane is not None
        by_dim = dict(enumerate(self.kernel.iterators))
        order = [by_dim[d] for d in self.nest.layout(self.buffers[self.kernel.output])]
        row = next((i for i in order if i.name == self.tile_of.row), None)
        outer = [i for i in order if i not in (lane, row)]
        width = self.tile_of.width

        def across(first: SSAValue, lanes: int) -> None:
            """All outputs of some lanes."""
            self.loops(outer, {lane.name: first}, lambda iters: self._rows(reduce, lane, row, lanes, iters))

        whole, rest = divmod(lane.extent, self.tile_of.lanes)
        if whole == 1:
            across(self.e.const(0, "index"), self.tile_of.lanes)
        elif whole:
            end = whole * self.tile_of.lanes
            self.e.loop(end, f"{lane.name}_tile", lambda i, _: across(i, self.tile_of.lanes), step=self.tile_of.lanes)
        done = whole * self.tile_of.lanes
        for lanes in (rest // width * width, rest % width):
            if lanes:
                across(self.e.const(done, "index"), lanes)
                done += lanes

    def _rows(self, reduce: Reduce, lane: Iter, row: Iter | None, lanes: int, iters: Mapping[str, SSAValue]) -> None:
        if lanes < self.tile_of.width:
            vector_iter = lane if lanes > 1 else None
            self.loops([row] if row else [], iters, lambda at: self.tile(reduce, at, vector_iter, lanes))
            return
        if row is None:
            self._block(reduce, lane, None, 1, lanes, iters)
            return
        (low, high), rows = self.tile_of.inner, self.tile_of.rows
        full = low + (high - low) // rows * rows

        def edge(start: int, end: int) -> None:
            if end > start:
                one = lambda i, _: self.tile(reduce, {**iters, row.name: i}, lane, lanes)  # noqa: E731
                self.e.loop(end, row.name, one, start=start)

        edge(0, low)
        if full > low:
            name = f"{row.name}_tile"
            tile = lambda i, _: self._block(reduce, lane, row, rows, lanes, {**iters, row.name: i})  # noqa: E731
            self.e.loop(full, name, tile, start=low, step=rows)
        if high > full:
            at = {**iters, row.name: self.e.const(full, "index")}
            self._block(reduce, lane, row, high - full, lanes, at)
        edge(high, row.extent)

    def _block(
        self, reduce: Reduce, lane: Iter, row: Iter | None, rows: int, lanes: int, iters: Mapping[str, SSAValue]
    ) -> None:
        """rows × lanes outputs from `iters` on, none of whose taps depends on a condition on the row."""
        e, width, vectors = self.e, self.tile_of.width, lanes // self.tile_of.width
        dtype = reduce.init[0].dtype
        acc = e.alloca([rows, vectors], dtype, "acc", lanes=width)

        def each(body: Callable[[Env, SSAValue, SSAValue], None], at: Mapping[str, SSAValue]) -> None:
            """`body` for every register: with its first lane, its row's number and its own."""

            def of_row(r: SSAValue, _: object) -> None:
                here = {**at, row.name: self._sum(at[row.name], r)} if row is not None else dict(at)

                def register(v: SSAValue, _: object) -> None:
                    first = self._sum(at[lane.name], self._product(v, width))
                    body(self.env({**here, lane.name: first}), r, v)

                e.loop(vectors, "v", register, unroll=True)

            e.loop(rows, "r", of_row, unroll=True)

        each(lambda env, r, v: e.store(self._lanes(reduce.init[0], lane, env), acc, r, v), iters)
        guards, (update,) = hoisted(reduce, lane)
        guards = [g for g in guards if row is None or row not in walk(g)]

        def step(env: Env, r: SSAValue, v: SSAValue) -> None:
            env = replace(env, states=(e.load(acc, r, v),))
            e.store(self._lanes(update, lane, env), acc, r, v)

        self.steps(reduce, guards, iters, lambda at: each(step, at))
        sums = e.alloca([lanes], dtype, "sums")

        def finish(r: SSAValue, _: object) -> None:
            def leave(v: SSAValue, _: object) -> None:
                e.do(vector.StoreOp(e.load(acc, r, v), sums, [self._product(v, width)]))

            e.loop(vectors, "v", leave, unroll=True)
            here = {**iters, row.name: self._sum(iters[row.name], r)} if row is not None else dict(iters)

            def one(j: SSAValue, _: object) -> None:
                self.store(self.env({**here, lane.name: self._sum(iters[lane.name], j)}), e.load(sums, j))

            e.loop(lanes, lane.name, one)

        e.loop(rows, "r", finish, unroll=True)

    def _lanes(self, x: Expr, lane: Iter, env: Env) -> SSAValue:
        """The values of `x` for a vector of lanes, from `env`'s on."""
        kind = VectorType(level2.signless(x.dtype), [self.tile_of.width])
        if isinstance(x, State):
            return env.states[x.k]
        if lane not in walk(x) and not any(isinstance(n, State) for n in walk(x)):
            return self.e.put(vector.BroadcastOp(self.e.value(x, env), kind))
        match x:
            case Load():
                buffer = self.buffers[x.buffer]
                where = [self.e.value(x.index[d], env) for d in self.nest.layout(buffer)]
                memory = self.memories[x.buffer]
                return self.e.put(vector.LoadOp(memory, list(self.place(buffer, where, env)), kind))
            case Apply(op="cast", args=(a,)):
                narrow = self._lanes(a, lane, env)
                return self.e.put(level2.WidenOp(narrow, a.dtype, kind)) if narrow.type != kind else narrow
            case Apply(op=op, args=args):
                left, right = (self._lanes(a, lane, env) for a in args)
                return self.e.put(_RING[op, dtypes.is_float(x.dtype)](left, right))
        raise AssertionError(f"{type(x).__name__} passed `fits`")

    def _sum(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.e.put(arith.AddiOp(a, b))

    def _product(self, a: SSAValue, k: int) -> SSAValue:
        return self.e.put(arith.MuliOp(a, self.e.const(k, "index")))

"""One block of rows × lanes of a reduction in vector registers (tile.py): its steps, and the rest of the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import VectorType
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.adapters.cpu.reach import alone, in_body, whole_step
from cuvil_hw.adapters.cpu.requantize import Rescaled, rescaled
from cuvil_hw.adapters.sequential.nest import depth_of
from cuvil_hw.adapters.sequential.product import product_of
from cuvil_hw.expr.guarded import conjuncts
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Reduce, Select
from cuvil_hw.expr.traverse import walk
from cuvil_hw.ir import lanes, level2
from cuvil_hw.lower.emit import Env

if TYPE_CHECKING:
    from cuvil_hw.adapters.cpu.tile import InRegisters

_OPS = {
    ("add", True): arith.AddfOp, ("sub", True): arith.SubfOp, ("mul", True): arith.MulfOp,
    ("div", True): arith.DivfOp, ("max", True): arith.MaximumfOp, ("min", True): arith.MinimumfOp,
    ("add", False): arith.AddiOp, ("sub", False): arith.SubiOp, ("mul", False): arith.MuliOp,
}  # fmt: skip
Vectors = tuple[SSAValue, ...]
Iters = Mapping[str, SSAValue]


@dataclass(frozen=True, slots=True)
class RegisterBlock:
    """rows × lanes outputs. `inside`: none of their taps depends on a condition on the row."""

    of: InRegisters
    tile: SSAValue
    lanes: int
    row: Iter | None
    rows: int
    staged: SSAValue | None
    inside: bool

    @property
    def _vectors(self) -> int:
        return -(-self.lanes // self.of.tile_of.width)

    def run(self, iters: Iters) -> None:
        of, reduce = self.of, self.of.summed
        here = [self._moved(iters, r) for r in range(self.rows)]
        init = reduce.init[0] if not of.tile_of.wide else Const("i32", 0)
        places = [(at, v) for at in here for v in range(self._vectors)]
        sums = self._steps(here, tuple(self._value(init, self._env(at, v)) for at, v in places))
        if not of.tile_of.wide and self.lanes % of.tile_of.width == 0 and in_body(of, of.lane):
            for (at, v), total in zip(places, sums, strict=True):
                env = replace(self._env(at, v), reduce=lambda *_, total=total: total)
                self._write(self._value(of.kernel.body, env), env)
            return
        self._finish(iters, [(self._env(at, v), v, total) for (at, v), total in zip(places, sums, strict=True)])

    def _finish(self, iters: Iters, sums: Sequence[tuple[Env, int, SSAValue]]) -> None:
        """The rest of the body lane by lane, from memory; of a requantization only what follows it."""
        of, e = self.of, self.of.e
        scale = self._scale() if of.tile_of.wide else None
        memory = e.alloca([self.rows, self._vectors * of.tile_of.width], self._dtype, "sums")
        for n, (env, v, total) in enumerate(sums):
            value = self._scaled(scale, total, env) if scale is not None else total
            where = (n // self._vectors, v * of.tile_of.width)
            e.do(vector.StoreOp(value, memory, [e.const(i, "index") for i in where]))

        def of_row(r: SSAValue, _: object) -> None:
            at = {**iters, self.row.name: of.plus(iters[self.row.name], r)} if self.row is not None else iters

            def one(j: SSAValue, _: object) -> None:
                env = of.env({**at, of.lane.name: of.at_lane(self.tile, at, j)})
                got = e.load(memory, r, j)
                if scale is not None:
                    of.store(env, known={id(scale.node): e.convert(got, "i32", scale.node.dtype)})
                else:
                    of.store(env, self._total(got, env))

            e.loop(self.lanes, of.lane.name, one)

        e.loop(self.rows, "r", of_row)

    def _scale(self) -> Rescaled | None:
        """The requantization that can be computed in vectors: what it adds to the sums is there for all of them."""
        of, init = self.of, self.of.summed.init[0]
        there = isinstance(init, Const)
        if isinstance(init, Load):
            last = of.nest.layout(of.buffers[init.buffer])[-1]
            whole = self.lanes % of.tile_of.width == 0 and alone(init, of.lane) == last
            there = whole or init.buffer in of.nest.packed
        return rescaled(self.of.kernel.body, self.of.lane) if there else None

    def _scaled(self, scale: Rescaled, total: SSAValue, env: Env) -> SSAValue:
        of, e = self.of, self.of.e
        init, kind = of.summed.init[0], VectorType(level2.signless("i32"), [of.tile_of.width])
        if not (isinstance(init, Const) and init.value == 0):
            total = e.put(arith.AddiOp(total, self._value(init, env)))
        if len(scale.multipliers) == 1:
            by = e.put(vector.BroadcastOp(e.const(scale.multipliers[0], "i32"), kind))
        else:
            spare = -len(scale.multipliers) % of.tile_of.lanes
            table = e.table(np.pad(scale.multipliers, (0, spare)).astype(np.int32), "i32", f"table{len(e.tables.ops)}")
            by = e.put(vector.LoadOp(table, [env.iters[of.lane.name]], kind))
        return e.put(lanes.RescaleOp(total, by, scale.offset, scale.shift, scale.zero, scale.limits, scale.even))

    @property
    def _dtype(self) -> str:
        return "i32" if self.of.tile_of.wide else self.of.summed.dtype

    def _total(self, found: SSAValue, env: Env) -> SSAValue:
        reduce, e = self.of.summed, self.of.e
        if not self.of.tile_of.wide:
            return found
        init = reduce.init[0]
        if not (isinstance(init, Const) and init.value == 0):
            found = e.put(arith.AddiOp(found, e.convert(e.value(init, env), init.dtype, "i32")))
        return e.convert(found, "i32", reduce.dtype)

    def _moved(self, iters: Iters, r: int) -> Iters:
        if self.row is None or not r:
            return iters
        return {**iters, self.row.name: self.of.plus(iters[self.row.name], self.of.e.const(r, "index"))}

    def _env(self, iters: Iters, v: int) -> Env:
        lane = self.of.lane.name
        return self.of.env({**iters, lane: self.of.at_lane(self.tile, iters, v * self.of.tile_of.width)})

    def _write(self, value: SSAValue, env: Env) -> None:
        of = self.of
        buffer = of.buffers[of.kernel.output]
        where = [env.iters[of.kernel.iterators[d].name] for d in of.nest.layout(buffer)]
        of.e.do(vector.StoreOp(value, of.memories[of.kernel.output], list(of.place(buffer, where, env))))

    # -- steps -----------------------------------------------------------------------------------------------------

    def _steps(self, here: Sequence[Iters], start: Vectors) -> Vectors:
        """The loops of the reduction, each condition as far outside as it is known, around one step for all
        registers."""
        of, e, reduce = self.of, self.of.e, self.of.summed
        guards, term = self._term()
        pairs = of.tile_of.pairs

        def descend(level: int, inner: Iters, sums: Vectors) -> Vectors:
            now = [g for g in guards if depth_of(g, reduce.iters) == level]
            if not now:
                return onward(level, inner, sums)
            env = of.env({**here[0], **inner})
            conds = [e.value(g, env) for g in now]
            for c in conds[1:]:
                conds[0] = e.put(arith.AndIOp(conds[0], c))
            return e.branch(conds[0], lambda: onward(level, inner, sums), lambda: sums)

        def onward(level: int, inner: Iters, sums: Vectors) -> Vectors:
            if level == len(reduce.iters):
                return self._step(term, [{**at, **inner} for at in here], sums)
            it = reduce.iters[level]
            step = 2 if pairs and level + 1 == len(reduce.iters) else 1
            extent = -(-it.extent // step) * step
            if extent == step:
                return descend(level + 1, {**inner, it.name: e.const(0, "index")}, sums)
            body = lambda i, carried: descend(level + 1, {**inner, it.name: i}, carried)  # noqa: E731
            return e.loop(extent, it.name, body, sums, step=step)

        return descend(0, {}, start)

    def _term(self) -> tuple[list[Expr], Expr]:
        """The conditions of a step that are left, and what it adds."""
        update = self.of.summed.update[0]
        assert isinstance(update, Apply)
        term, guards = update.args[1], []
        if isinstance(term, Select):
            guards, term = conjuncts(term.cond), term.then
        if self.staged is not None:
            return [], term
        row = {self.row} if self.inside else set()
        return [g for g in guards if row.isdisjoint(walk(g))], term

    def _step(self, term: Expr, here: Sequence[Iters], sums: Vectors) -> Vectors:
        of, e, reduce = self.of, self.of.e, self.of.summed
        known: dict[object, SSAValue] = {}

        def factor(x: Expr, r: int, v: int) -> SSAValue:
            """A vector, once for all rows or lanes that it is the same for."""
            nodes = set(walk(x))
            key = (x, r if self.row in nodes else 0, v if of.lane in nodes else 0)
            if key not in known:
                known[key] = self._value(x, self._env(here[r], v))
            return known[key]

        if of.tile_of.pairs:
            return self._pairs(here, sums)
        made = []
        for n, total in enumerate(sums):
            r, v = divmod(n, self._vectors)
            if reduce.kind != "sum":
                made.append(e.put(_OPS[reduce.kind, True](total, factor(term, r, v))))
            elif isinstance(term, Apply) and term.op == "mul":
                left, right = (factor(x, r, v) for x in term.args)
                if dtypes.is_float(reduce.dtype):
                    made.append(e.put(vector.FMAOp(left, right, total)))
                else:
                    made.append(e.put(arith.AddiOp(total, e.put(arith.MuliOp(left, right)))))
            else:
                add = _OPS["add", dtypes.is_float(reduce.dtype)]
                made.append(e.put(add(total, factor(term, r, v))))
        return tuple(made)

    def _pairs(self, here: Sequence[Iters], sums: Vectors) -> Vectors:
        """Two steps at once: of the stage's pairs, and of the weights' (LaneBlocks)."""
        of, e = self.of, self.of.e
        product = product_of(of.kernel)
        assert product is not None
        assert self.staged is not None
        side, _ = product.sides(of.lane)
        assert side.bytes is not None
        width = of.tile_of.width
        wide = VectorType(level2.signless("i16"), [2 * width])
        narrow = VectorType(level2.signless(side.bytes.load.dtype), [2 * width])
        rows = [e.put(lanes.SplatPairOp(self.staged, self._in_stage(of.env(at)), wide)) for at in here]
        columns = []
        for v in range(self._vectors):
            env = self._env(here[0], v)
            buffer = of.buffers[side.bytes.load.buffer]
            where = [e.value(side.bytes.load.index[d], env) for d in of.nest.layout(buffer)]
            at = list(of.place(buffer, where, env))
            load = e.put(vector.LoadOp(of.memories[buffer.name], at, narrow))
            columns.append(e.put(level2.WidenOp(load, side.bytes.load.dtype, wide)))
        return tuple(
            e.put(lanes.AddPairsOp(rows[n // self._vectors], columns[n % self._vectors], total))
            for n, total in enumerate(sums)
        )

    # -- values ----------------------------------------------------------------------------------------------------

    def _in_stage(self, env: Env) -> list[SSAValue]:
        stage, band = self.of.tile_of.stage, self.of.tile_of.band
        assert stage is not None
        return [self.of.e.value(x, env) for x in stage.at({band: f"{band}'"} if band else {})]

    def _value(self, x: Expr, env: Env) -> SSAValue:
        """The values of `x` for a vector of lanes, from `env`'s on."""
        of, e = self.of, self.of.e
        dtype = "i32" if of.tile_of.wide else x.dtype
        kind = VectorType(level2.signless(dtype), [of.tile_of.width])
        if isinstance(x, Reduce):
            assert env.reduce is not None
            return env.reduce(x, e, env)
        stage = of.tile_of.stage
        if self.staged is not None and stage is not None and x == stage.load:
            return e.put(vector.BroadcastOp(e.load(self.staged, *self._in_stage(env)), kind))
        if whole_step(x, of.lane):
            return e.put(vector.BroadcastOp(e.convert(e.value(x, env), x.dtype, dtype), kind))
        match x:
            case Load():
                buffer = of.buffers[x.buffer]
                where = [e.value(x.index[d], env) for d in of.nest.layout(buffer)]
                own = VectorType(level2.signless(x.dtype), [of.tile_of.width])
                got = e.put(vector.LoadOp(of.memories[x.buffer], list(of.place(buffer, where, env)), own))
                return e.put(level2.WidenOp(got, x.dtype, kind)) if own != kind else got
            case Apply(op="cast", args=(a,)):
                narrow = self._value(a, env)
                return e.put(level2.WidenOp(narrow, a.dtype, kind)) if narrow.type != kind else narrow
            case Apply(op=op, args=args):
                # A constant first: of two numbers x86 gives the second where one is NaN.
                given = sorted(args, key=lambda a: not isinstance(a, Const)) if op in ("max", "min") else args
                left, right = (self._value(a, env) for a in given)
                return e.put(_OPS[op, dtypes.is_float(dtype)](left, right))
        raise AssertionError(f"{type(x).__name__} passed `fits`")

"""A kernel under a schedule as one level2 function: a plain loop nest on memories.

    for every output position (physical order, the vector iterator left out)
      for every tile of the vector iterator
        acc[lanes] = init
        for the reduction iterators, guards as early as their iterators are known
          for lanes: acc[lane] = update
        for lanes: output = rest of the body

`vector` names the parallel iterator whose neighbours are accumulated side by side, so that a compiler can keep them in
vector registers without reordering any one sum. Without it the accumulator is a scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import FunctionType, IntegerType, MemRefType
from xdsl.ir import Block, Region, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.expr.guarded import conjuncts
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Lookup, Reduce, Select, State
from cuvil_hw.expr.traverse import walk
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Args, Comment, Role, annotate
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.ops.pool import lowest
from cuvil_hw.schedule.kernel import Buffer, Kernel

Layout = tuple[int, ...]  # physical order of the logical dimensions, outermost first


@dataclass(frozen=True, slots=True)
class LaneBlocks:
    """How a constant lies whose innermost dimension in memory is vector lanes: in blocks of `lanes`, the last filled
    up, block after block; with `pairs`, two neighbours of the dimension before it lie side by side in each lane."""

    lanes: int
    pairs: bool = False

    def shape(self, extents: Sequence[int]) -> list[int]:
        """Of the memory, from the extents in physical order."""
        *outer, last = extents
        if self.pairs:
            outer[-1] = -(-outer[-1] // 2)
        return [-(-last // self.lanes), *outer, self.lanes * (1 + self.pairs)]


@dataclass(frozen=True, slots=True)
class Nest:
    """How one kernel is laid out in loops.

    Attributes:
        vector: name of a parallel iterator, or "".
        lanes: its tile size.
        layouts: physical order of each buffer's dimensions; logical (row-major) where it isn't given.
        packed: constants that lie in blocks of lanes.
    """

    vector: str = ""
    lanes: int = 1
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    packed: Mapping[str, LaneBlocks] = field(default_factory=dict)

    def layout(self, buffer: Buffer) -> Layout:
        return self.layouts.get(buffer.name, tuple(range(buffer.type.rank)))


def apply(
    kernel: Kernel, nest: Nest, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int
) -> func.FuncOp:
    """The function @symbol(inputs…, output) of role "kernel". `layer`: number in saturation counters."""
    plain = lambda memories, e: Lowering(kernel, nest, buffers, memories, e)  # noqa: E731
    return function_of(kernel, nest, buffers, tables, symbol, layer, plain)


def function_of(
    kernel: Kernel,
    nest: Nest,
    buffers: Mapping[str, Buffer],
    tables: Tables,
    symbol: str,
    layer: int,
    lowering: Callable[[Mapping[str, SSAValue], Emitter], Lowering],
) -> func.FuncOp:
    """As `apply`, with the loops that `lowering` makes of the memories by name."""
    names = [*kernel.inputs, kernel.output]
    block = Block(arg_types=[memory_type(buffers[n], nest.layout(buffers[n]), nest.packed.get(n)) for n in names])
    memories = dict(zip(names, block.args, strict=True))
    lowering(memories, Emitter(block, tables, layer)).run()
    block.add_op(func.ReturnOp())
    op = func.FuncOp(symbol, FunctionType.from_lists([a.type for a in block.args], []), Region(block))
    annotate(op, Role("kernel"), Args(tuple(names)), comment(kernel))
    return op


def comment(kernel: Kernel) -> Comment:
    """Which ops a kernel is made of, and the source line of the main one."""
    where = f", {kernel.loc}" if kernel.loc else ""
    return Comment(f"{kernel.name}: {', '.join(kernel.ops)}{where}")


def memory_type(buffer: Buffer, layout: Layout, packed: LaneBlocks | None = None) -> MemRefType[Any]:
    """The memory that holds a buffer. Unsigned integers of odd widths lie zero-extended in their container."""
    shape = [buffer.type.shape[d] for d in layout]
    shape = packed.shape(shape) if packed is not None else shape
    width = box_bits(buffer.type.dtype)
    return MemRefType(IntegerType(width) if width else level2.signless(buffer.type.dtype), shape)


def box_bits(dtype: str) -> int:
    """Container bits of an unsigned integer that doesn't fill its container, and of i1, which is no truth value; 0 for
    all others."""
    width = dtypes.int_width(dtype)
    box = 8 * dtypes.to_numpy(dtype).itemsize
    return box if width and (not width[0] or width[1] == 1) and width[1] != box else 0


@dataclass(frozen=True, slots=True)
class Lowering:
    """One kernel on its way to loops; a target may override `run` and `place`."""

    kernel: Kernel
    nest: Nest
    buffers: Mapping[str, Buffer]
    memories: Mapping[str, SSAValue]
    e: Emitter

    def run(self) -> None:
        by_dim = dict(enumerate(self.kernel.iterators))
        order = [by_dim[d] for d in self.nest.layout(self.buffers[self.kernel.output])]
        reduce, vector = self.kernel.reduce, self._vector()
        if reduce is None:
            self.loops(order, {}, lambda iters: self.store(self.env(iters)))
        elif vector is None:
            self.loops(order, {}, lambda iters: self.tile(reduce, iters, None, 0))
        else:
            outer = [i for i in order if i is not vector]
            self.loops(outer, {}, lambda iters: self._tiles(reduce, vector, iters))

    def _vector(self) -> Iter | None:
        found = next((i for i in self.kernel.iterators if i.name == self.nest.vector), None)
        return found if found is not None and found.extent > 1 and self.nest.lanes > 1 else None

    def loops(
        self, order: Sequence[Iter], iters: Mapping[str, SSAValue], body: Callable[[Mapping[str, SSAValue]], None]
    ) -> None:
        if not order:
            body(iters)
        elif order[0].extent == 1:
            self.loops(order[1:], {**iters, order[0].name: self.e.const(0, "index")}, body)
        else:
            name = order[0].name
            self.e.loop(order[0].extent, name, lambda i, _: self.loops(order[1:], {**iters, name: i}, body))

    def env(self, iters: Mapping[str, SSAValue], states: tuple[SSAValue, ...] = ()) -> Env:
        return Env(iters=iters, load=self.load, lookup=self.lookup, states=states)

    def lookup(self, node: Lookup, e: Emitter, env: Env) -> SSAValue:
        """Integers that fit fewer bits are stored narrow: products of 32-bit factors are cheap, of 64-bit ones not."""
        values, width = np.asarray(node.values), dtypes.int_width(node.dtype)
        narrow = node.dtype
        if width is not None and width[0] and values.size:
            box = 8 * dtypes.to_numpy(dtypes.smallest_int(int(values.min()), int(values.max()))).itemsize
            narrow = f"i{box}" if box < width[1] else narrow
        table = e.table(values, narrow, f"table{len(e.tables.ops)}")
        value = e.load(table, e.value(node.index, env))
        return value if narrow == node.dtype else e.put(arith.ExtSIOp(value, level2.signless(node.dtype)))

    def load(self, node: Load, e: Emitter, env: Env) -> SSAValue:
        buffer = self.buffers[node.buffer]
        where = [e.value(node.index[d], env) for d in self.nest.layout(buffer)]
        value = e.load(self.memories[node.buffer], *self.place(buffer, where, env))
        narrow = level2.signless(node.dtype)
        return e.put(arith.TruncIOp(value, narrow)) if box_bits(node.dtype) else value

    def store(self, env: Env, reduced: SSAValue | None = None, known: Mapping[int, SSAValue] | None = None) -> None:
        """Compute the body at one output position and store it. `known`: nodes that were computed before, by id."""
        if reduced is not None:
            env = replace(env, reduce=lambda *_: reduced)
        value = self.e.value(self.kernel.body, env, known)
        dtype = self.kernel.type.dtype
        if box := box_bits(dtype):
            extend = arith.ExtSIOp if dtype == "i1" else arith.ExtUIOp
            value = self.e.put(extend(value, IntegerType(box)))
        out = self.buffers[self.kernel.output]
        where = [env.iters[self.kernel.iterators[d].name] for d in self.nest.layout(out)]
        self.e.store(value, self.memories[self.kernel.output], *self.place(out, where, env))

    def place(self, buffer: Buffer, index: Sequence[SSAValue], env: Env) -> Sequence[SSAValue]:
        """Index of an element in its memory, from its index in the buffer, in physical order."""
        packed = self.nest.packed.get(buffer.name)
        return index if packed is None else self.in_blocks(packed, *self.split(index[-1], packed.lanes), index[:-1])

    def split(self, index: SSAValue, by: int) -> tuple[SSAValue, SSAValue]:
        """The block that an index lies in, and its place there."""
        size = self.e.const(by, "index")
        return self.e.put(arith.DivUIOp(index, size)), self.e.put(arith.RemUIOp(index, size))

    def in_blocks(
        self, packed: LaneBlocks, block: SSAValue, lane: SSAValue, outer: Sequence[SSAValue]
    ) -> Sequence[SSAValue]:
        if not packed.pairs:
            return block, *outer, lane
        pair, which = self.split(outer[-1], 2)
        two = self.e.put(arith.MuliOp(lane, self.e.const(2, "index")))
        return block, *outer[:-1], pair, self.e.put(arith.AddiOp(two, which))

    def _tiles(self, reduce: Reduce, vector: Iter, iters: Mapping[str, SSAValue]) -> None:
        lanes = min(self.nest.lanes, vector.extent)
        whole, rest = divmod(vector.extent, lanes)
        if whole == 1:
            self.tile(reduce, {**iters, vector.name: self.e.const(0, "index")}, vector, lanes)
        else:
            self.e.loop(
                whole * lanes,
                f"{vector.name}_tile",
                lambda start, _: self.tile(reduce, {**iters, vector.name: start}, vector, lanes),
                step=lanes,
            )
        if rest:
            last = {**iters, vector.name: self.e.const(whole * lanes, "index")}
            self.tile(reduce, last, vector if rest > 1 else None, rest)

    def tile(self, reduce: Reduce, iters: Mapping[str, SSAValue], vector: Iter | None, lanes: int) -> None:
        """All lanes from iters[vector] on: initialise, reduce, finish."""
        e, shape = self.e, [lanes] if vector else []
        states = [e.alloca(shape, s.dtype, "acc" if k == 0 else f"acc{k}") for k, s in enumerate(reduce.init)]

        def each(body: Callable[[Env, tuple[SSAValue, ...]], None], inner: Mapping[str, SSAValue]) -> None:
            """`body` for every lane, with the values of its accumulators."""
            if vector is None:
                body(self.env(inner), ())
                return
            name, base = vector.name, inner[vector.name]
            e.loop(lanes, name, lambda j, _: body(self.env({**inner, name: e.put(arith.AddiOp(base, j))}), (j,)))

        def start(env: Env, at: tuple[SSAValue, ...]) -> None:
            for state, init in zip(states, reduce.init, strict=True):
                e.store(e.value(init, env), state, *at)

        def finish(env: Env, at: tuple[SSAValue, ...]) -> None:
            self.store(env, e.load(states[reduce.result], *at))

        each(start, iters)
        guards, update = hoisted(reduce, vector)

        def step(env: Env, at: tuple[SSAValue, ...]) -> None:
            env = replace(env, states=tuple(e.load(s, *at) for s in states))
            new = [e.value(u, env) for u in update]
            for state, value in zip(states, new, strict=True):
                e.store(value, state, *at)

        self.steps(reduce, guards, iters, lambda inner: each(step, inner))
        each(finish, iters)

    def steps(
        self,
        reduce: Reduce,
        guards: Sequence[Expr],
        iters: Mapping[str, SSAValue],
        step: Callable[[Mapping[str, SSAValue]], None],
    ) -> None:
        """The loops of a reduction around `step`, each guard as far outside as it is known."""
        e = self.e

        def descend(level: int, inner: Mapping[str, SSAValue]) -> None:
            here = [g for g in guards if depth_of(g, reduce.iters) == level]
            guarded(here, level, inner)

        def guarded(conditions: Sequence[Expr], level: int, inner: Mapping[str, SSAValue]) -> None:
            if conditions:
                cond = e.value(conditions[0], self.env(inner))
                for c in conditions[1:]:
                    cond = e.put(arith.AndIOp(cond, e.value(c, self.env(inner))))
                e.branch(cond, lambda: guarded((), level, inner))
            elif level == len(reduce.iters):
                step(inner)
            else:
                it = reduce.iters[level]
                e.loop(it.extent, it.name, lambda i, _: descend(level + 1, {**inner, it.name: i}))

        descend(0, iters)


def hoisted(reduce: Reduce, vector: Iter | None) -> tuple[list[Expr], tuple[Expr, ...]]:
    """Conditions under which a step changes nothing, taken out of the step, and the step without them.

    `sum(acc, c ? t : 0)` is `if (c) sum(acc, t)`: adding zero (or taking the maximum with the lowest value) is no
    change. Conditions on the vector iterator stay where they are."""
    update = reduce.update
    match update:
        case (Apply(args=(State(k=0) as state, Select(cond=cond, then=term, other=Const(value=value)))) as step,):
            if value != identity(reduce.kind, step.dtype):
                return [], update
            parts = conjuncts(cond)
            out = [p for p in parts if vector is None or vector not in walk(p)]
            kept = [p for p in parts if p not in out]
            for part in kept:
                term = Select(term.dtype, part, term, Const(term.dtype, value))
            return out, (replace(step, args=(state, term)),)
    return [], update


def identity(kind: str, dtype: str) -> float | int | None:
    match kind:
        case "sum":
            return 0
        case "prod":
            return 1
        case "max":
            return lowest(dtype)
        case "min":
            return float("inf") if dtypes.is_float(dtype) else dtypes.int_range(dtype)[1]
    return None


def depth_of(guard: Expr, iters: Sequence[Iter]) -> int:
    """How many reduction loops must be open before the guard is known."""
    used = {e.name for e in walk(guard) if isinstance(e, Iter)}
    return max((k + 1 for k, it in enumerate(iters) if it.name in used), default=0)

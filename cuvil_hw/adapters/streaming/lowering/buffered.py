"""The process of a stage without a streaming form: it holds its inputs, then computes one output after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.dialects import func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.exact import stored
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.adapters.streaming.lowering.process import meets_after, process
from cuvil_hw.expr.nodes import Iter, Load, Lookup, Reduce
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.schedule.kernel import KernelGraph


def buffered(stage: Stage, graph: KernelGraph, tables: Tables, layer: int, ii: int = 1) -> func.FuncOp:
    """Fill a buffer with each input, then compute the outputs in streaming order, one after the other. `ii`: cycles
    between two steps of a reduction."""
    k = stage.kernel
    order = physical(k.type.rank)

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        held: dict[str, SSAValue] = {}
        for arg, name in zip(args, stage.sources, strict=False):
            kind = graph.buffers[name].type
            held[name] = e.alloca(kind.shape or (1,), kind.dtype, f"{name}_held")
            word = e.alloca((1,), kind.dtype, f"{name}_word", word=True)
            _fill(e, arg, word, held[name], kind.shape)
        y = e.alloca((1,), k.type.dtype, "y", word=True)
        iters: dict[str, SSAValue] = {}

        def load(leaf: Load, em: Emitter, env: Env) -> SSAValue:
            kind = graph.buffers[leaf.buffer].type
            target = held.get(leaf.buffer)
            if target is None:
                data = graph.constant(leaf.buffer).reshape(kind.shape or (1,))
                target = em.table(data, kind.dtype, f"{k.name}_{leaf.buffer}", stored=stored(leaf, stage.ranges))
            at = [em.value(i, env) for i in leaf.index] or [em.const(0, "index")]
            return em.load(target, *at)

        def lookup(leaf: Lookup, em: Emitter, env: Env) -> SSAValue:
            kind = stored(leaf, stage.ranges)
            table = em.table(np.asarray(leaf.values), leaf.dtype, f"{k.name}_lut", stored=kind)
            return em.load(table, em.value(leaf.index, env))

        def reduce(node: Reduce, em: Emitter, env: Env) -> SSAValue:
            return _fold(em, node, env, iters, ii)[node.result]

        def emit(how: Callable[[Reduce, Emitter, Env], SSAValue]) -> None:
            e.store(
                e.value(k.body, Env(dict(iters), load, lookup, how, product=stage.elsewhere)), y, e.const(0, "index")
            )
            e.do(level2.StreamWriteOp(args[-1], y))

        def nest(dims: Sequence[int]) -> None:
            if not dims:
                emit(reduce)
                return
            it = k.iterators[dims[0]]
            if k.reduce is not None and len(dims) == 1 and stage.side_by_side > 1:
                _side_by_side(e, k.reduce, it, iters, load, emit, ii)
                return

            def inner(i: SSAValue, _: Any) -> None:
                iters[it.name] = i
                nest(dims[1:])

            e.loop(it.extent, it.name, inner, pipeline=1 if len(dims) == 1 and not k.reduce else 0)

        nest(order)

    ins = [
        (f"in{n}" if len(stage.sources) > 1 else "in", graph.buffers[s].type.dtype, 1)
        for n, s in enumerate(stage.sources)
    ]
    comment = f"{', '.join(k.ops)}{' at ' + k.loc if k.loc else ''}: buffered, one element at a time"
    return process(k.name, comment, tables, layer, [*ins, ("out", k.type.dtype, 1)], body)


def _fill(e: Emitter, stream: SSAValue, word: SSAValue, buffer: SSAValue, shape: tuple[int, ...]) -> None:
    at: dict[int, SSAValue] = {}

    def nest(dims: Sequence[int]) -> None:
        if not dims:
            e.do(level2.StreamReadOp(stream, word))
            place = [at[d] for d in range(len(shape))] or [e.const(0, "index")]
            e.store(e.load(word, e.const(0, "index")), buffer, *place)
            return

        def inner(i: SSAValue, _: Any) -> None:
            at[dims[0]] = i
            nest(dims[1:])

        e.loop(shape[dims[0]], f"d{dims[0]}", inner, pipeline=1 if len(dims) == 1 else 0)

    nest(physical(len(shape)))


def _fold(e: Emitter, node: Reduce, env: Env, iters: dict[str, SSAValue], ii: int) -> tuple[SSAValue, ...]:
    start = [e.value(i, env) for i in node.init]

    def nest(rest: Sequence[Iter], carried: tuple[SSAValue, ...]) -> tuple[SSAValue, ...]:
        if not rest:
            inner = Env({**env.iters, **iters}, env.load, env.lookup, env.reduce, carried, env.product)
            return tuple(e.value(u, inner) for u in node.update)

        def step(i: SSAValue, states: tuple[SSAValue, ...]) -> tuple[SSAValue, ...]:
            iters[rest[0].name] = i
            return nest(rest[1:], states)

        return e.loop(rest[0].extent, rest[0].name, step, init=carried, pipeline=ii if len(rest) == 1 else 0)

    return nest(node.iters, tuple(start))


def _side_by_side(
    e: Emitter, node: Reduce, across: Iter, iters: dict[str, SSAValue], load: Callable[[Load, Emitter, Env], SSAValue],
    emit: Callable[[Callable[[Reduce, Emitter, Env], SSAValue]], None], ii: int,
) -> None:  # fmt: skip
    """The reductions of all outputs along `across`, step by step in turn: while one waits for its sum, the others go
    on. Each keeps its own order."""
    states = [e.alloca((across.extent,), start.dtype, f"state{n}") for n, start in enumerate(node.init)]
    for state in states:
        meets_after(state, across.extent)

    def each(name: str, body: Callable[[SSAValue], None], pipeline: int) -> None:
        def one(i: SSAValue, _: Any) -> None:
            iters[across.name] = i
            body(i)

        e.loop(across.extent, name, one, pipeline=pipeline)

    def begin(i: SSAValue) -> None:
        for state, start in zip(states, node.init, strict=True):
            e.store(e.value(start, Env(dict(iters), load)), state, i)

    def add(i: SSAValue) -> None:
        env = Env(dict(iters), load, states=tuple(e.load(state, i) for state in states))
        for state, value in zip(states, [e.value(u, env) for u in node.update], strict=True):
            e.store(value, state, i)

    def nest(rest: Sequence[Iter]) -> None:
        if not rest:
            each(across.name, add, ii)
            return

        def step(i: SSAValue, _: Any) -> None:
            iters[rest[0].name] = i
            nest(rest[1:])

        e.loop(rest[0].extent, rest[0].name, step)

    each("first", begin, 1)
    nest(node.iters)
    each("last", lambda i: emit(lambda *_: e.load(states[node.result], i)), 1)

"""The process of a stage without a streaming form: it holds its inputs, then computes one output after the other.

One flat loop: its first steps fill the memories, one word each, the others compute, one step of a reduction each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce as folded
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.exact import stored
from cuvil_hw.adapters.streaming.analysis.operand import Order
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.lowering.process import meets_after, process
from cuvil_hw.adapters.streaming.lowering.registers import Register, count
from cuvil_hw.expr.nodes import Load, Lookup
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.schedule.kernel import KernelGraph


def buffered(stage: Stage, graph: KernelGraph, tables: Tables, layer: int, ii: int = 1) -> func.FuncOp:
    """Fill a memory with each input, then compute the outputs in streaming order. `ii`: cycles between two steps. Where
    the stage says so, the reductions of all outputs along the innermost dimension take turns, step by step: while one
    waits for its sum, the others go on. Each keeps its own order."""
    k, side = stage.kernel, stage.side_by_side
    reduction = k.reduce
    outer = [k.iterators[d] for d in stage.order]
    inner = [outer.pop()] if side > 1 else []
    steps = list(reduction.iters) if reduction is not None else []
    filled = [graph.buffers[s].type.size for s in stage.sources]

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        held: dict[str, SSAValue] = {}
        fills = []
        for arg, name, order in zip(args, stage.sources, stage.given, strict=False):
            kind = graph.buffers[name].type
            held[name] = e.alloca(kind.shape or (1,), kind.dtype, f"{name}_held")
            word = e.alloca((1,), kind.dtype, f"{name}_word", word=True)
            places = [Register(e, f"{name}_d{d}", n) for d, n in enumerate(kind.shape)]
            fills.append(_fill(e, arg, word, held[name], places, order))
        y = e.alloca((1,), k.type.dtype, "y", word=True)
        digits = {it.name: Register(e, it.name, it.extent) for it in (*outer, *steps, *inner)}
        shape = (side,) if side > 1 else ()
        starts = reduction.init if reduction is not None else ()
        states = [e.alloca(shape, start.dtype, f"state{n}") for n, start in enumerate(starts)]
        for state in states:
            meets_after(state, side)

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

        def compute() -> None:
            iters = {name: digit.index() for name, digit in digits.items()}
            values: list[SSAValue] = []

            def give() -> None:
                env = Env(iters, load, lookup, lambda node, *_: values[node.result], product=stage.elsewhere)
                e.store(e.value(k.body, env), y, e.const(0, "index"))
                e.do(level2.StreamWriteOp(args[-1], y))

            if reduction is None:
                give()
            else:
                at = [iters[i.name] for i in inner]
                first = _all(e, [digits[i.name].is_first() for i in steps])
                env = Env(iters, load, lookup, product=stage.elsewhere)
                begin = [
                    e.put(arith.SelectOp(first, e.value(start, env), e.load(state, *at)))
                    for start, state in zip(starts, states, strict=True)
                ]
                values += [e.value(update, replace(env, states=tuple(begin))) for update in reduction.update]
                for value, state in zip(values, states, strict=True):
                    e.store(value, state, *at)
                e.branch(_all(e, [digits[i.name].is_last() for i in steps]), give)
            count(e, list(digits.values()))

        def step(t: SSAValue, _: Any) -> None:
            for n, fill in enumerate(fills):
                begin, end = sum(filled[:n]), sum(filled[: n + 1])
                here = [e.compare("ge", t, e.const(begin, "index"))] if begin else []
                e.branch(_all(e, [*here, e.compare("lt", t, e.const(end, "index"))]), fill)
            if filled:
                e.branch(e.compare("ge", t, e.const(sum(filled), "index")), compute)
            else:
                compute()

        e.loop(sum(filled) + k.type.size * prod(i.extent for i in steps), "t", step, pipeline=ii)

    ins = [
        (f"in{n}" if len(stage.sources) > 1 else "in", graph.buffers[s].type.dtype, 1)
        for n, s in enumerate(stage.sources)
    ]
    comment = f"{', '.join(k.ops)}{' at ' + k.loc if k.loc else ''}: buffered, one element at a time"
    return process(k.name, comment, tables, layer, [*ins, ("out", k.type.dtype, 1)], body)


def _fill(
    e: Emitter, stream: SSAValue, word: SSAValue, memory: SSAValue, places: Sequence[Register], order: Order
) -> Callable[[], None]:
    """What one step of filling a memory does. `places`: where the next word goes, by dimension."""

    def fill() -> None:
        e.do(level2.StreamReadOp(stream, word))
        at = [p.index() for p in places] or [e.const(0, "index")]
        e.store(e.load(word, e.const(0, "index")), memory, *at)
        count(e, [places[d] for d in order])

    return fill


def _all(e: Emitter, conditions: Sequence[SSAValue]) -> SSAValue:
    if not conditions:
        return e.const(True, "bool")
    return folded(lambda a, b: e.put(arith.AndIOp(a, b)), conditions)

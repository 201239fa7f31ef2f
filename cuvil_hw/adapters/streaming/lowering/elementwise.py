"""Element by element over one or more streams, which may be shorter where the stage reads them again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as folded_over
from math import prod
from typing import Any

from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.stage import Stage, Sweep
from cuvil_hw.adapters.streaming.lowering.folded import Folded, read_constant
from cuvil_hw.adapters.streaming.lowering.process import fold_index, meets_after, process
from cuvil_hw.expr.nodes import Load
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.schedule.kernel import KernelGraph


def _held(e: Emitter, nest: Sequence[Sweep], n: int, dtype: str, lanes: int) -> tuple[SSAValue, list[int]] | None:
    """The memory of what stream `n` brings once and its stage reads again, and the loops over it; None where that is
    the word at hand."""
    still = [m for m, sweep in enumerate(nest) if not sweep.moves[n] and sweep.extent > 1]
    inner = [m for m, sweep in enumerate(nest) if still and m > still[0] and sweep.moves[n] and sweep.extent > 1]
    if not inner:
        return None
    words = prod(nest[m].extent for m in inner)
    memory = e.alloca((words, lanes), dtype, f"held{n}", reshape=(1,))
    meets_after(memory, words)
    return memory, inner


def elementwise(stage: Stage, graph: KernelGraph, tables: Tables, layer: int, lanes: int) -> func.FuncOp:
    """Element by element over one or more streams. What is read again is held: one word, or as many as come before
    the first one is wanted again."""
    k, folded = stage.kernel, Folded(stage, graph, lanes, 1)
    words = [o.lanes(lanes, 1)[0] for o in stage.operands]
    nest = stage.sweeps(lanes)
    names = [("nf" if t.channel else "pixel") + str(n or "") for n, t in enumerate(nest)]
    if len(nest) == 2:
        names = ["pixel", "nf"]

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        x = [
            e.alloca((w,), graph.buffers[s].type.dtype, s, word=True) for s, w in zip(stage.sources, words, strict=True)
        ]
        held = [_held(e, nest, n, graph.buffers[s].type.dtype, words[n]) for n, s in enumerate(stage.sources)]
        y = e.alloca((lanes,), k.type.dtype, "y", word=True)

        def read(n: int, at: Sequence[SSAValue]) -> None:
            store = held[n]
            again = [i for i, sweep in zip(at, nest, strict=True) if not sweep.moves[n] and sweep.extent > 1]

            def fresh() -> None:
                e.do(level2.StreamReadOp(args[n], x[n]))
                if store is not None:
                    e.loop(words[n], "l", lambda i, _: e.store(e.load(x[n], i), *place(i)), unroll=True)

            def place(i: SSAValue) -> tuple[SSAValue, ...]:
                assert store is not None
                memory, (outer, *inner) = store
                where = at[outer]
                for m in inner:
                    where = fold_index(e, where, nest[m].extent, at[m])
                return memory, where, i

            def kept() -> None:
                e.loop(words[n], "l", lambda i, _: e.store(e.load(*place(i)), x[n], i), unroll=True)

            if not again:
                fresh()
                return
            first = [e.compare("eq", i, e.const(0, "index")) for i in again]
            e.branch(folded_over(lambda a, b: e.put(arith.AndIOp(a, b)), first), fresh, kept if store else None)

        def step(at: Sequence[SSAValue]) -> None:
            for n in range(len(x)):
                read(n, at)
            nf, *others = [(i, sweep) for i, sweep in zip(at, nest, strict=True) if sweep.channel]
            place = nf[0]
            for i, sweep in others:
                place = fold_index(e, place, sweep.extent, i)

            def lane(p: SSAValue, _: Any) -> None:
                constants = read_constant(folded, k.name, [place, None, None, p], None, "")

                def load(leaf: Load, em: Emitter, env: Env) -> SSAValue:
                    for n, o in enumerate(stage.operands):
                        if o.load == leaf:
                            return em.load(x[n], p if words[n] > 1 else e.const(0, "index"))
                    return constants(leaf, em, env)

                e.store(e.value(k.body, Env(load=load, lookup=constants, product=stage.elsewhere)), y, p)

            e.loop(lanes, "p", lane, unroll=True)
            e.do(level2.StreamWriteOp(args[-1], y))

        e.nest([(sweep.extent, name) for sweep, name in zip(nest, names, strict=True)], step)

    ins = [
        (f"in{n}" if len(stage.sources) > 1 else "in", graph.buffers[s].type.dtype, words[n])
        for n, s in enumerate(stage.sources)
    ]
    comment = f"{', '.join(k.ops)}{' at ' + k.loc if k.loc else ''}: {lanes} elements a cycle"
    return process(k.name, comment, tables, layer, [*ins, ("out", k.type.dtype, lanes)], body)

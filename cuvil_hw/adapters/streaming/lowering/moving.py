"""Element by element over streams whose elements lie elsewhere: parts of a concatenation, what is padded, what follows
constants of rows. Whoever brings them into order is feed.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as accumulate
from typing import Any

from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.analysis.tables import iterators
from cuvil_hw.adapters.streaming.lowering.folded import Folded, read_constant
from cuvil_hw.adapters.streaming.lowering.process import fold_index, process
from cuvil_hw.expr.nodes import Iter, Load, Lookup
from cuvil_hw.expr.traverse import walk
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.schedule.kernel import KernelGraph


def moving(stage: Stage, graph: KernelGraph, tables: Tables, layer: int, lanes: int) -> func.FuncOp:
    """Element by element, each stream read where the output takes something from it."""
    k, folded = stage.kernel, Folded(stage, graph, lanes, 1)
    pixels = [k.iterators[d] for d in stage.order[:-1] if k.iterators[d].extent > 1]
    rows = {n for o in stage.moves for t in o.when for n in walk(t.index) if isinstance(n, Iter)} | {*stage.rows}
    outer = [(it.extent, it.name) for it in pixels] if rows & {*pixels} else [(stage.pixels, "pixel")]
    loads = {o.load: n for n, o in enumerate(stage.moves)}

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        words = [e.alloca((lanes,), graph.buffers[s].type.dtype, s, word=True) for s in stage.sources]
        y = e.alloca((lanes,), k.type.dtype, "y", word=True)

        def step(at: Sequence[SSAValue]) -> None:
            *counters, nf = at
            places = dict(zip(pixels, counters, strict=True)) if rows & {*pixels} else {}

            def constants(p: SSAValue) -> Callable[[Load | Lookup, Emitter, Env], SSAValue]:
                def read(leaf: Load | Lookup, em: Emitter, env: Env) -> SSAValue:
                    row = next((it for it in iterators(leaf) if it in places), None)
                    if row is None:
                        return read_constant(folded, k.name, [nf, None, None, p], None, "")(leaf, em, env)
                    flat = fold_index(em, nf, row.extent, places[row])
                    return read_constant(folded, k.name, [nf, places[row], None, p], flat, "")(leaf, em, env)

                return read

            def lane(p: SSAValue, _: Any) -> None:
                known = constants(p)

                def load(leaf: Load, em: Emitter, env: Env) -> SSAValue:
                    return em.load(words[loads[leaf]], p) if leaf in loads else known(leaf, em, env)

                e.store(e.value(k.body, Env(load=load, lookup=known, product=stage.elsewhere)), y, p)

            for arg, word, move in zip(args, words, stage.moves, strict=False):
                first = constants(e.const(0, "index"))
                here = [e.value(t, Env(load=first, lookup=first)) for t in move.when]

                def fetch(arg: SSAValue = arg, word: SSAValue = word) -> None:
                    e.do(level2.StreamReadOp(arg, word))

                if here:
                    e.branch(accumulate(lambda a, b: e.put(arith.AndIOp(a, b)), here), fetch)
                else:
                    fetch()
            e.loop(lanes, "p", lane, unroll=True)
            e.do(level2.StreamWriteOp(args[-1], y))

        e.nest([*outer, (folded.nf, "nf")], step)

    ins = [
        (f"in{n}" if len(stage.sources) > 1 else "in", graph.buffers[s].type.dtype, lanes)
        for n, s in enumerate(stage.sources)
    ]
    comment = f"{', '.join(k.ops)}{' at ' + k.loc if k.loc else ''}: {lanes} elements a cycle"
    return process(k.name, comment, tables, layer, [*ins, ("out", k.type.dtype, lanes)], body)

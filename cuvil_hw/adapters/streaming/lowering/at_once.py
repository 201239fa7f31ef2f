"""Depthwise stages that take all taps of a window in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.lowering.folded import Folded, read_constant
from cuvil_hw.adapters.streaming.lowering.process import emit_result, fold_index, process
from cuvil_hw.expr.nodes import Load
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.schedule.kernel import KernelGraph


def at_once(stage: Stage, graph: KernelGraph, tables: Tables, layer: int, pe: int, bind: str) -> func.FuncOp:
    """A depthwise stage that reads a whole window of PE channels a step."""
    k, taps = stage.kernel, stage.abreast
    folded, reduce, term = Folded(stage, graph, pe, taps), stage.kernel.reduce, stage.term
    assert reduce is not None
    assert term is not None
    source = graph.buffers[stage.sources[0]].type.dtype

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        x = e.alloca((taps * pe,), source, "x", word=True)
        y = e.alloca((pe,), k.type.dtype, "y", word=True)
        zero = e.const(0, "index")

        def step(nf: SSAValue) -> None:
            e.do(level2.StreamReadOp(args[0], x))

            def lane(p: SSAValue, _: Any) -> None:
                outside = read_constant(folded, k.name, [nf, zero, None, p], nf, "")
                start = e.value(reduce.init[0], Env(load=outside, lookup=outside))

                def add(s: SSAValue, sums: Sequence[SSAValue]) -> list[SSAValue]:
                    constants = read_constant(folded, k.name, [nf, zero, s, p], nf, bind)

                    def load(leaf: Load, em: Emitter, env: Env) -> SSAValue:
                        if leaf.buffer not in stage.sources:
                            return constants(leaf, em, env)
                        return em.load(x, fold_index(em, s, pe, p))

                    env = Env(load=load, lookup=constants, states=tuple(sums), product=stage.in_term)
                    return [e.value(term, env)]

                (total,) = e.loop(taps, "s", add, init=[start], unroll=True)
                emit_result(e, folded, nf, p, total, y)

            e.loop(pe, "p", lane, unroll=True)
            e.do(level2.StreamWriteOp(args[1], y))

        e.nest([(stage.pixels, "pixel"), (folded.nf, "nf")], lambda at: step(at[1]))

    comment = f"{', '.join(k.ops)}{' at ' + k.loc if k.loc else ''}: {taps} taps of {pe} channels a cycle"
    return process(k.name, comment, tables, layer, [("in", source, taps * pe), ("out", k.type.dtype, pe)], body)

"""Dense stages unrolled as a whole, whose weights are wiring: their products are additions."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.dialects import func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.adders import ConstantProducts
from cuvil_hw.adapters.streaming.analysis.exact import span
from cuvil_hw.adapters.streaming.analysis.fold import MAX_MULTIPLIERS
from cuvil_hw.adapters.streaming.analysis.positions import Array
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.lowering.folded import Folded, read_constant
from cuvil_hw.adapters.streaming.lowering.process import emit_result, process
from cuvil_hw.adapters.streaming.lowering.rom import gather
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.expr.nodes import Apply, Expr, Load, Lookup, State
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.schedule.kernel import KernelGraph


def constant_products(stage: Stage, constants: ConstantStore) -> ConstantProducts | None:
    """All products of a stage that does nothing but sum them up, each an input by a weight; None for other stages, and
    for more products than a process holds."""
    pair, outputs, inputs = stage.pair, stage.channels_out, stage.tap_count * stage.channels_in
    if pair is None or stage.operands or stage.moves or outputs * inputs > MAX_MULTIPLIERS:
        return None
    weight = _uncast(pair.other)
    if not isinstance(weight, Load | Lookup) or not _summed(stage.term, pair.node):
        return None

    def constant(buffer: str) -> Array:
        operand = stage.kernel.operand(buffer)
        return constants[operand.digest].reshape(operand.type.shape)

    grids: dict[Any, Array] = {it: np.zeros((1, 1), np.int64) for it in stage.kernel.iterators}
    number, channel = np.divmod(np.arange(inputs).reshape(1, -1), stage.channels_in)
    digits = np.unravel_index(number, [d.kernel for d in stage.dims]) if stage.dims else ()
    grids |= {tap: digit for tap, digit in zip(stage.taps, digits, strict=True) if tap is not None}
    places = np.unravel_index(np.arange(outputs).reshape(-1, 1), [it.extent for it in stage.lanes] or [1])
    grids |= dict(zip(stage.lanes, places, strict=False))
    if stage.channel is not None:
        grids[stage.channel] = channel
    table, kept = gather(weight, constant, grids, (stage.loops[3], stage.loops[1]))
    table = table.reshape([n if axis in kept else 1 for axis, n in enumerate((outputs, inputs))])
    matrix = np.ascontiguousarray(np.broadcast_to(table, (outputs, inputs)), np.int64)
    return ConstantProducts(matrix, span(pair.shared, stage.ranges))


def _uncast(e: Expr) -> Expr:
    while isinstance(e, Apply) and e.op == "cast":
        e = e.args[0]
    return e


def _summed(term: Expr | None, product: Expr) -> bool:
    """Whether a term is the state and the product."""
    if not isinstance(term, Apply) or term.op != "add":
        return False
    sides = [_uncast(a) for a in term.args]
    return any(isinstance(a, State) and b is product for a, b in (sides, sides[::-1]))


def unrolled(stage: Stage, graph: KernelGraph, tables: Tables, layer: int, products: ConstantProducts) -> func.FuncOp:
    """All outputs from all inputs in one step."""
    k, folded = stage.kernel, Folded(stage, graph, stage.channels_out, stage.tap_count * stage.channels_in)
    reduce, pair, additions = k.reduce, stage.pair, products.adders
    assert reduce is not None
    assert pair is not None
    source = graph.buffers[stage.sources[0]].type.dtype
    pe, simd, factor = folded.pe, folded.simd, f"i{additions.bits(0)}"

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        x = e.alloca((simd,), source, "x", word=True)
        y = e.alloca((pe,), k.type.dtype, "y", word=True)
        factors = e.alloca((simd,), factor, "factors", partition=(0,))
        acc = e.alloca((pe,), reduce.dtype, "acc", partition=(0,))
        zero = e.const(0, "index")
        table = e.table(additions.rows(), "i64", f"{k.name}_sums")

        def shared(s: SSAValue, _: Any) -> None:
            constants = read_constant(folded, k.name, [zero, zero, s, zero], zero, "")

            def load(leaf: Load, em: Emitter, env: Env) -> SSAValue:
                return em.load(x, s) if leaf.buffer in stage.sources else constants(leaf, em, env)

            value = e.value(pair.shared, Env(load=load, lookup=constants))
            e.store(e.convert(value, pair.shared.dtype, factor), factors, s)

        def start(p: SSAValue, _: Any) -> None:
            read = read_constant(folded, k.name, [zero, zero, None, p], zero, "")
            e.store(e.value(reduce.init[0], Env(load=read, lookup=read)), acc, p)

        def step(_: Any) -> None:
            e.do(level2.StreamReadOp(args[0], x))
            e.loop(simd, "s", shared, unroll=True)
            e.loop(pe, "p", start, unroll=True)
            e.do(level2.AddProductsOp(table, factors, acc))
            e.loop(pe, "p", lambda p, _: emit_result(e, folded, zero, p, e.load(acc, p), y), unroll=True)
            e.do(level2.StreamWriteOp(args[1], y))

        e.nest([(stage.pixels, "pixel")], step)

    what = f"{pe} outputs × {simd} inputs a cycle, by {len(additions.sums)} additions"
    comment = f"{', '.join(k.ops)}{' at ' + k.loc if k.loc else ''}: {what}"
    return process(k.name, comment, tables, layer, [("in", source, simd), ("out", k.type.dtype, pe)], body)

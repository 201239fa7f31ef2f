"""Dataflow processes at level2: what each stage of a streaming design does, as loops over words.

Every builder returns a `func.func` of role "process" whose arguments are its input streams and then its output streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import FunctionType
from xdsl.ir import Block, Operation, Region, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.lines import FEW
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.lowering.folded import Folded, read_constant
from cuvil_hw.errors import Refusal, Unsupported
from cuvil_hw.expr.nodes import Expr, Load
from cuvil_hw.expr.traverse import retype
from cuvil_hw.ir import level2
from cuvil_hw.ir.annotations import Comment, Distance, Role, annotate
from cuvil_hw.lower.emit import Emitter, Env, Tables
from cuvil_hw.schedule.kernel import KernelGraph


def process(
    name: str, comment: str, tables: Tables, layer: int, streams: Sequence[tuple[str, str, int]],
    body: Callable[[Emitter, tuple[SSAValue, ...]], None],
) -> func.FuncOp:  # fmt: skip
    """A process over `streams`: (argument name, dtype, lanes)."""
    types = [level2.stream_type(level2.signless(dtype), lanes) for _, dtype, lanes in streams]
    block = Block(arg_types=types)
    for arg, (hint, _, _) in zip(block.args, streams, strict=True):
        arg.name_hint = hint
    emitter = Emitter(block, tables, layer)
    body(emitter, tuple(block.args))
    emitter.do(func.ReturnOp())
    f = func.FuncOp(name, FunctionType.from_lists(types, []), Region(block))
    annotate(f, Role("process"), Comment(comment))
    return f


def convert(name: str, tables: Tables, dtype: str, words: int, lanes_in: int, lanes_out: int) -> func.FuncOp:
    """Change the number of lanes; one divides the other. `words`: of the wider side."""
    wide, narrow = max(lanes_in, lanes_out), min(lanes_in, lanes_out)

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        w = e.alloca((wide,), dtype, "wide", word=True)
        n = e.alloca((narrow,), dtype, "part", word=True)

        def copy(source: SSAValue, target: SSAValue, count: int, skip: int = 0, to: int = 0) -> None:
            """`count` lanes, from `skip` on, to lanes from `to` on."""

            def lane(i: SSAValue, _: Any) -> None:
                a, b = (e.put(arith.AddiOp(i, e.const(n, "index"))) if n else i for n in (skip, to))
                e.store(e.load(source, a), target, b)

            e.loop(count, "i", lane, unroll=True)

        def one(part: SSAValue) -> None:
            """The wide word moves up by a narrow one a step, so that each lane has one place that it comes from."""
            if lanes_in > lanes_out:
                first = e.compare("eq", part, e.const(0, "index"))
                e.branch(
                    first, lambda: e.do(level2.StreamReadOp(args[0], w)), lambda: copy(w, w, wide - narrow, narrow)
                )
                copy(w, n, narrow)
                e.do(level2.StreamWriteOp(args[1], n))
            else:
                e.do(level2.StreamReadOp(args[0], n))
                copy(w, w, wide - narrow, narrow)
                copy(n, w, narrow, 0, wide - narrow)
                last = e.compare("eq", part, e.const(wide // narrow - 1, "index"))
                e.branch(last, lambda: e.do(level2.StreamWriteOp(args[1], w)))

        e.nest([(words, "word"), (wide // narrow, "part")], lambda at: one(at[1]))

    return process(
        name, f"{lanes_in} → {lanes_out} lanes", tables, 0, [("in", dtype, lanes_in), ("out", dtype, lanes_out)], body
    )


def fork(name: str, tables: Tables, dtype: str, words: int, lanes: int, copies: int) -> func.FuncOp:
    """Copy one stream to several."""

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        w = e.alloca((lanes,), dtype, "word", word=True)

        def one(_: SSAValue, __: Any) -> None:
            e.do(level2.StreamReadOp(args[0], w))
            for out in args[1:]:
                e.do(level2.StreamWriteOp(out, w))

        e.loop(words, "i", one, pipeline=1)

    outs = [(f"out{n}", dtype, lanes) for n in range(copies)]
    return process(name, f"one stream to {copies}", tables, 0, [("in", dtype, lanes), *outs], body)


def drain(name: str, tables: Tables, dtype: str, words: int, lanes: int) -> func.FuncOp:
    """Read a stream to its end."""

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        w = e.alloca((lanes,), dtype, "word", word=True)
        e.loop(words, "i", lambda _, __: e.do(level2.StreamReadOp(args[0], w)), pipeline=1)

    return process(name, "read what no result depends on", tables, 0, [("in", dtype, lanes)], body)


def meets_after(memory: SSAValue, steps: int) -> None:
    """Say that iterations of the loop around it meet in `memory` only so many steps apart."""
    if steps > 1 and isinstance(memory.owner, Operation):
        annotate(memory.owner, Distance(steps))


def native(dtype: str) -> str:
    """The next integer type that machines compute in; others stay."""
    width = dtypes.int_width(dtype)
    return f"i{8 * dtypes.to_numpy(dtype).itemsize}" if width and width[0] else dtype


def fold_index(e: Emitter, outer: SSAValue, extent: int, inner: SSAValue) -> SSAValue:
    """outer · extent + inner."""
    scaled = e.put(arith.MuliOp(outer, e.const(extent, "index"))) if extent != 1 else outer
    return e.put(arith.AddiOp(scaled, inner)) if extent != 1 else scaled


def dense(
    stage: Stage, graph: KernelGraph, tables: Tables, layer: int, pe: int, simd: int, bind: str, sums: bool = False
) -> func.FuncOp:
    """Matrix-vector unit: PE outputs × SIMD inputs a cycle. The window is kept while the outputs are folded over it.
    `sums`: the epilogue is another process, to which the sums go. Weights that stream come a word a step. Groups of
    outputs come one after the other, each with windows of its own, or several at once, whole."""
    each = stage.channels_out // stage.groups
    gang = max(1, pe // each)
    turns = stage.groups // gang
    k, folded = stage.kernel, Folded(stage, graph, pe, simd)
    reduce = k.reduce
    assert reduce is not None
    assert stage.term is not None
    weights = stage.operands[1] if stage.product else None
    source = graph.buffers[stage.sources[0]].type.dtype
    result, given = (_pass_on, reduce.dtype) if sums else (emit_result, k.type.dtype)
    term = stage.term
    # A sum over lanes runs in a native width, where simulators vectorise it; it fits the accumulator by its analysis.
    wide = native(reduce.dtype) if reduce.kind == "sum" else reduce.dtype
    widened = retype(term, reduce.dtype, wide)

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        x = e.alloca((gang * simd,), source, "x", word=True)
        w = e.alloca((pe * simd,), graph.buffers[weights.buffer].type.dtype, "w", word=True) if weights else None
        y = e.alloca((pe,), given, "y", word=True)
        acc = e.alloca((pe,), reduce.dtype, "acc", partition=(0,))
        again = folded.nf > turns and folded.sf > 1  # a window of one word stays in its register
        patch = e.alloca((folded.sf, simd), source, "patch", reshape=(1,)) if again else None

        def fetch(nf: SSAValue, sf: SSAValue) -> None:
            def fresh() -> None:
                e.do(level2.StreamReadOp(args[0], x))
                if patch is not None:
                    e.loop(simd, "s", lambda s, _: e.store(e.load(x, s), patch, sf, s), unroll=True)

            def kept() -> None:
                if patch is not None:
                    e.loop(simd, "s", lambda s, _: e.store(e.load(patch, sf, s), x, s), unroll=True)

            if folded.nf == turns:
                fresh()
            else:
                e.branch(e.compare("eq", nf, e.const(0, "index")), fresh, kept if patch is not None else None)

        def outputs(body: Callable[[SSAValue, SSAValue], None]) -> None:
            """All outputs of a step, with the number of the group among those of the step."""
            if gang == 1:
                e.loop(pe, "p", lambda p, _: body(p, e.const(0, "index")), unroll=True)
                return

            def group(g: SSAValue, _: Any) -> None:
                e.loop(each, "p", lambda p, _: body(fold_index(e, g, each, p), g), unroll=True)

            e.loop(gang, "g", group, unroll=True)

        def step(turn: SSAValue, here: SSAValue, sf: SSAValue) -> None:
            fetch(here, sf)
            nf = fold_index(e, turn, folded.nf // turns, here) if turns > 1 else here
            if w is not None:
                e.do(level2.StreamReadOp(args[1], w))
            flat = fold_index(e, nf, folded.sf, sf) if folded.nf > 1 else sf
            first = e.compare("eq", sf, e.const(0, "index")) if folded.sf > 1 else None

            def start(p: SSAValue) -> SSAValue:
                read = read_constant(folded, k.name, [nf, sf, None, p], flat, "")
                return e.value(reduce.init[0], Env(load=read, lookup=read))

            def around(s: SSAValue, p: SSAValue, g: SSAValue, *states: SSAValue) -> Env:
                constants = read_constant(folded, k.name, [nf, sf, s, p], flat, bind)

                def load(leaf: Load, em: Emitter, env: Env) -> SSAValue:
                    if weights is not None and w is not None and leaf == weights.load:
                        across, along = (s, p) if weights.across_inputs(pe, simd) else (p, s)
                        return em.load(w, fold_index(em, across, pe if across is s else simd, along))
                    if leaf.buffer not in stage.sources:
                        return constants(leaf, em, env)
                    return em.load(x, fold_index(em, g, simd, s) if gang > 1 else s)

                return Env(load=load, lookup=constants, states=states, product=stage.in_term)

            def update(s: SSAValue, p: SSAValue, g: SSAValue, state: SSAValue, term: Expr = term) -> SSAValue:
                return e.value(term, around(s, p, g, state))

            def paired(s: SSAValue, q: SSAValue) -> None:
                pair, low = stage.pair, e.put(arith.MuliOp(q, e.const(2, "index")))
                assert pair is not None
                lanes = low, e.put(arith.AddiOp(low, e.const(1, "index")))
                g = e.const(0, "index")
                shared = e.value(pair.shared, around(s, low, g))
                first, second = (e.value(pair.other, around(s, p, g)) for p in lanes)
                products = level2.MultiplyPairOp(shared, first, second, pair.bits)
                e.do(products)
                for p, product in zip(lanes, products.results, strict=True):
                    total = e.value(term, around(s, p, g, e.load(acc, p)), {id(pair.node): product})
                    e.store(total, acc, p)

            if folded.outputs_inside:

                def begin() -> None:
                    e.loop(pe, "p", lambda p, _: e.store(start(p), acc, p), unroll=True)

                def add(s: SSAValue, _: Any) -> None:
                    if stage.multiplier == "pair":
                        e.loop(pe // 2, "q", lambda q, _: paired(s, q), unroll=True)
                        return
                    outputs(lambda p, g: e.store(update(s, p, g, e.load(acc, p)), acc, p))

                if first is None:
                    begin()
                else:
                    e.branch(first, begin)
                e.loop(simd, "s", add, unroll=True)
            else:

                def lane(p: SSAValue, g: SSAValue) -> None:
                    state = start(p) if first is None else e.put(arith.SelectOp(first, start(p), e.load(acc, p)))
                    state = e.convert(state, reduce.dtype, wide)
                    total = e.loop(
                        simd, "s", lambda s, sums: [update(s, p, g, sums[0], widened)], init=[state], unroll=True
                    )
                    e.store(e.convert(total[0], wide, reduce.dtype), acc, p)

                outputs(lane)

            def finish() -> None:
                e.loop(pe, "p", lambda p, _: result(e, folded, nf, p, e.load(acc, p), y), unroll=True)
                e.do(level2.StreamWriteOp(args[-1], y))

            if first is None:
                finish()
            else:
                e.branch(e.compare("eq", sf, e.const(folded.sf - 1, "index")), finish)

        loops = [(stage.pixels, "pixel"), (turns, "group"), (folded.nf // turns, "nf"), (folded.sf, "sf")]
        e.nest(loops if turns > 1 else [loops[0], *loops[2:]], lambda at: step(at[-3], at[-2], at[-1]))

    comment = f"{', '.join(k.ops)}{' at ' + k.loc if k.loc else ''}: {pe} outputs × {simd} inputs a cycle"
    ins = [("in", source, gang * simd)]
    if weights is not None:
        ins.append(("weights", graph.buffers[weights.buffer].type.dtype, pe * simd))
    return process(k.name, comment, tables, layer, [*ins, ("out", given, pe)], body)


def emit_result(e: Emitter, folded: Folded, nf: SSAValue, p: SSAValue, reduced: SSAValue, y: SSAValue) -> None:
    """The epilogue of one output lane: the kernel's body with its reduction done."""
    k = folded.stage.kernel
    read = read_constant(folded, k.name, [nf, None, None, p], None, "")
    e.store(
        e.value(k.body, Env(load=read, lookup=read, reduce=lambda *_: reduced, product=folded.stage.elsewhere)), y, p
    )


def _pass_on(e: Emitter, folded: Folded, nf: SSAValue, p: SSAValue, reduced: SSAValue, y: SSAValue) -> None:
    """One output lane of a process whose epilogue is another one."""
    e.store(reduced, y, p)


def epilogue(stage: Stage, graph: KernelGraph, tables: Tables, layer: int, lanes: int) -> func.FuncOp:
    """What a stage does with its sums, at a rate of its own."""
    k, folded = stage.kernel, Folded(stage, graph, lanes, 1)
    reduce = k.reduce
    assert reduce is not None

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        x = e.alloca((lanes,), reduce.dtype, "x", word=True)
        y = e.alloca((lanes,), k.type.dtype, "y", word=True)

        def step(nf: SSAValue) -> None:
            e.do(level2.StreamReadOp(args[0], x))
            e.loop(lanes, "p", lambda p, _: emit_result(e, folded, nf, p, e.load(x, p), y), unroll=True)
            e.do(level2.StreamWriteOp(args[1], y))

        e.nest([(stage.pixels, "pixel"), (folded.nf, "nf")], lambda at: step(at[1]))

    streams = [("in", reduce.dtype, lanes), ("out", k.type.dtype, lanes)]
    return process(
        f"{k.name}_epilogue", f"epilogue of {k.name}: {lanes} elements a cycle", tables, layer, streams, body
    )


def running(
    stage: Stage, graph: KernelGraph, tables: Tables, layer: int, pe: int, bind: str, ii: int = 1, sums: bool = False
) -> func.FuncOp:
    """A running value for every output: PE of them a step, one tap after the other. A depthwise stage reads PE channels
    a step, an ordered one an element that all outputs use. `ii`: cycles between two steps; `sums`: as in `dense`."""
    k, folded = stage.kernel, Folded(stage, graph, pe, 1)
    reduce = k.reduce
    assert reduce is not None
    assert stage.term is not None
    source = graph.buffers[stage.sources[0]].type.dtype
    result, given = (_pass_on, reduce.dtype) if sums else (emit_result, k.type.dtype)
    term, last_tap, lanes = stage.term, folded.sf - 1, 1 if stage.ordered else pe
    if stage.floats and any(d.pad for d in stage.dims):
        _check_finite(stage, graph)

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        x = e.alloca((lanes,), source, "x", word=True)
        y = e.alloca((pe,), given, "y", word=True)
        registers = folded.nf <= FEW and not stage.floats
        acc = e.alloca((folded.nf, pe), reduce.dtype, "acc", partition=(0, 1) if registers else (1,))
        if not registers:
            meets_after(acc, folded.nf)

        def step(tap: SSAValue, nf: SSAValue) -> None:
            def fetch() -> None:
                e.do(level2.StreamReadOp(args[0], x))

            if stage.ordered and folded.nf > 1:
                e.branch(e.compare("eq", nf, e.const(0, "index")), fetch)
            else:
                fetch()
            flat = fold_index(e, nf, folded.sf, tap) if folded.nf > 1 else tap
            first = e.compare("eq", tap, e.const(0, "index")) if last_tap else None

            def lane(p: SSAValue, _: Any) -> None:
                one = e.const(0, "index") if stage.ordered else None
                outside = read_constant(folded, k.name, [nf, tap, one, p], flat, "")
                constants = read_constant(folded, k.name, [nf, tap, one, p], flat, bind)
                start = e.value(reduce.init[0], Env(load=outside, lookup=outside))

                def load(leaf: Load, em: Emitter, env: Env) -> SSAValue:
                    if leaf.buffer not in stage.sources:
                        return constants(leaf, em, env)
                    return em.load(x, p if one is None else one)

                begin = start if first is None else e.put(arith.SelectOp(first, start, e.load(acc, nf, p)))
                e.store(
                    e.value(term, Env(load=load, lookup=constants, states=(begin,), product=stage.in_term)), acc, nf, p
                )

            e.loop(pe, "p", lane, unroll=True)

            def finish() -> None:
                e.loop(pe, "p", lambda p, _: result(e, folded, nf, p, e.load(acc, nf, p), y), unroll=True)
                e.do(level2.StreamWriteOp(args[1], y))

            if first is None:
                finish()
            else:
                e.branch(e.compare("eq", tap, e.const(last_tap, "index")), finish)

        loops = [(stage.pixels, "pixel"), (folded.sf, "sf" if stage.ordered else "tap"), (folded.nf, "nf")]
        e.nest(loops, lambda at: step(at[1], at[2]), ii)

    often = "a cycle" if ii == 1 else f"in {ii} cycles"
    what = f"{pe} {'outputs' if stage.ordered else 'channels'} {often}"
    comment = f"{', '.join(k.ops)}{' at ' + k.loc if k.loc else ''}: {what}"
    return process(k.name, comment, tables, layer, [("in", source, lanes), ("out", given, pe)], body)


def _check_finite(stage: Stage, graph: KernelGraph) -> None:
    """Padding streams in as zeros, which add nothing unless a weight isn't finite. Raises Unsupported for those."""
    for name in stage.kernel.inputs:
        if name not in stage.sources and not np.isfinite(graph.constant(name)).all():
            why = "its weights hold infinities or NaN, and its padding is streamed as zeros; give it finite weights"
            raise Unsupported([Refusal(stage.kernel.ops[0], why, 1, (stage.kernel.loc,))], graph.name)

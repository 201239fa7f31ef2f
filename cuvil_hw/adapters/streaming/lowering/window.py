"""The sliding-window generator: a ring of rows on chip turns a raster stream into windows, one word a step.

One flat loop. Which steps read a word and which give one is fixed (analysis/pace.py), so that the order of reads and
writes is the same whoever waits for whom.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.pace import DISTANCE, Schedule
from cuvil_hw.adapters.streaming.analysis.ring import Ring
from cuvil_hw.adapters.streaming.analysis.stage import Stage, WindowDim
from cuvil_hw.adapters.streaming.lowering.process import meets_after, process
from cuvil_hw.adapters.streaming.lowering.registers import Register, count
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Tables


def window(name: str, stage: Stage, dtype: str, tables: Tables, lanes: int) -> func.FuncOp:
    """Words of every window in the order (pixel, taps, channels); cells outside the input hold the stage's pad
    value."""
    r = Ring.of(stage, lanes)
    y, x, plan = r.y, r.x, r.schedule
    wraps = plan.rows < y.size  # else the ring holds the whole input

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        word = e.alloca((lanes,), dtype, "word", word=True)
        out = e.alloca((lanes,), dtype, "tap_word", word=True)
        rows = e.alloca(
            (plan.rows, r.row_words, lanes),
            dtype,
            "rows",
            reshape=(2,),
        )
        meets_after(rows, DISTANCE)
        slot, at = Register(e, "slot", plan.rows), Register(e, "at", r.row_words)  # where the next word goes
        top = Register(e, "top", plan.rows, -y.pad % plan.rows)  # where the window's first row lies
        beat = Register(e, "beat", plan.period)
        oy, ox, ky, kx, c = (
            Register(e, name, extent)
            for name, extent in (("oy", y.out), ("ox", x.out), ("ky", y.kernel), ("kx", x.kernel), ("c", r.fold))
        )

        def index(value: int) -> SSAValue:
            return e.const(value, "index")

        def lookup() -> None:
            """The word under the tap."""
            row, column = position(e, oy.index(), ky.index(), y), position(e, ox.index(), kx.index(), x)
            checks = [*outside(e, row, y), *outside(e, column, x)]
            cell = e.put(arith.AddiOp(times(e, column, r.fold), c.index())) if r.fold > 1 else column
            place = row
            if wraps:
                below = e.put(arith.AddiOp(top.index(), times(e, ky.index(), y.dilation)))
                around = e.put(arith.SubiOp(below, index(plan.rows)))
                place = e.put(arith.SelectOp(e.compare("ge", below, index(plan.rows)), around, below))

            def copy() -> None:
                e.loop(lanes, "l", lambda i, _: e.store(e.load(rows, place, cell, i), out, i), unroll=True)

            def pad() -> None:
                e.loop(lanes, "l", lambda i, _: e.store(e.const(stage.pad_value, dtype), out, i), unroll=True)

            if checks:
                bad = checks[0]
                for more in checks[1:]:
                    bad = e.put(arith.OrIOp(bad, more))
                e.branch(bad, pad, copy)
            else:
                copy()

        def read() -> None:
            e.do(level2.StreamReadOp(args[0], word))
            row, place = slot.index(), at.index()
            e.loop(lanes, "l", lambda i, _: e.store(e.load(word, i), rows, row, place, i), unroll=True)
            count(e, [slot, at])

        def give() -> None:
            e.do(level2.StreamWriteOp(args[1], out))
            count(e, [oy, ox, ky, kx, c], {1: lambda: top.advance(y.stride % plan.rows)} if wraps else {})

        def start_over() -> None:
            slot.reset()
            top.reset()

        def step(t: SSAValue, _: Any) -> None:
            lookup()
            reads, gives = turns(e, t, beat, plan)
            e.branch(reads, read)
            e.branch(gives, give)
            if wraps:
                e.branch(e.compare("eq", t, index(plan.steps - 1)), start_over)

        e.loop(plan.steps, "t", step, pipeline=1)

    comment = f"windows of {stage.kernel.name}: {y.kernel}×{x.kernel} over {y.size}×{x.size}, {lanes} channels a cycle"
    return process(name, comment, tables, 0, [("in", dtype, lanes), ("out", dtype, lanes)], body)


def times(e: Emitter, a: SSAValue, k: int) -> SSAValue:
    return e.put(arith.MuliOp(a, e.const(k, "index"))) if k != 1 else a


def position(e: Emitter, o: SSAValue, k: SSAValue, d: WindowDim) -> SSAValue:
    """Input coordinate under tap `k` of output `o`."""
    at = e.put(arith.AddiOp(times(e, o, d.stride), times(e, k, d.dilation)))
    return e.put(arith.SubiOp(at, e.const(d.pad, "index"))) if d.pad else at


def outside(e: Emitter, at: SSAValue, d: WindowDim) -> list[SSAValue]:
    """Conditions under which a coordinate misses the input; none when it can't."""
    checks = []
    if d.pad:
        checks.append(e.compare("lt", at, e.const(0, "index")))
    if (d.out - 1) * d.stride - d.pad + d.span > d.size:
        checks.append(e.compare("ge", at, e.const(d.size, "index")))
    return checks


def turns(e: Emitter, t: SSAValue, beat: Register, plan: Schedule) -> tuple[SSAValue, SSAValue]:
    """Whether step `t` reads a word and whether it gives one: so many of a period's steps, evenly spread."""

    def at(op: str, step: int) -> SSAValue:
        return e.compare(op, t, e.const(step, "index"))

    main = at("ge", plan.lead)
    if plan.last < plan.steps:
        main = e.put(arith.AndIOp(main, at("lt", plan.last)))
    fewer = min(plan.reads, plan.emits)
    if fewer == plan.period:
        turn = main
    else:
        turn = e.branch(main, lambda: [beat.advance(fewer)], lambda: [e.const(False, "bool")])[0]
    if plan.reads > plan.emits:
        return at("lt", plan.stop) if plan.stop < plan.steps else e.const(True, "bool"), turn
    if plan.stop < plan.steps:
        turn = e.put(arith.AndIOp(turn, at("lt", plan.stop)))
    others = at("lt", min(plan.lead, plan.stop))
    if plan.last < plan.steps:
        others = e.put(arith.OrIOp(others, at("ge", plan.last)))
    return e.put(arith.OrIOp(turn, others)), main

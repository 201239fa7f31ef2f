"""The sliding-window generator: a ring of rows on chip turns a raster stream into windows, one word a cycle.

While the windows of one output row leave, the rows that the next one needs come in, evenly spread over the row: reading
and writing share the loop, and neither has to wait for a burst of the other.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.ring import Ring, ring
from cuvil_hw.adapters.streaming.analysis.stage import Dim, Stage
from cuvil_hw.adapters.streaming.lowering.process import process
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Tables


def window(name: str, stage: Stage, dtype: str, tables: Tables, lanes: int) -> func.FuncOp:
    """Words of every window in the order (pixel, taps, channels); cells outside the input hold the stage's pad
    value."""
    r = ring(stage, lanes)
    y, x = r.y, r.x

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        word = e.alloca((lanes,), dtype, "word", word=True)
        out = e.alloca((lanes,), dtype, "tap_word", word=True)
        rows = e.alloca(
            (r.rows, r.row_words, lanes),
            dtype,
            "rows",
            bind="bram" if r.rows * r.row_words > 64 else "lutram",
            reshape=(2,),
            independent=True,
        )
        slot = e.alloca((), "i32", "next_slot")

        def index(value: int) -> SSAValue:
            return e.const(value, "index")

        e.store(e.const(0, "i32"), slot)

        def count(register: SSAValue, end: int) -> None:
            following = e.put(arith.AddiOp(e.load(register), e.const(1, "i32")))
            wraps = e.compare("eq", following, e.const(end, "i32"), "i32")
            e.store(e.put(arith.SelectOp(wraps, e.const(0, "i32"), following)), register)

        def take(at: SSAValue) -> None:
            """One word from the stream into the row that is being filled."""
            e.do(level2.StreamReadOp(args[0], word))
            row = e.put(arith.IndexCastOp(e.load(slot), index(0).type))
            e.loop(lanes, "l", lambda i, _: e.store(e.load(word, i), rows, row, at, i), unroll=True)

            def advance() -> None:
                count(slot, r.rows)

            e.branch(e.compare("eq", at, index(r.row_words - 1)), advance)

        def fill(count: int, name: str) -> None:
            if count:
                e.nest([(count, name), (r.row_words, "i")], lambda at: take(at[1]))

        fill(r.loaded(0), "row")
        pending = e.alloca((), "i32", "pending")  # words still to take during this output row
        at = e.alloca((), "i32", "at")  # where in the row the next one goes
        beat = e.alloca((), "i32", "beat")  # counts the words between two that come in

        def emit(oy: SSAValue, ox: SSAValue, ky: SSAValue, kx: SSAValue, c: SSAValue) -> None:
            def arrive() -> None:
                place = e.put(arith.IndexCastOp(e.load(at), index(0).type))
                take(place)
                e.store(e.put(arith.SubiOp(e.load(pending), e.const(1, "i32"))), pending)
                count(at, r.row_words)

            due = e.compare("ne", e.load(pending), e.const(0, "i32"), "i32")
            if r.spread > 1:
                due = e.put(arith.AndIOp(due, e.compare("eq", e.load(beat), e.const(0, "i32"), "i32")))
            e.branch(due, arrive)
            if r.spread > 1:
                count(beat, r.spread)
            row = position(e, oy, ky, y)
            column = position(e, ox, kx, x)
            checks = [*outside(e, row, y), *outside(e, column, x)]
            cell = e.put(arith.AddiOp(times(e, column, r.fold), c)) if r.fold > 1 else column
            ring_row = e.put(arith.RemUIOp(row, index(r.rows))) if r.rows < y.size else row

            def copy() -> None:
                e.loop(lanes, "l", lambda i, _: e.store(e.load(rows, ring_row, cell, i), out, i), unroll=True)

            def pad() -> None:
                e.loop(lanes, "l", lambda i, _: e.store(e.const(stage.pad_value, dtype), out, i), unroll=True)

            if checks:
                bad = checks[0]
                for more in checks[1:]:
                    bad = e.put(arith.OrIOp(bad, more))
                e.branch(bad, pad, copy)
            else:
                copy()
            e.do(level2.StreamWriteOp(args[1], out))

        def output_row(oy: SSAValue, _: Any) -> None:
            e.store(arriving(e, oy, r), pending)
            e.store(e.const(0, "i32"), at)
            e.store(e.const(0, "i32"), beat)
            loops = [(x.out, "ox"), (y.kernel, "ky"), (x.kernel, "kx"), (r.fold, "c")]
            e.nest(loops, lambda i: emit(oy, *i))
            start = e.put(arith.IndexCastOp(e.load(at), index(0).type))
            rest = e.put(arith.IndexCastOp(e.load(pending), index(0).type))

            def late(i: SSAValue, _: Any) -> None:
                place = e.put(arith.AddiOp(start, i))
                take(e.put(arith.RemUIOp(place, index(r.row_words))))

            e.loop(rest, "late", late, pipeline=1)

        e.loop(y.out, "oy", output_row)
        drain = y.size - r.loaded(y.out - 1)
        if drain:
            e.loop(drain * r.row_words, "unused", lambda _, __: e.do(level2.StreamReadOp(args[0], word)), pipeline=1)

    comment = f"windows of {stage.kernel.name}: {y.kernel}×{x.kernel} over {y.size}×{x.size}, {lanes} channels a cycle"
    return process(name, comment, tables, 0, [("in", dtype, lanes), ("out", dtype, lanes)], body)


def times(e: Emitter, a: SSAValue, k: int) -> SSAValue:
    return e.put(arith.MuliOp(a, e.const(k, "index"))) if k != 1 else a


def position(e: Emitter, o: SSAValue, k: SSAValue, d: Dim) -> SSAValue:
    """Input coordinate under tap `k` of output `o`."""
    at = e.put(arith.AddiOp(times(e, o, d.stride), times(e, k, d.dilation)))
    return e.put(arith.SubiOp(at, e.const(d.pad, "index"))) if d.pad else at


def outside(e: Emitter, at: SSAValue, d: Dim) -> list[SSAValue]:
    """Conditions under which a coordinate misses the input; none when it can't."""
    checks = []
    if d.pad:
        checks.append(e.compare("lt", at, e.const(0, "index")))
    if (d.out - 1) * d.stride - d.pad + d.span > d.size:
        checks.append(e.compare("ge", at, e.const(d.size, "index")))
    return checks


def arriving(e: Emitter, oy: SSAValue, r: Ring) -> SSAValue:
    """Words to take while output row `oy` leaves: those that row oy + 1 needs and that aren't in yet."""
    y = r.y
    counts = [(r.loaded(o + 1) - r.loaded(o)) * r.row_words if o + 1 < y.out else 0 for o in range(y.out)]
    if len(set(counts)) == 1:
        return e.const(counts[0], "i32")
    return e.load(e.table(counts, "i32", "arriving"), oy)

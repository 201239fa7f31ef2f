"""The generator of whole windows: lines of the input in a memory and the columns of a window in registers.

One flat loop. Every step moves the window on by a word; which steps give one is fixed (analysis/lines.py). What cells
outside of the input hold is masked, so that nothing is cleared between samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.lines import FEW, Lines
from cuvil_hw.adapters.streaming.analysis.stage import Stage
from cuvil_hw.adapters.streaming.lowering.process import meets_after, process
from cuvil_hw.adapters.streaming.lowering.registers import Register, count
from cuvil_hw.adapters.streaming.lowering.window import outside, position, times
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Tables


class Shifted:
    """What `target` held, `extent` elements of it, when a place came last: moved on by `more` elements a step, which
    come at its end. Lies in registers where places come again too soon for a memory."""

    def __init__(self, e: Emitter, name: str, places: int, extent: int, more: int, dtype: str) -> None:
        self._e, self._extent, self._more = e, extent, more
        self.target = e.alloca((extent + more,), dtype, f"{name}_now", partition=(0,))
        self._memory = None
        if extent and places <= FEW:
            self._memory = e.alloca((places, extent), dtype, name, partition=(0, 1))
        elif extent:
            self._memory = e.alloca((places, extent), dtype, name, reshape=(1,))
            meets_after(self._memory, places)

    def take(self, place: SSAValue, newest: Callable[[int], None]) -> None:
        """`newest` stores what is new, from an element of `target` on."""
        e, memory, target = self._e, self._memory, self.target
        newest(self._extent)
        if memory is None:
            return
        e.loop(self._extent, "i", lambda i, _: e.store(e.load(memory, place, i), target, i), unroll=True)

        def back(i: SSAValue, _: Any) -> None:
            moved = e.put(arith.AddiOp(i, e.const(self._more, "index")))
            e.store(e.load(target, moved), memory, place, i)

        e.loop(self._extent, "i", back, unroll=True)


def whole_windows(name: str, stage: Stage, dtype: str, tables: Tables, lanes: int) -> func.FuncOp:
    """A word for each window and word of a pixel: (taps, lanes). Cells outside the input hold the stage's pad value."""
    made = Lines.of(stage, lanes)
    y, x, fold = made.y, made.x, made.fold
    tall = y.kernel * lanes  # elements of a window's column
    width = x.kernel * tall

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        word = e.alloca((lanes,), dtype, "word", word=True)
        out = e.alloca((width,), dtype, "window_word", word=True)
        rows = Shifted(e, "rows", made.row_words, (y.span - 1) * lanes, lanes, dtype)
        columns = Shifted(e, "columns", fold, (x.span - 1) * tall, tall, dtype)
        at, c = Register(e, "at", made.row_words), Register(e, "c", fold)
        oy, ox = Register(e, "oy", y.out), Register(e, "ox", made.turn)  # ox: columns since the row's first window
        beat = Register(e, "beat", x.stride)

        def index(value: int) -> SSAValue:
            return e.const(value, "index")

        def plus(a: SSAValue, b: SSAValue) -> SSAValue:
            return e.put(arith.AddiOp(a, b))

        def row(first: int) -> None:
            e.loop(lanes, "i", lambda i, _: e.store(e.load(word, i), rows.target, plus(i, index(first))), unroll=True)

        def column(first: int) -> None:
            def part(k: SSAValue, _: Any) -> None:
                def lane(i: SSAValue, _: Any) -> None:
                    value = e.load(rows.target, plus(times(e, k, y.dilation * lanes), i))
                    e.store(value, columns.target, plus(plus(times(e, k, lanes), i), index(first)))

                e.loop(lanes, "i", lane, unroll=True)

            e.loop(y.kernel, "ky", part, unroll=True)

        def cell(ky: SSAValue, kx: SSAValue) -> None:
            place = plus(ox.index(), times(e, kx, x.dilation))
            across = e.put(arith.SubiOp(place, index(x.pad))) if x.pad else place
            checks = [*outside(e, position(e, oy.index(), ky, y), y), *outside(e, across, x)]
            source = plus(times(e, kx, x.dilation * tall), times(e, ky, lanes))
            target = plus(times(e, ky, x.kernel * lanes), times(e, kx, lanes))

            def fill(value: Callable[[SSAValue], SSAValue]) -> None:
                e.loop(lanes, "i", lambda i, _: e.store(value(i), out, plus(target, i)), unroll=True)

            def inside() -> None:
                fill(lambda i: e.load(columns.target, plus(source, i)))

            if not checks:
                inside()
                return
            bad = checks[0]
            for more in checks[1:]:
                bad = e.put(arith.OrIOp(bad, more))
            e.branch(bad, lambda: fill(lambda _: e.const(stage.pad_value, dtype)), inside)

        def give() -> None:
            def part(ky: SSAValue, _: Any) -> None:
                e.loop(x.kernel, "kx", lambda kx, _: cell(ky, kx), unroll=True)

            e.loop(y.kernel, "ky", part, unroll=True)
            e.do(level2.StreamWriteOp(args[1], out))

        def step(t: SSAValue, _: Any) -> None:
            def read() -> None:
                e.do(level2.StreamReadOp(args[0], word))

            if made.words < made.steps:
                e.branch(e.compare("lt", t, index(made.words)), read)
            else:
                read()
            rows.take(at.index(), row)
            columns.take(c.index(), column)
            begun = e.compare("ge", t, index(made.first))
            gives, ends = begun, (x.out - 1) * x.stride + 1
            if x.stride > 1:
                gives = e.put(arith.AndIOp(gives, beat.is_first()))
            if ends < made.turn:
                gives = e.put(arith.AndIOp(gives, e.compare("lt", ox.index(), index(ends))))
            e.branch(gives, give)

            def move() -> None:
                beat.advance(1)
                count(e, [oy, ox], {1: beat.reset})

            count(e, [at])
            count(e, [c], {0: lambda: e.branch(begun, move)})
            if made.steps % made.row_words or made.steps - made.first != y.out * made.turn * fold:
                e.branch(e.compare("eq", t, index(made.steps - 1)), start_over)

        def start_over() -> None:
            for register in (at, oy, ox, beat):
                register.reset()

        e.loop(made.steps, "t", step, pipeline=1)

    comment = f"whole windows of {stage.kernel.name}: {y.kernel}×{x.kernel} over {y.size}×{x.size}, {lanes} channels"
    return process(name, comment, tables, 0, [("in", dtype, lanes), ("out", dtype, width)], body)

"""The process in front of a stage that wants the elements of a source in another order than they come in.

One flat loop around a ring of words: which steps read a word and which give one is fixed (analysis/pace.py), and the
place of the word that is given is a sum of one number for each counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.access import Table, Words, slope
from cuvil_hw.adapters.streaming.analysis.exact import narrowest
from cuvil_hw.adapters.streaming.analysis.pace import DISTANCE
from cuvil_hw.adapters.streaming.lowering.process import fold_index, meets_after, process
from cuvil_hw.adapters.streaming.lowering.registers import Register, count
from cuvil_hw.adapters.streaming.lowering.window import times, turns
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import INDEX, Emitter, Tables


def feed(name: str, words: Words, dtype: str, tables: Tables, gap: float | int = 0) -> func.FuncOp:
    """Words of a stream in another order and width. `gap`: what lanes hold where there is no element."""
    plan, (wide, lanes) = words.schedule, words.lanes
    wraps = plan.rows < words.total  # else the ring holds the whole input

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        word = e.alloca((wide,), dtype, "word", word=True)
        out = e.alloca((lanes,), dtype, "given", word=True)
        ring = e.alloca((plan.rows, wide), dtype, "ring", reshape=(1,))
        meets_after(ring, DISTANCE)
        cell = e.alloca((wide,), dtype, "cell", partition=(0,)) if len(words.ways) > 1 else ring
        slot = Register(e, "slot", plan.rows)  # where the next word goes
        lap = Register(e, "lap", words.total // plan.rows + 1)  # how often it went around
        beat = Register(e, "beat", plan.period)
        digits = [Register(e, f"n{d}", extent) for d, extent in enumerate(words.extents)]

        def index(value: int) -> SSAValue:
            return e.const(value, "index")

        def place() -> SSAValue:
            """Where the word lies that is given: the writer went around once more than it, or as often."""
            at = _total(e, f"{name}_place", digits, words.places, words.start)
            if not wraps:
                return at
            since = e.put(arith.SubiOp(at, times(e, lap.index(), plan.rows)))
            before = e.put(arith.AddiOp(since, index(plan.rows)))
            return e.put(arith.SelectOp(e.compare("lt", since, index(0)), before, since))

        def lookup() -> None:
            at = place()

            def copy() -> None:
                if len(words.ways) == 1:
                    _copy(e, words.ways[0][1], lambda i: e.load(ring, at, i), out)
                    return
                e.loop(wide, "l", lambda i, _: e.store(e.load(ring, at, i), cell, i), unroll=True)
                way = _total(e, f"{name}_way", digits, words.keys, 0)

                def choose(ways: Sequence[tuple[int, Table]]) -> None:
                    (number, lanes_from), *others = ways

                    def take() -> None:
                        _copy(e, lanes_from, lambda i: e.load(cell, i), out)

                    if others:
                        e.branch(e.compare("eq", way, index(number)), take, lambda: choose(others))
                    else:
                        take()

                choose(words.ways)

            def fill() -> None:
                e.loop(lanes, "l", lambda i, _: e.store(e.const(gap, dtype), out, i), unroll=True)

            if not words.gaps:
                copy()
                return
            there = [_holds(e, f"{name}_inside", digits, ds, table) for ds, table in words.gaps]
            inside = there[0]
            for more in there[1:]:
                inside = e.put(arith.AndIOp(inside, more))
            e.branch(inside, copy, fill)

        def read() -> None:
            e.do(level2.StreamReadOp(args[0], word))
            at = slot.index()
            e.loop(wide, "l", lambda i, _: e.store(e.load(word, i), ring, at, i), unroll=True)
            count(e, [lap, slot])

        def give() -> None:
            e.do(level2.StreamWriteOp(args[1], out))
            count(e, digits)

        def start_over() -> None:
            slot.reset()
            lap.reset()

        def step(t: SSAValue, _: Any) -> None:
            reads, gives = turns(e, t, beat, plan)
            e.branch(gives, lookup)
            e.branch(reads, read)
            e.branch(gives, give)
            if wraps:
                e.branch(e.compare("eq", t, index(plan.steps - 1)), start_over)

        e.loop(plan.steps, "t", step, pipeline=1)

    comment = f"another order of {words.total} words of {wide}: {words.given} words of {lanes}"
    return process(name, comment, tables, 0, [("in", dtype, wide), ("out", dtype, lanes)], body)


def _total(e: Emitter, hint: str, digits: Sequence[Register], parts: Sequence[Table], start: int) -> SSAValue:
    """`start` and what each digit adds."""
    total = e.const(start, "index")
    for digit, table in zip(digits, parts, strict=True):
        if not any(table):
            continue
        by = slope(table)
        if by is not None:
            term = times(e, digit.index(), by)
        else:
            data = np.array(table, np.int32)
            memory = e.table(data, "i32", hint, stored=narrowest(min(table), max(table)))
            term = e.put(arith.IndexCastOp(e.load(memory, digit.index()), INDEX))
        total = e.put(arith.AddiOp(total, term))
    return total


def _holds(e: Emitter, hint: str, digits: Sequence[Register], which: Sequence[int], table: Table) -> SSAValue:
    """Whether there is an element, by a table over some digits."""
    at = e.const(0, "index")
    for d in which:
        at = fold_index(e, at, digits[d].extent, digits[d].index())
    return e.load(e.table(np.array(table, bool), "bool", hint), at)


def _copy(e: Emitter, lanes_from: Table, load: Any, out: SSAValue) -> None:
    """Lane after lane of the word given: loops where their places rise evenly, in one or two steps."""
    lanes = len(lanes_from)
    for inner in (n for n in range(lanes, 0, -1) if lanes % n == 0):
        table = np.array(lanes_from).reshape(-1, inner)
        by, over = ([int(t[1]) if len(t) > 1 else 0] for t in (table[0] - table[0, 0], table[:, 0] - table[0, 0]))
        grid = int(table[0, 0]) + over[0] * np.arange(lanes // inner)[:, None] + by[0] * np.arange(inner)
        if (grid == table).all():
            break
    else:
        for lane, source in enumerate(lanes_from):
            e.store(load(e.const(source, "index")), out, e.const(lane, "index"))
        return

    def plus(a: SSAValue, b: SSAValue) -> SSAValue:
        return e.put(arith.AddiOp(a, b))

    def row(j: SSAValue, _: Any) -> None:
        first = plus(times(e, j, over[0]), e.const(int(table[0, 0]), "index"))

        def lane(i: SSAValue, _: Any) -> None:
            at = i if lanes == inner and by[0] == 1 and not table[0, 0] else plus(first, times(e, i, by[0]))
            e.store(load(at), out, i if lanes == inner else plus(times(e, j, inner), i))

        e.loop(inner, "l", lane, unroll=True)

    e.loop(lanes // inner, "part", row, unroll=True)

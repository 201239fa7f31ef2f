"""What stands between a stream and a stage that reads it otherwise than as it comes: a process that lets a part pass,
and one that stores a block and gives its words in another order, as often as the stage reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from functools import reduce as folded
from typing import Any

from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.operand import Level, Reorder
from cuvil_hw.adapters.streaming.analysis.pace import DISTANCE
from cuvil_hw.adapters.streaming.lowering.process import meets_after, process
from cuvil_hw.adapters.streaming.lowering.registers import Register, count
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Tables


def part(name: str, dtype: str, tables: Tables, levels: Sequence[Level], lanes: int) -> func.FuncOp:
    """Read a whole stream and pass on a part of it. `levels`: in elements."""
    *outer, last = levels
    words = [*outer, Level(last.period // lanes, last.first // lanes, last.count // lanes)]

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        word = e.alloca((lanes,), dtype, "word", word=True)

        def step(at: Sequence[SSAValue]) -> None:
            e.do(level2.StreamReadOp(args[0], word))
            inside = []
            for digit, level in zip(at, words, strict=True):
                if level.first:
                    inside.append(e.compare("ge", digit, e.const(level.first, "index")))
                if level.first + level.count < level.period:
                    inside.append(e.compare("lt", digit, e.const(level.first + level.count, "index")))
            passes = folded(lambda a, b: e.put(arith.AndIOp(a, b)), inside)
            e.branch(passes, lambda: e.do(level2.StreamWriteOp(args[1], word)))

        e.nest([(level.period, f"d{n}") for n, level in enumerate(words)], step)

    comment = f"a part of a stream, {lanes} elements a cycle"
    return process(name, comment, tables, 0, [("in", dtype, lanes), ("out", dtype, lanes)], body)


def reorder(name: str, dtype: str, tables: Tables, plan: Reorder) -> func.FuncOp:
    """Store a block, then give its words as they are wanted."""
    depth, lanes, banks = plan.words // plan.banks, plan.lanes, plan.banks
    wide = banks * lanes
    first = plan.words + plan.idle

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        word = e.alloca((lanes,), dtype, "word", word=True)
        out = e.alloca((wide,), dtype, "given", word=True)
        held = e.alloca((banks, depth, lanes), dtype, "held", partition=(0,) if banks > 1 else (), reshape=(2,))
        meets_after(held, DISTANCE)
        # Where the next word goes: turns of the banks, bank, word between two turns.
        turn, bank, below = (
            Register(e, n, extent)
            for n, extent in (("turn", depth // plan.below), ("bank", banks), ("below", plan.below))
        )
        digits = [Register(e, f"d{n}", extent) for n, (extent, _) in enumerate(plan.loops)]

        def index(value: int) -> SSAValue:
            return e.const(value, "index")

        def read() -> None:
            e.do(level2.StreamReadOp(args[0], word))
            place = _sum(e, [(turn, plan.below), (below, 1)])

            def store(b: int) -> None:
                e.loop(lanes, "l", lambda i, _: e.store(e.load(word, i), held, index(b), place, i), unroll=True)

            at = bank.index()
            for b in range(banks):
                if banks == 1:
                    store(b)
                else:
                    e.branch(e.compare("eq", at, index(b)), partial(store, b))
            count(e, [turn, bank, below])

        def give() -> None:
            place = _sum(e, [(d, step) for d, (_, step) in zip(digits, plan.loops, strict=True) if step])
            for b in range(banks):

                def lane(i: SSAValue, _: Any, b: int = b) -> None:
                    to = e.put(arith.AddiOp(i, index(b * lanes))) if b else i
                    e.store(e.load(held, index(b), place, i), out, to)

                e.loop(lanes, "l", lane, unroll=True)
            e.do(level2.StreamWriteOp(args[1], out))
            count(e, digits)

        def step(at: Sequence[SSAValue]) -> None:
            t = at[1]
            e.branch(e.compare("lt", t, index(plan.words)), read)
            e.branch(e.compare("ge", t, index(first)), give)

        e.nest([(plan.blocks, "block"), (first + plan.given, "t")], step)

    comment = f"{plan.words} words of {lanes} stored, then {plan.given} of {wide} given; {plan.blocks} times a sample"
    return process(name, comment, tables, 0, [("in", dtype, lanes), ("out", dtype, wide)], body)


def _sum(e: Emitter, parts: Sequence[tuple[Register, int]]) -> SSAValue:
    """Σ register · step."""
    scaled = [e.put(arith.MuliOp(r.index(), e.const(n, "index"))) if n != 1 else r.index() for r, n in parts]
    return folded(lambda a, b: e.put(arith.AddiOp(a, b)), scaled) if scaled else e.const(0, "index")

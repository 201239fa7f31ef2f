"""The process that adds channels behind a port, or drops them before one (analysis/border.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.analysis.fold import Folding
from cuvil_hw.adapters.streaming.lowering.process import process
from cuvil_hw.ir import level2
from cuvil_hw.lower.emit import Emitter, Tables


def border(folding: Folding, tables: Tables, layer: int) -> func.FuncOp:
    """A word a step on each side, as long as it has words. What a port fills up the last word with is 0, and what it
    finds there it drops."""
    stage, k = folding.stage, folding.stage.kernel
    lanes_in, lanes_out = folding.lanes
    reads, gives = (-(-n // lanes) for n, lanes in ((stage.channels_in, lanes_in), (stage.channels_out, lanes_out)))
    dtype = k.type.dtype

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        x = e.alloca((lanes_in,), dtype, "x", word=True)
        y = e.alloca((lanes_out,), dtype, "y", word=True)

        def while_left(at: SSAValue, words: int, then: Callable[[], None], other: Callable[[], None] | None) -> None:
            if words == max(reads, gives):
                then()
            else:
                e.branch(e.compare("lt", at, e.const(words, "index")), then, other)

        def zeros(first: int = 0) -> None:
            for lane in range(first, lanes_out):
                e.store(e.const(0, dtype), y, e.const(lane, "index"))

        def take() -> None:
            e.do(level2.StreamReadOp(args[0], x))
            e.loop(min(lanes_in, lanes_out), "l", lambda i, _: e.store(e.load(x, i), y, i), unroll=True)
            zeros(lanes_in)

        def step(at: Sequence[SSAValue]) -> None:
            while_left(at[1], reads, take, zeros)
            while_left(at[1], gives, lambda: e.do(level2.StreamWriteOp(args[1], y)), None)

        e.nest([(stage.pixels, "pixel"), (max(reads, gives), "word")], step)

    comment = f"{stage.channels_in} → {stage.channels_out} channels: {folding.pe} elements a cycle"
    return process(k.name, comment, tables, layer, [("in", dtype, lanes_in), ("out", dtype, lanes_out)], body)

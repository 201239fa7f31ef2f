"""Room in FIFOs for what pipelines delay: level2's depths are those of processes that give a word when they take one.

Where a stream joins others that took a longer way, the words that come meanwhile have to wait in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.rtl.pipeline import Staged
from cuvil_hw.ir.annotations import Fifo, text_of
from cuvil_hw.ir.level2 import AxisReadOp, AxisWriteOp, StreamOp

PORT = 3  # cycles of an AXI4-Stream end


def depths(top: func.FuncOp, plans: Mapping[str, Staged]) -> dict[StreamOp, int]:
    """Words of each FIFO. `plans`: of processes by their symbols."""
    streams = [op for op in top.body.block.ops if isinstance(op, StreamOp)]
    period = max([p.step.steps * p.ii for p in plans.values()], default=1)  # cycles of a sample, at least
    written, began = arrivals(top, plans)
    result = {}
    for op in streams:
        late = began.get(op.output, 0) - written.get(op.output, 0)
        words = op.words.value.data if op.words is not None else period
        result[op] = op.depth.value.data + (-(-late * words // period) if late > 0 else 0)
    return result


def arrivals(top: func.FuncOp, plans: Mapping[str, Staged]) -> tuple[dict[SSAValue, int], dict[SSAValue, int]]:
    """By stream, cycles on the longest way from the input of a sample until a word is in it, and until its reader takes
    it, where processes wait for nothing but words."""
    written: dict[SSAValue, int] = {}  # cycles from the input of a sample to a stream
    began: dict[SSAValue, int] = {}  # ... to when its reader takes it
    for op in top.body.block.ops:
        match op:
            case AxisReadOp():
                written.update(dict.fromkeys((v for v in (op.stream, op.ends) if v is not None), PORT))
            case AxisWriteOp():
                ins = [v for v in (op.stream, op.ends) if v is not None]
                began.update(dict.fromkeys(ins, max(written[v] for v in ins)))
            case func.CallOp():
                plan = plans[op.callee.root_reference.data]
                ins, outs = list(op.arguments[: len(plan.reads)]), list(op.arguments[len(plan.reads) :])
                start = max((written[v] for v in ins), default=0)
                began.update(dict.fromkeys(ins, start))
                written.update(dict.fromkeys(outs, start + plan.last + 1))
                written |= {v: written[v] + 1 + _slow(v) for v in outs}
    return written, began


def _slow(stream: SSAValue) -> int:
    """Block memory shows a word one cycle later."""
    return int(isinstance(stream.owner, StreamOp) and text_of(stream.owner, Fifo) == "bram")

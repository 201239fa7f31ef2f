"""The AXI4-Stream ports of a design as processes at level2: when the loops of `hls/cuvil_hls.h` move words."""

from __future__ import annotations

from math import gcd

from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.lowering.process import process
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.ir import level2
from cuvil_hw.ir.level2 import AxisReadOp, AxisType, AxisWriteOp, StreamType
from cuvil_hw.lower.emit import Emitter, Tables


def port(op: AxisReadOp | AxisWriteOp) -> func.FuncOp:
    """A process over words of the bus, the port's stream, and the stream of ends if there is one."""
    kind, bus = op.stream.type, op.port.type
    assert isinstance(kind, StreamType)
    assert isinstance(bus, AxisType)
    reads = isinstance(op, AxisReadOp)
    lanes, per = kind.lanes.data, bus.bits.data // (8 * dtypes.to_numpy(op.dtype.data).itemsize)
    a, b = (per, lanes) if reads else (lanes, per)
    ins, outs = -(-op.count.value.data // a), -(-op.count.value.data // b)

    def body(e: Emitter, args: tuple[SSAValue, ...]) -> None:
        words = [e.alloca((1,), "i8", f"word{n}", word=True) for n in range(len(args))]
        held, taken, given = (e.alloca((), "i32", name) for name in ("held", "taken", "given"))

        def compare(how: str, register: SSAValue, value: int) -> SSAValue:
            return e.compare(how, e.load(register), e.const(value, "i32"), "i32")

        def add(register: SSAValue, value: int) -> None:
            e.store(e.put(arith.AddiOp(e.load(register), e.const(value, "i32"))), register)

        def ends() -> None:
            if len(args) > 2:
                e.do((level2.StreamWriteOp if reads else level2.StreamReadOp)(args[2], words[2]))

        def take() -> None:
            source = 0 if reads else 1
            e.do(level2.StreamReadOp(args[source], words[source]))
            add(held, a // gcd(a, b))
            add(taken, 1)

        def give() -> None:
            target = 1 if reads else 0
            if not reads:
                e.branch(compare("eq", given, outs - 1), ends)
            e.do(level2.StreamWriteOp(args[target], words[target]))
            add(held, -(b // gcd(a, b)))
            add(given, 1)

        def step() -> None:
            full, over = compare("ge", held, b // gcd(a, b)), compare("ge", taken, ins)
            e.branch(e.compare("eq", e.put(arith.OrIOp(full, over)), e.const(False, "bool"), "bool"), take)
            e.branch(e.put(arith.OrIOp(compare("ge", held, b // gcd(a, b)), compare("ge", taken, ins))), give)

        for register in (held, taken, given):
            e.store(e.const(0, "i32"), register)
        e.loop(_steps(a, b, ins, outs), "step", lambda _, __: step(), pipeline=1)
        if reads:
            ends()

    streams = [("bus", "i8", 1), ("words", "i8", 1)] + ([("ends", "i8", 1)] if op.ends is not None else [])
    return process("port", "", Tables(ConstantStore()), 0, streams, body)


def _steps(a: int, b: int, ins: int, outs: int) -> int:
    """Steps in which units of `a` elements become units of `b` (`gears` in the header)."""
    if b <= a:
        return outs
    left = ins * a // b < outs and (ins - 1) * a % b + a >= b
    return ins + left

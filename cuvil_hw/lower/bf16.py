"""bf16 in integer ops: level2 sees 16-bit integers, the upper half of an f32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from cuvil_hw.ir import level2

if TYPE_CHECKING:
    from cuvil_hw.lower.emit import Emitter


def of_bf16(e: Emitter, v: SSAValue) -> SSAValue:
    """The bits of a bf16 as an f32, of which they are the upper half."""
    wide = e.put(arith.ExtUIOp(v, level2.signless("u32")))
    return e.put(arith.BitcastOp(e.put(arith.ShLIOp(wide, e.const(16, "u32"))), level2.signless("f32")))


def to_bf16(e: Emitter, v: SSAValue) -> SSAValue:
    """An f32 to the nearest bf16, ties to even, NaN to one NaN: a carry out of the lower half rounds up."""
    bits, half = e.put(arith.BitcastOp(v, level2.signless("u32"))), e.const(16, "u32")
    odd = e.put(arith.AndIOp(e.put(arith.ShRUIOp(bits, half)), e.const(1, "u32")))
    carried = e.put(arith.AddiOp(e.put(arith.AddiOp(bits, e.const(0x7FFF, "u32"))), odd))
    upper = e.put(arith.TruncIOp(e.put(arith.ShRUIOp(carried, half)), level2.signless("bf16")))
    return e.put(arith.SelectOp(e.apply("isnan", "f32", [v]), e.const(float("nan"), "bf16"), upper))

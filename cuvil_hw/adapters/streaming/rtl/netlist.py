"""Ops of one hw.module, made one by one: constants once, names once, widths joined.

Wiring, most of a module, is made by `create`, which skips the sorting of operands by name: with it a small network took
3.6 s of a processor to compile for the PYNQ-Z2, without it 2.8 (measured).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from xdsl.dialects import comb, hw
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, IntegerType, StringAttr, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from cuvil_hw.adapters.streaming.rtl.graph import cut
from cuvil_hw.ir.hardware import RegisterOp, width_of


class Netlist:
    """Makes the ops of one module."""

    def __init__(self, inputs: Sequence[tuple[str, Any]]) -> None:
        self.block = Block(arg_types=[kind for _, kind in inputs])
        for arg, (name, _) in zip(self.block.args, inputs, strict=True):
            arg.name_hint = name
        self.ports = {name: arg for (name, _), arg in zip(inputs, self.block.args, strict=True)}
        self._constants: dict[tuple[int, int], SSAValue] = {}
        self._names: dict[str, int] = {}

    def put(self, op: Operation, name: str = "") -> SSAValue:
        self.block.add_op(op)
        if name:
            op.results[0].name_hint = name
            op.attributes["sv.namehint"] = StringAttr(self.unique(name))
        return op.results[0]

    def unique(self, name: str) -> str:
        """A name that nothing else in the module has."""
        free, n = name, self._names.get(name, 1)
        while free in self.ports or free in self._names:
            n += 1
            free = f"{name}_v{n}"
        self._names[name], self._names[free] = n, 1
        return free

    def const(self, value: int, bits: int) -> SSAValue:
        value = cut(value, bits, False)
        if (value, bits) not in self._constants:
            op = hw.ConstantOp(IntegerAttr(cut(value, bits) if bits > 1 else -value, IntegerType(bits)).value, bits)
            self._constants[value, bits] = self.put(op)
        return self._constants[value, bits]

    def both(self, values: Sequence[SSAValue]) -> SSAValue:
        return self._fold(comb.AndOp, values, 1)

    def either(self, values: Sequence[SSAValue]) -> SSAValue:
        return self._fold(comb.OrOp, values, 0)

    def _fold(self, kind: Any, values: Sequence[SSAValue], neutral: int) -> SSAValue:
        kept = [v for v in dict.fromkeys(values) if v is not self.const(neutral, 1)]
        if self.const(1 - neutral, 1) in kept:
            return self.const(1 - neutral, 1)
        if not kept:
            return self.const(neutral, 1)
        return kept[0] if len(kept) == 1 else self.put(kind(kept))

    def invert(self, value: SSAValue) -> SSAValue:
        if isinstance(value.owner, hw.ConstantOp):
            return self.const(1 - int(value.owner.value.value.data) & 1, 1)
        return self.put(comb.XorOp([value, self.const(1, 1)]))

    def extract(self, value: SSAValue, low: int, bits: int) -> SSAValue:
        if low == 0 and bits == width_of(value):
            return value
        op = value.owner
        if isinstance(op, hw.ConstantOp):
            return self.const(int(op.value.value.data) >> low, bits)
        if isinstance(op, comb.ExtractOp):
            return self.extract(op.input, int(op.low_bit.value.data) + low, bits)
        return self.put(
            comb.ExtractOp.create(operands=[value], result_types=[_word(bits)], properties={"lowBit": _number(low)})
        )

    def concat(self, parts: Sequence[SSAValue]) -> SSAValue:
        """The first part on top."""
        if len(parts) == 1:
            return parts[0]
        return self.put(comb.ConcatOp.create(operands=parts, result_types=[_word(sum(map(width_of, parts)))]))

    def resize(self, value: SSAValue, bits: int, signed: bool) -> SSAValue:
        have = width_of(value)
        if bits <= have:
            return self.extract(value, 0, bits)
        if not signed:
            return self.concat([self.const(0, bits - have), value])
        top = self.extract(value, have - 1, 1)
        if bits > have + 1:
            top = self.put(comb.ReplicateOp.create(operands=[top], result_types=[_word(bits - have)]))
        return self.concat([top, value])

    def register(self, name: str, value: SSAValue, enable: SSAValue, reset: SSAValue | None = None) -> SSAValue:
        given = (self.ports["rst"], reset) if reset is not None else None
        return self.put(RegisterOp(value, self.ports["clk"], enable, given), name)

    def module(self, name: str, outputs: Mapping[str, SSAValue]) -> hw.HWModuleOp:
        """The finished module, its outputs by name."""
        ports: list[tuple[str, Any, hw.Direction]] = [(n, v.type, hw.Direction.INPUT) for n, v in self.ports.items()]
        ports += [(n, v.type, hw.Direction.OUTPUT) for n, v in outputs.items()]
        self.block.add_op(hw.OutputOp(list(outputs.values())))
        kind = hw.ModuleType(ArrayAttr([hw.ModulePort(StringAttr(n), t, hw.DirectionAttr(d)) for n, t, d in ports]))
        return hw.HWModuleOp(StringAttr(name), kind, Region(self.block))


@cache
def _word(bits: int) -> IntegerType:
    return IntegerType(bits)


@cache
def _number(value: int) -> IntegerAttr[IntegerType]:
    """Made once: checking that a number fits its type takes time."""
    return IntegerAttr(value, i32)

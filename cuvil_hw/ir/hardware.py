"""The hardware level: modules of registers and logic, below level2. Stock dialects (CIRCT's hw, comb and seq) and the
few blocks that none of them has: FIFOs, tables, memories and AXI4-Stream ends, each a file of `rtl/`.

Every module has `clk` and a synchronous `rst`; a channel P has `P_data`, `P_valid` and `P_ready`, and moves a word at
an edge at which both are high. Words hold lane 0 in their low bits.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Sequence
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import comb, hw, seq
from xdsl.dialects.builtin import Builtin, IntegerAttr, IntegerType, StringAttr, i1, i32
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException


@irdl_op_definition
class RegisterOp(IRDLOperation):
    """CIRCT's register with an enable, which xDSL's seq doesn't have yet: takes `input` where `ce` is high."""

    name = "seq.compreg.ce"
    DATA: ClassVar = VarConstraint("Data", AnyAttr())
    input = operand_def(DATA)
    clk = operand_def(seq.clock)
    ce = operand_def(i1)
    reset = opt_operand_def(i1)
    reset_value = opt_operand_def(DATA)
    data = result_def(DATA)
    irdl_options = (AttrSizedOperandSegments(),)
    assembly_format = "$input `,` $clk `,` $ce (`reset` $reset^ `,` $reset_value)? attr-dict `:` type($input)"

    def __init__(
        self, input: SSAValue, clk: SSAValue, ce: SSAValue, reset: tuple[SSAValue, SSAValue] | None = None
    ) -> None:
        super().__init__(operands=[input, clk, ce, *(reset or (None, None))], result_types=[input.type])


class Block(IRDLOperation, ABC):
    """An instance of a module of `rtl/`. `MODULE`: which; `PORTS`: names of its inputs and outputs, in the order of
    operands and results; parameters are the properties, but for `instance`."""

    MODULE: ClassVar[str]
    PORTS: ClassVar[tuple[str, str]]

    def ports(self) -> Iterator[tuple[str, SSAValue]]:
        inputs, outputs = (names.split() for names in self.PORTS)
        yield from zip(inputs, self.operands, strict=True)
        yield from zip(outputs, self.results, strict=True)

    def parameters(self) -> Iterator[tuple[str, int | str]]:
        for key, value in self.properties.items():
            if key != "instance":
                assert isinstance(value, IntegerAttr | StringAttr)
                yield key.upper(), value.data if isinstance(value, StringAttr) else int(value.value.data)

    @property
    def instance_name(self) -> str:
        named = self.properties["instance"]
        assert isinstance(named, StringAttr)
        return named.data

    def _set(self, instance: str, inputs: Sequence[SSAValue], outputs: Sequence[int], **parameters: int | str) -> None:
        given: dict[str, Attribute] = {"instance": StringAttr(instance)}
        for key, value in parameters.items():
            given[key] = IntegerAttr(value, i32) if isinstance(value, int) else StringAttr(value)
        super().__init__(operands=list(inputs), result_types=[IntegerType(bits) for bits in outputs], properties=given)

    def _fits(self, port: SSAValue, bits: int) -> None:
        if port.type != IntegerType(bits):
            raise VerifyException(f"{self.name}: {port.type} where {bits} bits belong")


@irdl_op_definition
class FifoOp(Block):
    """A channel of `depth` words of `width` bits; the first word is shown before it is taken."""

    name = "cuvil.hardware.fifo"
    MODULE: ClassVar[str] = "cuvil_fifo"
    PORTS: ClassVar[tuple[str, str]] = ("clk rst in_data in_valid out_ready", "in_ready out_data out_valid")
    instance = prop_def(StringAttr)
    width = prop_def(IntegerAttr)
    depth = prop_def(IntegerAttr)
    kind = prop_def(StringAttr)
    clk = operand_def(seq.clock)
    rst = operand_def(i1)
    in_data = operand_def(IntegerType)
    in_valid = operand_def(i1)
    out_ready = operand_def(i1)
    in_ready = result_def(i1)
    out_data = result_def(IntegerType)
    out_valid = result_def(i1)

    def __init__(self, instance: str, inputs: Sequence[SSAValue], depth: int, kind: str) -> None:
        bits = width_of(inputs[2])
        self._set(instance, inputs, [1, bits, 1], width=bits, depth=depth, kind=kind)

    def verify_(self) -> None:
        for port in (self.in_data, self.out_data):
            self._fits(port, self.width.value.data)


@irdl_op_definition
class RomOp(Block):
    """A table of `depth` words, its contents in `file`, made of `kind`. The word at `addr` comes a cycle later, where
    `en` is high."""

    name = "cuvil.hardware.rom"
    MODULE: ClassVar[str] = "cuvil_rom"
    PORTS: ClassVar[tuple[str, str]] = ("clk en addr", "data")
    instance = prop_def(StringAttr)
    width = prop_def(IntegerAttr)
    depth = prop_def(IntegerAttr)
    file = prop_def(StringAttr)
    kind = prop_def(StringAttr)
    clk = operand_def(seq.clock)
    en = operand_def(i1)
    addr = operand_def(IntegerType)
    data = result_def(IntegerType)

    def __init__(self, instance: str, inputs: Sequence[SSAValue], width: int, depth: int, file: str, kind: str) -> None:
        self._set(instance, inputs, [width], width=width, depth=depth, file=file, kind=kind)

    def verify_(self) -> None:
        self._fits(self.addr, address_bits(self.depth.value.data))
        self._fits(self.data, self.width.value.data)


@irdl_op_definition
class RamOp(Block):
    """A memory with a port to write and one to read, whose word comes one cycle later, where `ren` is high; it is what
    was there before a word that is written at the same edge."""

    name = "cuvil.hardware.ram"
    MODULE: ClassVar[str] = "cuvil_ram"
    PORTS: ClassVar[tuple[str, str]] = ("clk wen waddr wdata ren raddr", "rdata")
    instance = prop_def(StringAttr)
    width = prop_def(IntegerAttr)
    depth = prop_def(IntegerAttr)
    kind = prop_def(StringAttr)
    clk = operand_def(seq.clock)
    wen = operand_def(i1)
    waddr = operand_def(IntegerType)
    wdata = operand_def(IntegerType)
    ren = operand_def(i1)
    raddr = operand_def(IntegerType)
    rdata = result_def(IntegerType)

    def __init__(self, instance: str, inputs: Sequence[SSAValue], depth: int, kind: str) -> None:
        bits = width_of(inputs[3])
        self._set(instance, inputs, [bits], width=bits, depth=depth, kind=kind)

    def verify_(self) -> None:
        for port in (self.waddr, self.raddr):
            self._fits(port, address_bits(self.depth.value.data))
        for port in (self.wdata, self.rdata):
            self._fits(port, self.width.value.data)


@irdl_op_definition
class AxisInOp(Block):
    """One tensor of `count` elements of `bits` bits, each in `container` bits of a port of `axis` bits, as words of
    `lanes` lanes. `ends`: whether each tensor's last word had `tlast`, as a channel of flags."""

    name = "cuvil.hardware.axis_in"
    MODULE: ClassVar[str] = "cuvil_axis_in"
    PORTS: ClassVar[tuple[str, str]] = (
        "clk rst s_axis_tdata s_axis_tvalid s_axis_tlast s_axis_tkeep out_ready ends_ready",
        "s_axis_tready out_data out_valid ends_data ends_valid",
    )
    instance = prop_def(StringAttr)
    axis = prop_def(IntegerAttr)
    bits = prop_def(IntegerAttr)
    container = prop_def(IntegerAttr)
    lanes = prop_def(IntegerAttr)
    count = prop_def(IntegerAttr)
    ends = prop_def(IntegerAttr)
    clk = operand_def(seq.clock)
    rst = operand_def(i1)
    tdata = operand_def(IntegerType)
    tvalid = operand_def(i1)
    tlast = operand_def(i1)
    tkeep = operand_def(IntegerType)
    out_ready = operand_def(i1)
    ends_ready = operand_def(i1)
    tready = result_def(i1)
    out_data = result_def(IntegerType)
    out_valid = result_def(i1)
    ends_data = result_def(i1)
    ends_valid = result_def(i1)

    def __init__(
        self, instance: str, inputs: Sequence[SSAValue], bits: int, container: int, lanes: int, count: int, ends: bool
    ) -> None:
        self._set(
            instance, inputs, [1, bits * lanes, 1, 1, 1], axis=width_of(inputs[2]), bits=bits, container=container,
            lanes=lanes, count=count, ends=int(ends),
        )  # fmt: skip


@irdl_op_definition
class AxisOutOp(Block):
    """The reverse of axis_in. `signed`: how elements fill their containers."""

    name = "cuvil.hardware.axis_out"
    MODULE: ClassVar[str] = "cuvil_axis_out"
    PORTS: ClassVar[tuple[str, str]] = (
        "clk rst in_data in_valid ends_data ends_valid m_axis_tready",
        "in_ready ends_ready m_axis_tdata m_axis_tvalid m_axis_tlast m_axis_tkeep",
    )
    instance = prop_def(StringAttr)
    axis = prop_def(IntegerAttr)
    bits = prop_def(IntegerAttr)
    container = prop_def(IntegerAttr)
    lanes = prop_def(IntegerAttr)
    count = prop_def(IntegerAttr)
    ends = prop_def(IntegerAttr)
    signed = prop_def(IntegerAttr)
    clk = operand_def(seq.clock)
    rst = operand_def(i1)
    in_data = operand_def(IntegerType)
    in_valid = operand_def(i1)
    ends_data = operand_def(i1)
    ends_valid = operand_def(i1)
    tready = operand_def(i1)
    in_ready = result_def(i1)
    ends_ready = result_def(i1)
    tdata = result_def(IntegerType)
    tvalid = result_def(i1)
    tlast = result_def(i1)
    tkeep = result_def(IntegerType)

    def __init__(
        self, instance: str, inputs: Sequence[SSAValue], axis: int, bits: int, container: int, lanes: int, count: int,
        ends: bool, signed: bool,
    ) -> None:  # fmt: skip
        self._set(
            instance, inputs, [1, 1, axis, 1, 1, axis // 8], axis=axis, bits=bits, container=container, lanes=lanes,
            count=count, ends=int(ends), signed=int(signed),
        )  # fmt: skip


BLOCKS: tuple[type[Block], ...] = (FifoOp, RomOp, RamOp, AxisInOp, AxisOutOp)


def width_of(value: SSAValue) -> int:
    kind = value.type
    assert isinstance(kind, IntegerType)
    return int(kind.width.data)


def address_bits(words: int) -> int:
    """Bits of an address of one of `words` words."""
    return max((words - 1).bit_length(), 1)


def dialect() -> Dialect:
    return Dialect("cuvil.hardware", [*BLOCKS, RegisterOp], [])


def context() -> Context:
    """A context that can parse text of the hardware level."""
    made = Context()
    for d in (Builtin, hw.HW, comb.Comb, seq.Seq, dialect()):
        made.load_dialect(d)
    return made

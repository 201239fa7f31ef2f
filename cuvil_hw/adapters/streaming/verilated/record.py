"""What a project says of its SystemVerilog: rtl/design.json."""

from __future__ import annotations

from dataclasses import dataclass

from cuvil_hw.adapters.streaming.verilated.build import Module, Wires, library_files
from cuvil_hw.contract import canonical
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.contract.record import identifier, parse
from cuvil_hw.errors import ArtifactError, CuvilError

FOLDER = "rtl"
FILE = f"{FOLDER}/design.json"


@dataclass(frozen=True, slots=True)
class ChannelRecord:
    """A FIFO `fifo_<name>` of the top module, the processes at its ends, and the words of one sample. A port of the
    design is "input_0" or "output_0", and the process outside of it is called so too."""

    name: str
    writer: str
    reader: str
    words: int


@dataclass(frozen=True, slots=True)
class RtlRecord:
    """`top`: the module; `axis_bits`: of a word of its ports; `inputs`, `outputs`: names of ports in its signals,
    s_axis_<input>_tdata and so on, in the order of the program's; `packets`: a packet may carry many samples, else each
    is one; `refused`: why there is no SystemVerilog, else ""."""

    top: str = ""
    axis_bits: int = 0
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    channels: tuple[ChannelRecord, ...] = ()
    packets: bool = False
    refused: str = ""

    def check(self, program: DeviceProgram) -> None:
        if (len(self.inputs), len(self.outputs)) != (len(program.inputs), len(program.outputs)):
            raise ValueError(f"{FILE}: its ports aren't those of the program")
        if self.axis_bits <= 0 or self.axis_bits % 8:
            raise ValueError(f"{FILE}: words of {self.axis_bits} bits")
        for name in (self.top, *self.inputs, *self.outputs):
            identifier(name, "port")
        for channel in self.channels:
            for name in (channel.name, channel.writer, channel.reader):
                identifier(name, "channel")

    def watched(self) -> str:
        """Channels as the bench reads them."""
        return "".join(f"{c.name} {c.writer} {c.reader} {c.words}\n" for c in self.channels)


def read(program: DeviceProgram) -> tuple[RtlRecord, Module]:
    """A program's record and its modules. Raises ArtifactError, and CuvilError with the reason where a design has no
    SystemVerilog."""
    path = program.folder / FILE
    if not path.is_file():
        raise CuvilError(f"{program.name}: was compiled without SystemVerilog; compile it again for a streaming design")
    try:
        record = parse(RtlRecord, canonical.parse(path.read_bytes()), program.name)
        if record.refused:
            raise CuvilError(f"{program.name}: has no SystemVerilog: {record.refused}")
        record.check(program)
    except ValueError as e:
        raise ArtifactError(f"{program.name}: {FILE}: {e}; compile the model again") from e
    inputs, outputs = (
        tuple(Wires.axis(f"{prefix}_axis_{name}", record.axis_bits) for name in names)
        for prefix, names in (("s", record.inputs), ("m", record.outputs))
    )
    own = {p.name: p.read_bytes() for p in sorted(path.parent.glob("*.sv"))}
    return record, Module({**library_files(), **own}, record.top, inputs, outputs, {})

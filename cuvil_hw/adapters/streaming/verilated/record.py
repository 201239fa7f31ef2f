"""What a project says of its SystemVerilog: rtl/design.json."""

from __future__ import annotations

from collections.abc import Mapping
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
    folder = program.folder / FOLDER
    own = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()} if folder.is_dir() else {}
    record = of_files(program.name, own)
    try:
        record.check(program)
    except ValueError as e:
        raise ArtifactError(f"{program.name}: {FILE}: {e}; compile the model again") from e
    inputs, outputs = (
        tuple(Wires.axis(f"{prefix}_axis_{name}", record.axis_bits) for name in names)
        for prefix, names in (("s", record.inputs), ("m", record.outputs))
    )
    modules = {name: text for name, text in own.items() if name.endswith(".sv")}
    return record, Module({**library_files(), **modules}, record.top, inputs, outputs, {})


def of_files(program: str, files: Mapping[str, bytes]) -> RtlRecord:
    """The record among the files below rtl/. Raises ArtifactError, and CuvilError with the reason where a design has no
    SystemVerilog."""
    name = FILE.removeprefix(f"{FOLDER}/")
    if name not in files:
        raise CuvilError(f"{program}: was compiled without SystemVerilog; compile it again in the spatial style")
    try:
        record = parse(RtlRecord, canonical.parse(files[name]), program)
        identifier(record.top or "refused", "top")
    except ValueError as e:
        raise ArtifactError(f"{program}: {FILE}: {e}; compile the model again") from e
    if record.refused:
        raise CuvilError(f"{program}: has no SystemVerilog: {record.refused}")
    return record

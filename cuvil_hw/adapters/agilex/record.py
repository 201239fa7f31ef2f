"""What the plan of a design for Agilex tells its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuvil_hw.adapters.streaming.project.record import DesignRecord, check_source
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.contract.record import identifier

MOST_BYTES = 1 << 40  # of a stream, for one sample


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One kernel. `port`: the number of the port that it serves (inputs first), -1 for none; `streams`: in the order of
    its arguments."""

    name: str
    port: int
    streams: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """`words`: of one sample; `bytes`: of a word; `depth`: in words."""

    words: int
    bytes: int
    depth: int


@dataclass(frozen=True, slots=True)
class AgilexRecord(DesignRecord):
    """`kernels`: in the order in which they are started."""

    kernels: tuple[ProcessRecord, ...]
    streams: Mapping[str, StreamRecord]

    def check(self, program: DeviceProgram) -> None:
        DesignRecord.check(self, program)
        check_source(program.folder / "src" / f"{self.project}.sycl.cpp", self.top)
        names, ports = [k.name for k in self.kernels], [k.port for k in self.kernels if k.port >= 0]
        count = len(program.inputs) + len(program.outputs)
        if len(set(names)) != len(names) or len(set(ports)) != len(ports) or not set(ports) <= set(range(count)):
            raise ValueError("two kernels have one name, or a port that isn't theirs")
        for kernel in self.kernels:
            identifier(kernel.name, "kernel")
            if unknown := {*kernel.streams, *kernel.reads, *kernel.writes} - set(self.streams):
                raise ValueError(f"kernel {kernel.name} has stream {min(unknown)[:80]}, which isn't there")
        for name, stream in self.streams.items():
            identifier(name, "stream")
            if min(stream.words, stream.bytes, stream.depth) < 0 or stream.words * stream.bytes > MOST_BYTES:
                raise ValueError(f"stream {name} has {stream.words} words of {stream.bytes} bytes")

"""What the plan of a design for Zynq tells its device."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cuvil_hw.adapters.streaming.project.record import DesignRecord, check_source
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.contract.record import check_seal

HLS, RTL = FLOWS = ("hls", "rtl")  # what makes the core: Vitis HLS of the C++, or Vivado of the SystemVerilog
STREAM_BITS = (8, 16, 32, 64, 128, 256, 512)
_HEADING = re.compile(rb"\A// Record [0-9a-f]{64}\n")


def heading(seal: str) -> str:
    """First line of a design's source: the seal of its record."""
    return f"// Record {seal}\n"


def without_heading(source: bytes) -> bytes:
    """What of a source decides the hardware: estimates and names of layers, which the seal covers too, don't."""
    return _HEADING.sub(b"", source)


@dataclass(frozen=True, slots=True)
class ZynqRecord(DesignRecord):
    """`axis_bits`: of a stream's word; `packets`: a packet may carry many samples, else each is one; `cycles`: from one
    sample to the next, by estimate; `flow`: of FLOWS."""

    axis_bits: int
    packets: bool = False
    cycles: int = 0
    flow: str = HLS

    def __post_init__(self) -> None:
        if self.axis_bits not in STREAM_BITS:
            raise ValueError(f"the design's streams have {self.axis_bits} bits, not one of {STREAM_BITS}")
        if self.flow not in FLOWS:
            raise ValueError(f"the design's flow is {self.flow[:80]!r}, not one of {FLOWS}")

    def check(self, program: DeviceProgram) -> None:
        DesignRecord.check(self, program)
        source = program.folder / "src" / f"{self.project}.cpp"
        check_source(source, self.top)
        check_seal(source.read_bytes(), program)

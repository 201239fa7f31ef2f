"""What the plan of a design for ECP5 tells its device."""

from __future__ import annotations

from dataclasses import dataclass

from cuvil_hw.adapters.streaming.project.record import DesignRecord

AXIS_BITS = 32  # of a word of the design's ports
BITSTREAM = "design.bit"
FASTEST_BAUD = 12_000_000  # of the USB serial chips on these boards


@dataclass(frozen=True, slots=True)
class Ecp5Record(DesignRecord):
    """`identity`: sixteen hexadecimal digits that the board answers with; `baud`: of its serial line."""

    identity: str
    baud: int

    def __post_init__(self) -> None:
        if len(bytes.fromhex(self.identity)) != 8:
            raise ValueError(f"identity {self.identity!r} has not eight bytes")
        if not 0 < self.baud <= FASTEST_BAUD:
            raise ValueError(f"a serial line of {self.baud} baud")

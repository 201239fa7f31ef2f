"""What the plan of a streaming design tells its device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cuvil_hw import dtypes
from cuvil_hw.contract.device import DeviceProgram, Port
from cuvil_hw.contract.record import identifier

MOST_LAYERS = 1 << 16


@dataclass(frozen=True, slots=True)
class PortRecord:
    """`order`: logical dimension of each streamed one."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        dtypes.to_numpy(self.dtype)
        if sorted(self.order) != list(range(len(self.shape))) or min(self.shape, default=0) < 0:
            raise ValueError(f"port {self.name} doesn't stream {self.shape} in the order {self.order}")


@dataclass(frozen=True, slots=True)
class DesignRecord:
    """`top`: the design's function; `project`: what its files are called; `layers`: names, as counters number them."""

    top: str
    project: str
    inputs: tuple[PortRecord, ...]
    outputs: tuple[PortRecord, ...]
    layers: tuple[str, ...]

    def check(self, program: DeviceProgram) -> None:
        identifier(self.top, "top")
        identifier(self.project, "project")
        for records, ports in ((self.inputs, program.inputs), (self.outputs, program.outputs)):
            if tuple(Port(r.name, r.shape, r.dtype) for r in records) != ports:
                raise ValueError(f"its ports {', '.join(r.name for r in records)} aren't those of the program")
        if len(self.layers) > MOST_LAYERS:
            raise ValueError(f"it has {len(self.layers)} layers")


def check_source(path: Path, top: str) -> None:
    """Raises ValueError when a design's source isn't there, or has no such function."""
    if not path.is_file() or not re.search(rf"\b{top}\s*\(", path.read_text(encoding="utf-8", errors="replace")):
        raise ValueError(f"there is no {path.name} with a function {top}")

"""Devices of the CUDA adapter: a GPU through the driver API, the simulator in two builds, and the null device."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from cuvil_hw.adapters.cuda import gpu
from cuvil_hw.adapters.cuda.program import CudaProgram
from cuvil_hw.adapters.cuda.record import CudaRecord
from cuvil_hw.adapters.cuda.simulator import SimulatedDriver, build_simulator
from cuvil_hw.contract.device import Device, DeviceProgram
from cuvil_hw.contract.record import check_seal, read
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime.null import NullDevice

SOURCE = "model.cu"


INTERFACES = ("hw", "sim", "sim-check", "null")


def open_device(profile: Mapping[str, Any], interface: str) -> Device:
    """ "sim": emitted kernels on this processor; "sim-check": the same, watching every access to memory; "hw": the GPU;
    "null": computes nothing.

    Raises CuvilError for another interface, ToolNotFound or DeviceError for "hw" without a GPU."""
    name = str(profile.get("name", "cuda"))
    match interface:
        case "sim" | "sim-check":
            return CudaSimulator(name, checked=interface == "sim-check")
        case "null":
            return NullDevice(name)
        case "hw":
            return gpu.open_gpu(name)
    raise CuvilError(f"{name} has no interface {interface!r}; it has {', '.join(INTERFACES)}")


class CudaSimulator:
    """Emitted CUDA C++, compiled by g++ for this processor."""

    def __init__(self, target: str, *, checked: bool) -> None:
        self.interface = "sim"
        how = "CUDA C++ on the host, every access checked" if checked else "CUDA C++ on the host"
        self.name = f"{target} simulator ({how})"
        self._checked = checked

    def usable(self) -> str | None:
        return None if shutil.which("g++") else "g++ is not on PATH; install it (Debian and Ubuntu: apt install g++)"

    def load(self, program: DeviceProgram) -> CudaProgram:
        """Compile (once per content, then from the cache) and load. Raises ToolNotFound, BuildFailed."""
        source = (program.folder / SOURCE).read_bytes()
        check_seal(source, program)
        kernels = [launch.symbol for launch in read(CudaRecord, program).launches]
        library = build_simulator(source, kernels, checked=self._checked)
        return CudaProgram(program, SimulatedDriver(library, checked=self._checked))

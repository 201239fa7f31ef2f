"""Puts a simulated board in place of a real one, and bitstreams for it into the registry."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pynq import Device
from pynq.ps import Clocks

from cuvil_hw.adapters.streaming.verilated.device import RtlSimulator
from cuvil_hw.adapters.zynq import bitstreams, shell
from cuvil_hw.adapters.zynq.ports import design_digest, ends_of, stream_ports
from cuvil_hw.adapters.zynq.simbuild import build_simulation
from cuvil_hw.adapters.zynq.simulator import LoadedSimulation
from cuvil_hw.adapters.zynq.temporal_sim import TemporalSimulation
from cuvil_hw.contract.device import DeviceProgram, Loaded
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.artifact import SOURCES, Artifact
from sim.pynq.board import Design, MasterDesign, SimulatedBoard, bit_file


@contextmanager
def active(board: SimulatedBoard | None = None) -> Iterator[SimulatedBoard]:
    """pynq's active device is `board` (None: a new one) meanwhile."""
    board = board if board is not None else SimulatedBoard()
    before = vars(Device).get("_active_device")
    Device.active_device = board
    if "_real_instance" in vars(Clocks):
        del Clocks._real_instance  # pynq keeps the clocks of the device that it saw first
    try:
        yield board
    finally:
        Device.active_device = before


def masters_of(artifact: Artifact) -> tuple[str, MasterDesign]:
    """As `design_of`, of the temporal style."""
    manifest = artifact.manifest
    with tempfile.TemporaryDirectory(prefix="cuvil-board-") as folder:
        container.extract(artifact, Path(folder))
        ports = manifest.device_inputs, manifest.device_outputs
        program = DeviceProgram(manifest.model, Path(folder), *ports, manifest.info, artifact.constants())
        simulator = TemporalSimulation(program)
    info, part = manifest.info, str(manifest.profile["part"])
    return _digest(artifact), MasterDesign(simulator, tuple(info["masters"]), int(info["memory_bytes"]), part)


def _digest(artifact: Artifact) -> str:
    sources = {n.removeprefix(SOURCES): d for n, d in artifact.files.items() if n.startswith(SOURCES)}
    return design_digest(sources, artifact.manifest.info)


def design_of(artifact: Artifact, fabric: str = "sim") -> tuple[str, Design]:
    """An artifact's digest and its design, as the device `fabric` simulates it: "sim" (its C++), "rtl" (its
    SystemVerilog)."""
    manifest = artifact.manifest
    inputs, outputs = stream_ports(manifest.info)
    with tempfile.TemporaryDirectory(prefix="cuvil-board-") as folder:
        container.extract(artifact, Path(folder))
        program = DeviceProgram(
            manifest.model, Path(folder), manifest.device_inputs, manifest.device_outputs, manifest.info
        )
        simulator: Loaded
        if fabric == "rtl":
            simulator = RtlSimulator(manifest.model, float(manifest.profile["clock_hz"])).load(program)
        else:
            simulator = LoadedSimulation(build_simulation(program), program)
    packets = manifest.info.get("packets") is True
    design = Design(simulator, inputs, outputs, str(manifest.profile["part"]), packets)
    return _digest(artifact), design


def register(
    board: SimulatedBoard,
    artifact: Artifact,
    *,
    content: bytes = b"0123",
    started_by_register: bool = False,
    clock_hz: float | None = None,
    fabric: str = "sim",
) -> bitstreams.Entry:
    """Make a bitstream of an artifact for the simulated board, and add it to the registry as a user would. `clock_hz`:
    what it is built for; None: the profile's; `fabric`: as in `design_of`."""
    temporal = "masters" in artifact.manifest.info
    digest, design = masters_of(artifact) if temporal else design_of(artifact, fabric)
    clock_hz = clock_hz or float(artifact.manifest.profile["clock_hz"])
    bit = bit_file(content, design.part, "shell_wrapper", int(digest[:8], 16))
    board.designs[hashlib.sha256(bit).hexdigest()] = design
    if isinstance(design, MasterDesign):
        hardware = shell.masters_hwh(design.masters, design.part, clock_hz)
    else:
        hardware = shell.standard_hwh(
            design.inputs, design.outputs, design.part, clock_hz, started_by_register=started_by_register
        )
    return bitstreams.add(
        bit,
        hardware,
        design=digest,
        part=design.part,
        **ends_of(artifact.manifest.info),
        shell=shell.SHELL,
    )

"""Devices of the Zynq adapter, by interface: the board (hw.py), simulators of the emitted HLS C++ (simulator.py,
cycles.py) and of the emitted SystemVerilog (streaming/verilated), and null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuvil_hw.adapters.streaming.verilated.device import RtlSimulator
from cuvil_hw.adapters.zynq.cycles import CycleSimulator
from cuvil_hw.adapters.zynq.hw import Board
from cuvil_hw.adapters.zynq.simulator import Simulator
from cuvil_hw.contract.device import Device
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime.null import NullDevice

INTERFACES = ("hw", "sim", "sim-count", "sim-cycles", "rtl", "null")


def open_device(profile: Mapping[str, Any], interface: str) -> Device:
    """The device of a profile: "hw" (a board, through pynq), "sim" (fast), "sim-count" (also counts saturations),
    "sim-cycles" (with clocks), "rtl" (its SystemVerilog) or "null". Raises CuvilError for others."""
    name = str(profile.get("name", "zynq"))
    match interface:
        case "sim":
            return Simulator(name, counting=False)
        case "sim-count":
            return Simulator(name, counting=True)
        case "sim-cycles":
            return CycleSimulator(name, float(profile["clock_hz"]))
        case "rtl":
            return RtlSimulator(name, float(profile["clock_hz"]))
        case "null":
            return NullDevice(name)
        case "hw":
            return Board(profile)
    raise CuvilError(f"{name} has no interface {interface!r}; it has {', '.join(INTERFACES)}")

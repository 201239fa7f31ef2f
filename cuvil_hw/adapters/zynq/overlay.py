"""Putting a registered bitstream on the fabric, for every driver: find it, let pynq program it, set its clock."""

from __future__ import annotations

import functools
import threading
import warnings
from pathlib import Path
from typing import Any

from cuvil_hw.adapters.zynq import bitstreams, hwh
from cuvil_hw.adapters.zynq.bitstreams import Bitstream
from cuvil_hw.errors import DeviceError
from cuvil_hw.runtime.forks import OneProcess

# One fabric: who programs it or runs on it holds this.
FABRIC = threading.RLock()
BOARD = OneProcess("the board")
_CLOCK_TOLERANCE = 0.01


def registered(name: str, design: str, part: str) -> Bitstream:
    """The verified bitstream of a design. Raises DeviceError where none is registered, or one was changed."""
    found = bitstreams.find(design, part)
    if found is None:
        raise DeviceError(
            f"{name}: no bitstream is registered for its design {design[:12]}… on {part}, "
            f"neither in {bitstreams.home()} nor for all users in {bitstreams.shared_home()}. Make "
            "one where Vivado is: `cuvil bitstreams project model.cuvil -o project`, then in project/ run "
            "`python3 build.py` and `vivado -mode batch -source shell.tcl`; then here `cuvil bitstreams "
            "add model.cuvil shell.bit`. docs/boards.md has the steps"
        )
    return found


def programmed(pynq: Any, name: str, found: Bitstream, folder: Path, clock_hz: float) -> Any:
    """pynq's overlay, after it has programmed the fabric. Raises DeviceError where the board refuses."""
    # pynq, and the firmware loader below it, remember designs by file name: this name no other content has.
    path = folder / f"{found.stem}.bit"
    path.write_bytes(found.bit)
    path.with_suffix(".hwh").write_bytes(hwh.for_pynq(found.hwh, clock_hz))
    try:
        return pynq.Overlay(str(path))
    except Exception as e:  # pynq, its metadata and driver packages raise errors of many kinds, also plain ones
        raise DeviceError(
            f"{name}: the board refused the bitstream {found.entry.bit[:12]}…: {type(e).__name__}: {e}"
        ) from e


def set_clock(pynq: Any, name: str, clock: hwh.Clock | None, clock_hz: float) -> None:
    """Have the core run at the clock that its bitstream was built for. Raises DeviceError where it runs faster; warns
    where that isn't the profile's, whose figures are then not this board's."""
    if clock is None:
        return
    register = f"fclk{clock.index}_mhz"
    built, clocks = clock.hz / 1e6, pynq.Clocks
    if abs(getattr(clocks, register) / built - 1) > _CLOCK_TOLERANCE:
        setattr(clocks, register, built)
    runs, planned = float(getattr(clocks, register)), clock_hz / 1e6
    if runs > built * (1 + _CLOCK_TOLERANCE):
        raise DeviceError(
            f"{name}: fabric clock {clock.index} runs at {runs:g} MHz and can't be set to the "
            f"{built:g} MHz that the bitstream was built for, so that results could be wrong; build it for a clock "
            "that the board has (clock_mhz in the profile)"
        )
    if planned > 0 and abs(runs / planned - 1) > _CLOCK_TOLERANCE:
        warnings.warn(
            f"{name}: the fabric runs at {runs:g} MHz where the profile says {planned:g}: expect "
            f"{runs / planned:.2f} times the report's throughput",
            stacklevel=2,
        )


def driver(overlay: Any, path: str, base: int) -> Any:
    """pynq's driver of an instance, by its name with hierarchy. Raises DeviceError unless it lies at `base`."""
    found = functools.reduce(getattr, path.split("/"), overlay)
    at = int(found.mmio.base_addr)
    if at != base:
        raise DeviceError(
            f"{path}: pynq has it at {at:#x}, the .hwh at {base:#x}; pynq holds metadata of "
            "another bitstream, restart Python"
        )
    return found

"""A board on this machine: openFPGALoader loads the bitstream over USB, pyserial speaks over the serial port."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cuvil_hw.adapters.ecp5.record import BITSTREAM
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.errors import CuvilError, DeviceError, ToolNotFound, pip_install

if TYPE_CHECKING:
    from serial import Serial

LINE_S = 0.2  # how long an answer may take; the board drops a request that stops for a quarter of that
LOADING_S = 300.0


def loader(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The command that loads a bitstream, without the file. Raises ToolNotFound, and CuvilError for a profile that
    names no board."""
    program, board = shutil.which("openFPGALoader"), str(settings.get("loader", ""))
    if not board:
        raise CuvilError("the profile names no board (settings.loader, as `openFPGALoader --list-boards` does)")
    if program is None:
        raise ToolNotFound("openFPGALoader", "load a bitstream", "install it (Debian: apt-get install openfpgaloader)")
    return program, "--board", board


def serial_port(settings: Mapping[str, Any]) -> str:
    """The setting `port`, else the only USB serial port of this machine. Raises ToolNotFound, DeviceError."""
    if importlib.util.find_spec("serial") is None:
        raise ToolNotFound("pyserial", "speak with a board", f"install it ({pip_install('ecp5')})")
    if settings.get("port"):
        return str(settings["port"])
    from serial.tools import list_ports

    found = sorted(p.device for p in list_ports.comports() if p.vid is not None)
    if len(found) != 1:
        seen = ", ".join(found) or "none"
        raise DeviceError(
            f"this machine's USB serial ports are: {seen}; name the board's in the profile (settings.port)"
        )
    return str(found[0])


def load_bitstream(program: DeviceProgram, settings: Mapping[str, Any]) -> None:
    """Into the FPGA's own memory, not its flash. Raises ToolNotFound, DeviceError, CuvilError."""
    file = program.folder / BITSTREAM
    if not file.is_file():
        raise CuvilError(f"{program.name}: was compiled without a bitstream; compile it with settings.bitstream: now")
    argv = (*loader(settings), str(file))
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=LOADING_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as e:
        raise DeviceError(
            f"{program.name}: openFPGALoader didn't end in {LOADING_S:g} s; is the board connected?"
        ) from e
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise DeviceError(f"{program.name}: openFPGALoader failed: {' / '.join(said)}")


def open_line(settings: Mapping[str, Any], baud: int) -> Serial:
    """Raises ToolNotFound, DeviceError."""
    port = serial_port(settings)
    import serial

    try:
        return serial.Serial(port, baud, timeout=LINE_S, write_timeout=10 * LINE_S, exclusive=True)
    except (OSError, ValueError) as e:
        raise DeviceError(f"serial port {port}: {e}; settings.port names another") from e

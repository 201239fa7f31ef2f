"""Devices of ECP5 boards: the board itself ("hw"), its design in Verilator ("rtl"), and all of it in Verilator, the
serial line with it ("rtl-serial")."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from cuvil_hw import data
from cuvil_hw.adapters.ecp5 import hw
from cuvil_hw.adapters.ecp5.link import Line, SerialLink
from cuvil_hw.adapters.ecp5.record import AXIS_BITS, Ecp5Record
from cuvil_hw.adapters.ecp5.simulated import SimulatedLine, line_module
from cuvil_hw.adapters.streaming.analysis.streamed import packed_for, room_for, take_words, unpacked, words_of
from cuvil_hw.adapters.streaming.verilated import build
from cuvil_hw.adapters.streaming.verilated.device import RtlSimulator
from cuvil_hw.adapters.streaming.verilated.model import Model
from cuvil_hw.adapters.streaming.verilated.record import FOLDER, read
from cuvil_hw.contract import record as records
from cuvil_hw.contract.device import Array, Device, DeviceProgram
from cuvil_hw.errors import CuvilError, DeviceError
from cuvil_hw.runtime.forks import Turn
from cuvil_hw.runtime.null import NullDevice

INTERFACES = ("rtl", "rtl-serial", "hw", "null")
WORD = AXIS_BITS // 8


def open_device(profile: Mapping[str, Any], interface: str) -> Device:
    """The device of a profile. Raises CuvilError for an unknown interface."""
    name, clock_hz = str(profile.get("name", "ecp5")), float(profile["clock_hz"])
    match interface:
        case "rtl":
            return RtlSimulator(name, clock_hz)
        case "rtl-serial":
            return SerialSimulator(name, clock_hz)
        case "hw":
            return SerialBoard(name, profile.get("settings", {}))
        case "null":
            return NullDevice(name)
    raise CuvilError(f"{name} has no interface {interface!r}; it has {', '.join(INTERFACES)}")


class SerialSimulator:
    """A board as far as Verilator can: the line bit by bit, the protocol, the design. Much slower than "rtl"."""

    interface = "rtl-serial"

    def __init__(self, target: str, clock_hz: float) -> None:
        self.name = f"{target} simulator of the board's serial line (Verilator)"
        self._clock_hz = clock_hz

    def usable(self) -> str | None:
        error = build.missing()
        return None if error is None else str(error)

    def load(self, program: DeviceProgram) -> LoadedSerial:
        """Compile (once per content, then from the cache) and load. Raises ToolNotFound, BuildFailed, CuvilError."""
        record, (_, module) = records.read(Ecp5Record, program), read(program)
        bench = (data.folder("sim") / "rtl" / "cuvil_line.sv").read_bytes()
        files = {n: text for n, text in module.files.items() if n != f"{record.project}_board.sv"}
        board = line_module({**files, "cuvil_line.sv": bench}, f"{record.project}_serial")
        model = Model(build.build(board), program.name, program.folder / FOLDER)
        line = SimulatedLine(model)
        return LoadedSerial(line, program, record, lambda: line.clock / self._clock_hz, model.close)


class SerialBoard:
    """A board on a serial port. Settings: `loader`, the board as openFPGALoader knows it; `port`, the serial port, else
    the only one of this machine."""

    interface = "hw"

    def __init__(self, target: str, settings: Mapping[str, Any]) -> None:
        self.name = f"{target} on a serial port"
        self._settings = settings

    def usable(self) -> str | None:
        try:
            hw.loader(self._settings)
            hw.serial_port(self._settings)
        except CuvilError as e:
            return str(e)
        return None

    def load(self, program: DeviceProgram) -> LoadedSerial:
        """Load the bitstream and open the line. Raises ToolNotFound, DeviceError, and CuvilError for a program without
        a bitstream."""
        record = records.read(Ecp5Record, program)
        hw.load_bitstream(program, self._settings)
        line = hw.open_line(self._settings, record.baud)
        return LoadedSerial(line, program, record, time.monotonic, line.close)


class LoadedSerial:
    """A design behind a line. Runs of several threads take turns. `clock`: seconds since some moment."""

    def __init__(
        self,
        line: Line,
        program: DeviceProgram,
        record: Ecp5Record,
        clock: Callable[[], float],
        close: Callable[[], None],
    ) -> None:
        self._program, self._clock, self._close = program, clock, close
        self._link = SerialLink(line, program.name)
        self._turn = Turn()
        self._closed = False
        wanted, found = bytes.fromhex(record.identity), self._reset()
        if found != wanted:
            self.close()
            raise DeviceError(
                f"{program.name}: the board holds another design ({found.hex()}, not {wanted.hex()}); load this one"
            )

    def _reset(self) -> bytes:
        try:
            return self._link.reset()
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        with self._turn.lock:
            if self._closed:
                raise DeviceError(f"{self._program.name}: is closed; load it again")
            before = self._clock()
            packed, room = packed_for(self._program, inputs)
            given, sizes = [words_of(a, WORD).tobytes() for a in packed], [room_for(a, WORD).nbytes for a in room]
            try:
                found = self._link.transfer(given, sizes)
            except DeviceError:
                with suppress(DeviceError):
                    self._link.reset()  # nothing of this run may come out of the next
                raise
            for words, result in zip(found, room, strict=True):
                take_words(np.frombuffer(words, np.uint8), result)
            return unpacked(self._program, room), self._clock() - before

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._close()

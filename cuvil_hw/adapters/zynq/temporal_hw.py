"""A design of the temporal style on a board: the core reads and writes the board's memory by itself (AXI masters).

One buffer of contiguous memory holds all that the design works on. The table of passes and the weights are written
once, when the program is loaded; for each sample its inputs are written, the core is started by its control register,
and its outputs are read. Every address register gets the buffer's physical address.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.temporal.image import placed, room_bytes, taken
from cuvil_hw.adapters.temporal.record import TemporalRecord
from cuvil_hw.adapters.zynq import hwh, overlay
from cuvil_hw.adapters.zynq.on_fabric import SLACK, OnFabric
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import read
from cuvil_hw.errors import ArtifactError, DeviceError

# CTRL of an HLS core (UG1399).
CONTROL, START, DONE, IDLE = 0, 1, 2, 4


class LoadedTemporal(OnFabric[hwh.MasterWiring]):
    """A design that moves its own data."""

    def __init__(self, pynq: Any, program: DeviceProgram, part: str, clock_hz: float, stall_s: float) -> None:
        """Raises ArtifactError, DeviceError."""
        self._record = read(TemporalRecord, program)
        try:
            self._image = self._record.image(program)
        except ValueError as e:
            raise ArtifactError(f"{program.name}: {e}; compile the model again") from e
        super().__init__(pynq, program, part, clock_hz, stall_s)
        self._program = program
        self._core: Any = None
        self._buffer: Any = None
        self._begin()

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        count = len(inputs[0]) if inputs else 1
        outputs = [np.empty((count, *p.shape), dtypes.to_numpy(p.dtype)) for p in self._program.outputs]
        seconds = 0.0
        with self._running():
            for n in range(count):
                seconds += self._one([a[n] for a in inputs], [a[n] for a in outputs], n)
        return outputs, seconds

    def _one(self, sample: Sequence[Array], results: Sequence[Array], number: int) -> float:
        record, program = self._record, self._program
        for at, port, array in zip(record.inputs_at, program.inputs, sample, strict=True):
            raw = np.frombuffer(placed(array, port), np.uint8)
            self._buffer[at : at + raw.size] = raw
            self._buffer[at : at + raw.size].flush()
        start = perf_counter()
        self._core.write(CONTROL, START)
        self._wait(number)
        seconds = perf_counter() - start
        for at, port, result in zip(record.outputs_at, program.outputs, results, strict=True):
            room = self._buffer[at : at + room_bytes(port)]
            room.invalidate()
            result[...] = taken(room.tobytes(), port)
        return seconds

    def _wait(self, number: int) -> None:
        limit = self._stall_s + (SLACK * self._record.cycles / self._clock_hz if self._clock_hz > 0 else 0.0)
        self._await(lambda: bool(self._status() & (DONE | IDLE)), limit, lambda: self._stalled(number, limit))

    def _status(self) -> int:
        return int(self._core.read(CONTROL))

    def _stalled(self, number: int, limit: float) -> DeviceError:
        return DeviceError(
            f"{self._name}: the core doesn't end sample {number} within {limit:.3g} s (control register "
            f"{self._status():#x}); are all its AXI masters connected to memory?"
        )

    def _wired(self, hardware: hwh.Hardware) -> hwh.MasterWiring:
        return hwh.wire_masters(hardware, self._record.masters, self._part)

    def _connect(self, made: Any, wiring: hwh.MasterWiring) -> None:
        self._core = overlay.driver(made, wiring.core, wiring.base)
        if self._buffer is None:
            self._buffer = self._allocated(wiring)
        self._buffer[:] = self._image
        self._buffer.flush()
        address = int(self._buffer.physical_address)
        for words in wiring.addresses.values():
            for n, offset in enumerate(words):
                self._core.write(offset, address >> 32 * n & 0xFFFF_FFFF)

    def _allocated(self, wiring: hwh.MasterWiring) -> Any:
        size = self._record.memory_bytes
        try:
            buffer = self._pynq.allocate((size,), np.uint8)
        except (OSError, RuntimeError, MemoryError) as e:
            raise DeviceError(f"{self._name}: the board has no {size} bytes of contiguous memory: {e}") from e
        first, (low, high) = int(buffer.physical_address), wiring.reach
        if first < low or first + size - 1 > high:
            raise DeviceError(
                f"{wiring.core}: its memory was placed at {first:#x}, but it reaches {low:#x} to {high:#x} only; give "
                "the board's contiguous memory (cma=) a place there in the boot arguments"
            )
        return buffer

    def _release(self) -> None:
        self._core, self._buffer = None, None

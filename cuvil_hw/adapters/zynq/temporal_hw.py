"""A design of the temporal style on a board: the core reads and writes the board's memory by itself (AXI masters).

One buffer of contiguous memory holds all that the design works on. The table of passes and the weights are written
once, when the program is loaded; for each sample its inputs are written, the core is started by its control register,
and its outputs are read. Every address register gets the buffer's physical address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.temporal.image import placed, room_bytes, taken
from cuvil_hw.adapters.temporal.record import TemporalRecord
from cuvil_hw.adapters.zynq import hwh, overlay
from cuvil_hw.adapters.zynq.overlay import BOARD, FABRIC
from cuvil_hw.adapters.zynq.ports import folder_digest
from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import read
from cuvil_hw.errors import ArtifactError, DeviceError
from cuvil_hw.runtime.scratch import Scratch

# CTRL of an HLS core (UG1399).
CONTROL, START, DONE, IDLE = 0, 1, 2, 4
_SLACK, _NAP_S, _PATIENCE_S = 4.0, 1e-4, 2e-3


class LoadedTemporal:
    """One design on the fabric. Runs of several threads take turns; so do several designs, each programmed when it
    finds another one there."""

    def __init__(self, pynq: Any, program: DeviceProgram, part: str, clock_hz: float, stall_s: float) -> None:
        """Raises ArtifactError, DeviceError."""
        self._pynq, self._program, self._name, self._part = pynq, program, program.name, part
        self._clock_hz, self._stall_s = clock_hz, stall_s
        self._record = read(TemporalRecord, program)
        try:
            self._image = self._record.image(program)
        except ValueError as e:
            raise ArtifactError(f"{program.name}: {e}; compile the model again") from e
        self._design = folder_digest(program.folder, program.info)
        self._folder = Scratch("cuvil-bit-")
        self._overlay: Any = None
        self._core: Any = None
        self._buffer: Any = None
        self._closed = False
        try:
            with FABRIC:
                self._start()
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        count = len(inputs[0]) if inputs else 1
        outputs = [np.empty((count, *p.shape), dtypes.to_numpy(p.dtype)) for p in self._program.outputs]
        seconds = 0.0
        BOARD.enter()
        with FABRIC:
            if self._closed:
                raise DeviceError(f"{self._name}: is closed; load it again with cuvil.load")
            if self._overlay is None or not self._overlay.is_loaded():
                self._start()
            try:
                for n in range(count):
                    seconds += self._one([a[n] for a in inputs], [a[n] for a in outputs], n)
            except BaseException:
                self._overlay = None  # what the core still writes is unknown: program the fabric before the next run
                raise
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
        limit = self._stall_s + (_SLACK * self._record.cycles / self._clock_hz if self._clock_hz > 0 else 0.0)
        start, late = monotonic(), False
        while not (status := int(self._core.read(CONTROL))) & (DONE | IDLE):
            since = monotonic() - start
            if since > limit:
                if late:  # one more look: this process itself may have been away for that long
                    raise DeviceError(
                        f"{self._name}: the core doesn't end sample {number} within {limit:.3g} s (control register "
                        f"{status:#x}); are all its AXI masters connected to memory?"
                    )
                late = True
            elif since > _PATIENCE_S:
                sleep(_NAP_S)

    def _start(self) -> None:
        """Put the verified bitstream on the fabric, and the image into memory."""
        found = overlay.registered(self._name, self._design, self._part)
        wiring = hwh.wire_masters(hwh.read(found.hwh), self._record.masters, self._part)
        self._overlay = None
        made = overlay.programmed(self._pynq, self._name, found, self._folder.path, self._clock_hz)
        overlay.set_clock(self._pynq, self._name, wiring.clock, self._clock_hz)
        self._core = overlay.driver(made, wiring.core, wiring.base)
        if self._buffer is None:
            self._buffer = self._allocated(wiring)
        self._buffer[:] = self._image
        self._buffer.flush()
        address = int(self._buffer.physical_address)
        for words in wiring.addresses.values():
            for n, offset in enumerate(words):
                self._core.write(offset, address >> 32 * n & 0xFFFF_FFFF)
        self._overlay = made

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

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        """Free the buffer and files. The fabric keeps its configuration."""
        with FABRIC:
            self._closed, self._overlay, self._core, self._buffer = True, None, None, None
            self._folder.remove()

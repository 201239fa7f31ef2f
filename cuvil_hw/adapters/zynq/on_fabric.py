"""A design on the board's fabric, whatever moves its data: programmed when another one is there, one run at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

from cuvil_hw.adapters.zynq import hwh, overlay
from cuvil_hw.adapters.zynq.overlay import BOARD, FABRIC
from cuvil_hw.adapters.zynq.ports import folder_digest
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.errors import DeviceError
from cuvil_hw.runtime.scratch import Scratch

SLACK = 4.0  # times what a design should take by its own figures, that a run may
# Slow designs: after this long, let other threads run between two looks at the board.
_PATIENCE_S = 2e-3
_NAP_S = 1e-4


W = TypeVar("W", hwh.Wiring, hwh.MasterWiring)


class OnFabric(ABC, Generic[W]):
    """Runs of several threads take turns; so do several designs. A subclass calls `_begin` at the end of its
    __init__."""

    def __init__(self, pynq: Any, program: DeviceProgram, part: str, clock_hz: float, stall_s: float) -> None:
        self._pynq, self._name, self._part, self._clock_hz = pynq, program.name, part, clock_hz
        self._stall_s = stall_s
        self._design = folder_digest(program.folder, program.info)
        self._folder = Scratch("cuvil-bit-")
        self._overlay: Any = None
        self._closed = False

    @abstractmethod
    def _wired(self, hardware: hwh.Hardware) -> W:
        """How a block design carries this design. Raises DeviceError."""

    @abstractmethod
    def _connect(self, made: Any, wiring: W) -> None:
        """Prepare drivers and buffers for a design that was just programmed. Raises DeviceError."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of drivers and buffers."""

    def _begin(self) -> None:
        try:
            with FABRIC:
                self._put()
        except BaseException:
            self.close()
            raise

    def _put(self) -> None:
        """Put the verified bitstream on the fabric, and connect it."""
        found = overlay.registered(self._name, self._design, self._part)
        wiring = self._wired(hwh.read(found.hwh))
        self._overlay = None
        made = overlay.programmed(self._pynq, self._name, found, self._folder.path, self._clock_hz)
        overlay.set_clock(self._pynq, self._name, wiring.clock, self._clock_hz)
        self._connect(made, wiring)
        self._overlay = made

    @contextmanager
    def _running(self) -> Iterator[None]:
        """The fabric is this design's meanwhile. Raises DeviceError after `close`."""
        BOARD.enter()
        with FABRIC:
            if self._closed:
                raise DeviceError(f"{self._name}: is closed; load it again with cuvil.load")
            if self._overlay is None or not self._overlay.is_loaded():
                self._put()
            try:
                yield
            except BaseException:
                self._overlay = None  # what the fabric holds and still writes is unknown: program it before a run
                raise

    def _await(self, done: Callable[[], bool], limit: float, stalled: Callable[[], DeviceError]) -> None:
        """Look until it is done. Raises what `stalled` gives when that takes more than `limit` seconds."""
        start, late = monotonic(), False
        while not done():
            since = monotonic() - start
            if since > limit:
                if late:  # one more look: this process itself may have been away for that long
                    raise stalled()
                late = True
            elif since > _PATIENCE_S:
                sleep(_NAP_S)

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        """Free buffers and files. The fabric keeps its configuration."""
        with FABRIC:
            self._closed, self._overlay = True, None
            self._release()
            self._folder.remove()

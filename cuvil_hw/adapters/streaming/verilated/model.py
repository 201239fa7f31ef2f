"""A Verilator model that runs in this process: words in, words out, clock by clock."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuvil_hw.contract.device import Array
from cuvil_hw.contract.timing import Raw
from cuvil_hw.runtime.scratch import Library

PATIENCE = 1_000_000  # cycles without any word moving, after which a design counts as stuck


class Model:
    """One model, reset. Not safe for several threads at once."""

    def __init__(self, library: Path, name: str, roms: Path | None = None, channels: str = "", trace: str = "") -> None:
        """`roms`: the folder of the contents of cuvil_rom; `channels`: lines "channel writer reader words" of FIFOs to
        watch, a port is "input_0"; `trace`: a file to write. Raises DeviceError."""
        self._library = Library(library, name)
        self._name = name
        self._functions = self._library.functions
        self._functions.cuvil_rtl_timing.restype = ctypes.c_char_p
        self._functions.cuvil_rtl_clock.restype = ctypes.c_long
        self._made = ctypes.c_void_p()
        folder = f"{roms}/" if roms is not None else ""
        try:
            self._library.call(
                "cuvil_rtl_open", folder.encode(), trace.encode(), channels.encode(), ctypes.byref(self._made),
                failure=f"{name} can't be simulated",
            )  # fmt: skip
        except BaseException:
            self._library.close()
            raise

    def restart(self, seed: int = 0, percent: int = 0) -> None:
        """Reset the design, and count from 0. From now on each port holds words back in `percent` of cycles."""
        self._functions.cuvil_rtl_restart(self._made, ctypes.c_ulong(seed), ctypes.c_int(percent))

    def limit(self, channel: str, words: int) -> None:
        """Make a FIFO smaller; 0: as it is."""
        self._functions.cuvil_rtl_limit(self._made, channel.encode(), ctypes.c_long(words))

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], samples: int, packet: bool, patience: int = PATIENCE
    ) -> int:
        """Run some samples; how many cycles that took. Arrays are C-contiguous (samples, words, bytes), a word
        in ceil(bits / 8) bytes. `packet`: only the last sample ends a packet. Raises DeviceError when the design gets
        stuck, or ends a packet elsewhere."""
        before = self.clock
        self._library.call(
            "cuvil_rtl_run", self._made, _pointers(inputs), _pointers(outputs), _words(inputs), _words(outputs),
            ctypes.c_long(samples), ctypes.c_int(packet), ctypes.c_long(patience),
            failure=f"simulation of {self._name} failed",
        )  # fmt: skip
        return self.clock - before

    @property
    def clock(self) -> int:
        """Cycles since the restart."""
        return int(self._functions.cuvil_rtl_clock(self._made))

    def timing(self) -> Raw:
        """What was counted since the restart (contract/timing.py reads it)."""
        found: Raw = json.loads(self._functions.cuvil_rtl_timing(self._made))
        return found

    def close(self) -> None:
        """May be called twice."""
        made, self._made = self._made, ctypes.c_void_p()
        if made:
            self._functions.cuvil_rtl_close(made)
            self._library.close()


def _pointers(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def _words(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_long * len(arrays))(*(a.shape[1] for a in arrays))

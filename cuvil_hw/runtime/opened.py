"""A program on a device and its files. It is freed when no thread is inside, and only by the process that opened it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic
from typing import Any

from cuvil_hw.contract.device import Loaded
from cuvil_hw.errors import DeviceError
from cuvil_hw.runtime.gate import Gate
from cuvil_hw.runtime.scratch import Scratch

END_S = 1.0  # at the end of the process: how long calls of daemon threads are waited for
_all: weakref.WeakSet[Opened] = weakref.WeakSet()


class Opened:
    """Usage in a call: `with opened.inside(): opened.loaded().run(…)`."""

    def __init__(self, name: str, load: Callable[[Path], Loaded]) -> None:
        """`load` receives a private folder, which stays until the program is freed. Raises what `load` raises, and
        CuvilError when there is no usable temporary folder."""
        self._name, self._owner = name, os.getpid()
        self._gate, self._freeing = Gate(), threading.Lock()
        self._folder = Scratch("cuvil-")
        try:
            self._loaded: Loaded | None = load(self._folder.path)
        except BaseException:
            self._folder.remove()
            raise
        _all.add(self)
        _end_with_process()

    @property
    def closed(self) -> bool:
        return self._gate.closed

    def inside(self) -> AbstractContextManager[Any]:
        """Hold this around every use of `loaded`."""
        return self._gate.inside()

    def loaded(self) -> Loaded:
        """Raises DeviceError when it is closed."""
        loaded = self._loaded
        if self._gate.closed or loaded is None:
            raise DeviceError(f"{self._name}: is closed; load it again with cuvil.load")
        return loaded

    def close(self) -> None:
        """Wait for calls in other threads, then free everything; during a call of this thread, nothing is freed yet.
        May be called twice. Does nothing in a forked process: everything belongs to the parent."""
        if os.getpid() == self._owner and self._gate.close():
            self._free()

    def end(self, wait_s: float) -> None:
        """Free everything at the end of the process, except what threads still use after `wait_s` seconds; the
        process's end releases that."""
        if os.getpid() == self._owner and self._gate.close(wait_s):
            self._free()

    def _free(self) -> None:
        with self._freeing:
            loaded, self._loaded = self._loaded, None
        try:
            if loaded is not None:
                loaded.close()
        finally:
            self._folder.remove()


@atexit.register
def _end() -> None:
    deadline = monotonic() + END_S
    for each in list(_all):
        each.end(max(0.0, deadline - monotonic()))


def _end_with_process() -> None:
    """Free programs at the end of a process forked by multiprocessing, too: it ends without running `atexit`
    functions."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and os.getpid() not in _registered:
        _registered.add(os.getpid())
        util.Finalize(None, _end, exitpriority=0)


_registered: set[int] = set()

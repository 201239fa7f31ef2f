"""A build that runs in a thread while a version that is quicker to build already serves calls.

At most one runs at a time in a process. When the interpreter ends, builds that still run are stopped and their
temporary folders removed.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from cuvil_hw.contract import build
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime.forks import Turn

STOP_S = 5.0  # a build that waits for a lock of another process is left alone after this
_turn = Turn()
_all: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Calls `make` in a thread at once; it returns a path or raises CuvilError. It must not use anything that its
    caller may delete meanwhile."""

    def __init__(self, make: Callable[[], Path]) -> None:
        self._make = make
        self._stopped = False
        self._outcome: Path | CuvilError | None = None
        self._thread = threading.Thread(target=self._work, name="cuvil-build", daemon=True)
        _all.add(self)
        self._thread.start()

    def result(self) -> Path | None:
        """The path that `make` returned; None while the build is running, or after `stop`. If the build failed, each
        call raises its error."""
        if self._outcome is None and not self._stopped and not self._thread.is_alive():
            self._build()  # this process was forked: threads stay behind
        if isinstance(self._outcome, CuvilError):
            raise self._outcome
        return self._outcome

    def wait(self) -> None:
        """Wait until the build has finished, failed or been stopped."""
        self._thread.join()

    def stop(self) -> None:
        """End the build, if it still goes on. May be called twice."""
        self._stopped = True
        deadline = monotonic() + STOP_S
        while self._thread.is_alive() and monotonic() < deadline:
            if self._thread.ident is not None:
                build.stop(self._thread.ident)
            self._thread.join(0.02)

    def _work(self) -> None:
        while not _turn.lock.acquire(timeout=0.05):
            if self._stopped:
                return
        try:
            self._build()
        finally:
            _turn.lock.release()

    def _build(self) -> None:
        if self._stopped:
            return
        try:
            self._outcome = self._make()
        except CuvilError as e:
            if not self._stopped:
                self._outcome = e


def wait_for_all() -> None:
    """Wait until no build of this process is running in the background."""
    for each in list(_all):
        each.wait()


@atexit.register
def _stop_all() -> None:
    for each in list(_all):
        each.stop()

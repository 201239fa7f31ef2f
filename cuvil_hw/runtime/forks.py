"""What a forked process must not share with its parent: locks held by other threads, pipes, drivers."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from cuvil_hw.errors import DeviceError


class Forked(Protocol):
    def after_fork(self) -> None:
        """Called in the new process, before anything else runs there: forget what belongs to the old one."""


_known: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(thing: Forked) -> None:
    """While `thing` lives, `thing.after_fork()` is called in every process that is forked from this one."""
    _known.add(thing)


def _after_fork() -> None:
    for thing in list(_known):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Turn:
    """Holds a plain lock that is replaced by a new one in a forked process. Use it as `with x.lock:`; only a plain lock
    can't be left locked by Ctrl-C."""

    def __init__(self) -> None:
        self.after_fork()
        watch(self)

    def after_fork(self) -> None:
        self.lock = threading.Lock()


class OneProcess:
    """Hardware whose driver doesn't survive fork(): only the first process that uses it may go on to use it, not its
    forked children. Processes started without fork are independent."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._owner: int | None = None

    def enter(self) -> None:
        """Call it when the hardware is used. Raises as `check` does."""
        self.check()
        self._owner = os.getpid()

    def check(self) -> None:
        """Raises DeviceError in a process that was forked after its parent had used the hardware."""
        if self._owner not in (None, os.getpid()):
            raise DeviceError(
                f"{self._what} was in use by process {self._owner} when this process ({os.getpid()}) was forked from "
                "it, and its driver does not survive that; start processes with multiprocessing.get_context('spawn')"
            )

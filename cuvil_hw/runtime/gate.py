"""Counts who is inside of something that may only be freed when nobody is."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Any


class Gate:
    """Every thread has a lock of its own, and holds it while it is inside.

    Not a number that goes up and down: Ctrl-C can come between any two steps, and then the number would be wrong for
    ever. `with` takes and gives back a plain lock with no step in between.
    """

    def __init__(self) -> None:
        self.closed = False
        self._locks: dict[int, threading.Lock] = {}

    def inside(self) -> AbstractContextManager[Any]:
        """To be held while inside. Whether the gate is closed is to be asked when it is held. May be nested."""
        lock = self._locks.setdefault(threading.get_ident(), threading.Lock())
        # Only this thread takes its lock, besides `close`, and that has set `closed` before.
        return nullcontext() if lock.locked() else lock

    def close(self, wait_s: float | None = None) -> bool:
        """Let nobody in any more, and wait until everybody else has left. False when somebody is still inside: this
        thread itself (a handler of signals may call this), or another one after `wait_s`."""
        self.closed = True
        deadline = None if wait_s is None else monotonic() + wait_s
        me = threading.get_ident()
        for thread, lock in list(self._locks.items()):
            if thread == me:
                continue
            if not lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - monotonic())):
                return False
            lock.release()
        return not self._locks.get(me, _FREE).locked()

    def idle(self) -> bool:
        """Nobody is inside at this moment."""
        return not any(lock.locked() for lock in list(self._locks.values()))


_FREE = threading.Lock()

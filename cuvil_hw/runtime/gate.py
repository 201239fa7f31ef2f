"""Tracks which threads are inside a section, for resources that may only be freed when none is."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Any


class Gate:
    """Every thread has its own lock and holds it while it is inside.

    A counter would not do: Ctrl-C can interrupt between any two steps and leave it wrong for ever. `with` acquires and
    releases a plain lock in single steps.
    """

    def __init__(self) -> None:
        self.closed = False
        self._locks: dict[int, threading.Lock] = {}

    def inside(self) -> AbstractContextManager[Any]:
        """Hold this lock while inside (`with gate.inside():`), then check whether the gate is closed. May be nested."""
        lock = self._locks.setdefault(threading.get_ident(), threading.Lock())
        # Only this thread takes its lock, besides `close`, and that has set `closed` before.
        return nullcontext() if lock.locked() else lock

    def close(self, wait_s: float | None = None) -> bool:
        """Let no thread in any more, and wait until all others have left. False if one is still inside: this thread
        itself (in a signal handler), or another one after `wait_s` seconds."""
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
        """Whether nobody is inside at this moment."""
        return not any(lock.locked() for lock in list(self._locks.values()))


_FREE = threading.Lock()

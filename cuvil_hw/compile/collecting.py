"""Garbage collection during a compilation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_later() -> Iterator[None]:
    """No garbage collection inside this context: a compilation's objects live until its end, so a collection in between
    only costs time (0.2 s and more beside a loaded PyTorch)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

"""Identifiers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_UNSAFE = re.compile(r"[^ -~]|\\|\?\?")


class Names:
    """Identifiers that are unique among those in scope."""

    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = set(taken)

    def new(self, hint: str) -> str:
        base = re.sub(r"\W", "_", hint, flags=re.ASCII) or "v"
        base = f"v{base}" if base[0].isdigit() else base
        name, n = base, 0
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._taken.add(name)
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Inside this context, new names are taken; at its end they are free again."""
        before = set(self._taken)
        yield
        self._taken = before


def comment_lines(text: str) -> list[str]:
    """`text` as line comments. A user's names may stand in it: nothing may continue a line (backslash, trigraph)."""
    return ["// " + _UNSAFE.sub("_", line).rstrip() for line in text.splitlines()]

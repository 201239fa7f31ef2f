"""What a front end can't import: one exception for a node, and the list of all that makes one error."""

from __future__ import annotations

from cuvil_hw.errors import Refusal, Unsupported


class Refused(Exception):
    """Raised by a converter: why a node can't be imported. The importer collects these into one `Unsupported`."""


class Refusals:
    """Everything of a model that can't be imported, by operator and reason, in the order met."""

    def __init__(self) -> None:
        self._where: dict[tuple[str, str], list[str]] = {}

    def add(self, op: str, reason: str, where: str) -> None:
        """`where`: place in the user's model; empty if it has none."""
        self._where.setdefault((op, reason), []).append(where)

    def first(self) -> tuple[str, str] | None:
        """Operator and reason of the first one; None if there is none."""
        return next(iter(self._where), None)

    def check(self, model: str) -> None:
        """Raise Unsupported, which names `model`, if there are any."""
        if self._where:
            raise Unsupported(
                [
                    Refusal(op, reason, len(places), tuple(dict.fromkeys(p for p in places if p)))
                    for (op, reason), places in self._where.items()
                ],
                model,
            )

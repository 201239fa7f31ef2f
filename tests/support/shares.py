"""Even shares of large sets of cases, and what the pages say that all of them gave. `--full` runs all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def share(items: Sequence[T], group: Callable[[T], str], parts: int, turn: int = 0) -> list[T]:
    """Of each group every `parts`-th item, and at least one. Turns 0 … parts - 1 start at different items, and together
    are all of them. Keeps the order."""
    groups: dict[str, list[T]] = defaultdict(list)
    for item in items:
        groups[group(item)].append(item)
    chosen = {id(item) for found in groups.values() for item in found[turn % min(parts, len(found)) :: parts]}
    return [item for item in items if id(item) in chosen]


def counts_of(page: str) -> dict[str, dict[str, int]]:
    """The numbers of a page's tables: {first cell of a row: {column: number}}. Rows in bold are sums: left out."""
    found: dict[str, dict[str, int]] = {}
    head: list[str] = []
    before: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and set("".join(cells)) <= set("-:"):
            head = before
        elif cells and head and not cells[0].startswith("**"):
            found[cells[0]] = {column: int(cell) for column, cell in zip(head, cells, strict=False) if cell.isdigit()}
        elif not cells:
            head = []
        before = cells
    return found

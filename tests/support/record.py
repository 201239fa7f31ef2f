"""Results of a suite's cases, kept in a file beside the golden ones: a run of any share of the cases is held to it, one
by one, and pages that count results are made from it. `--full` runs every case, `--update-golden` also writes the file.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
T = TypeVar("T")
# By case and device: what came of it. "" is passed, else the status and why, as in "refused: …".
Results = Mapping[str, Mapping[str, str]]


def share(items: Sequence[T], group: Callable[[T], str], parts: int, turn: int = 0) -> list[T]:
    """Of each group every `parts`-th item, and at least one. Turns 0 … parts − 1 start at different items, and together
    are all of them. Keeps the order."""
    groups: dict[str, list[T]] = defaultdict(list)
    for item in items:
        groups[group(item)].append(item)
    chosen = {id(item) for found in groups.values() for item in found[turn % min(parts, len(found)) :: parts]}
    return [item for item in items if id(item) in chosen]


def write(name: str, results: Results) -> None:
    """A case a line, its devices by what came of it."""
    lines = []
    for case, on in results.items():
        by_result: dict[str, list[str]] = defaultdict(list)
        for device, result in on.items():
            by_result[result].append(device)
        row = [case, {result: " ".join(devices) for result, devices in by_result.items()}]
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    (GOLDEN / name).write_text("".join(lines), encoding="utf-8")


def read(name: str) -> dict[str, dict[str, str]]:
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {case: {device: result for result, on in by.items() for device in on.split()} for case, by in rows}


def unlike(found: Results, recorded: Results) -> list[str]:
    """Cases whose results aren't those of the record, with both."""
    pairs: Iterable[tuple[str, str, str]] = (
        (f"{case} on {device}", result, recorded.get(case, {}).get(device, "not in the record"))
        for case, on in found.items()
        for device, result in on.items()
    )
    return [f"{where}: {have or 'passed'}; recorded: {want or 'passed'}" for where, have, want in pairs if have != want]

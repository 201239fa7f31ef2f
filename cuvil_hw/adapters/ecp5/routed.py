"""Reads what place and route reports (nextpnr's --report): the clock that a design reaches, the layer that holds it
back, and the cells it takes.

As a program: `python -m cuvil_hw.adapters.ecp5.routed REPORT CLOCK_MHZ CHECKED` writes the file CHECKED, or fails where
the clock is missed.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Cells of nextpnr-ecp5 by axis; two of DP16KD's ports make one block.
CELLS = {"lut4": "TRELLIS_COMB", "ff": "TRELLIS_FF", "bram18": "DP16KD", "dsp18": "MULT18X18D"}
_LAYER = re.compile(r"\bdesign_\.(?:fifo_)?([A-Za-z]\w*)")


@dataclass(frozen=True, slots=True)
class Routed:
    """`reached_mhz`: of the slowest clock; `path_ns`: its longest path, through `layers` (a process and how many cells
    of it, most first); `used`, `available`: cells by axis."""

    reached_mhz: float
    path_ns: float
    layers: tuple[tuple[str, int], ...]
    used: Mapping[str, int]
    available: Mapping[str, int]


def read(report: Mapping[str, Any]) -> Routed:
    """Raises ValueError for a report without clocks."""
    clocks = {name: c for name, c in report.get("fmax", {}).items() if c.get("achieved")}
    if not clocks:
        raise ValueError("it has no clock")
    slowest = min(clocks, key=lambda name: clocks[name]["achieved"] / clocks[name]["constraint"])
    paths = [p for p in report.get("critical_paths", []) if _of(p["from"], slowest) and _of(p["to"], slowest)]
    steps = paths[0]["path"] if paths else []
    seen = Counter(m for step in steps for end in ("from", "to") for m in _LAYER.findall(step[end]["cell"]))
    cells = report.get("utilization", {})
    return Routed(
        round(clocks[slowest]["achieved"], 2),
        round(sum(step["delay"] for step in steps), 2),
        tuple(seen.most_common()),
        {axis: int(cells.get(cell, {}).get("used", 0)) for axis, cell in CELLS.items()},
        {axis: int(cells.get(cell, {}).get("available", 0)) for axis, cell in CELLS.items()},
    )


def _of(edge: str, clock: str) -> bool:
    return edge.endswith(f" {clock}")


def main(argv: Sequence[str]) -> int:
    report, clock, checked = argv
    try:
        found = read(json.loads(Path(report).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as e:
        print(f"{report}: this report of place and route is not understood: {e}")
        return 1
    if found.reached_mhz < float(clock):
        where = found.layers[0][0] if found.layers else "the serial line"
        print(
            f"timing: after routing the design runs at {found.reached_mhz:g} MHz, the profile asks for {clock} MHz; "
            f"its longest path takes {found.path_ns:g} ns, in layer {where}. "
            "Lower clock_mhz, or take a part of a faster grade"
        )
        return 1
    Path(checked).write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

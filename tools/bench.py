"""Runs the benchmarks one after another and keeps their figures in benchmarks/history.jsonl.

    python tools/bench.py                  # all of benchmarks/*.py
    python tools/bench.py --only import    # those with this in their name
    python tools/bench.py --show           # what earlier runs gave, newest last

A line of the history is one benchmark's figures, with the day, the revision and the processor. Times of different
machines can't be compared; ratios to a peer that ran beside can.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def processor() -> str:
    """Its name, as Linux gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def revision(root: Path) -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def numbers(figures: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number in nested data, by its way."""
    if isinstance(figures, bool):
        return
    if isinstance(figures, int | float):
        yield path, figures
    elif isinstance(figures, dict):
        for key, value in figures.items():
            yield from numbers(value, f"{path}.{key}" if path else str(key))
    elif isinstance(figures, list):
        for i, value in enumerate(figures):
            yield from numbers(value, f"{path}[{i}]")


def run(benchmark: Path, history: Path, root: Path) -> int:
    """Run one benchmark and add its figures to the history; its exit status."""
    with tempfile.TemporaryDirectory(prefix="cuvil-bench-") as folder:
        figures = Path(folder) / "figures.json"
        status = subprocess.run([sys.executable, str(benchmark), "--json", str(figures)], check=False).returncode
        if figures.is_file():
            line = {
                "benchmark": benchmark.stem,
                "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
                "revision": revision(root),
                "processor": processor(),
                "status": status,
                "figures": json.loads(figures.read_text("utf-8")),
            }
            with history.open("a", encoding="utf-8") as f:
                f.write(json.dumps(line, sort_keys=True) + "\n")
    return status


def show(history: Path, only: str) -> None:
    """Print the numbers of every run, a line each."""
    for text in history.read_text("utf-8").splitlines() if history.is_file() else ():
        line = json.loads(text)
        if only in line["benchmark"]:
            for name, value in numbers(line["figures"]):
                print(f"{line['date']} {line['revision']:<14} {line['benchmark']:<22} {name:<48} {value:.6g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PART", help="benchmarks with PART in their name")
    parser.add_argument("--show", action="store_true", help="print the history, run nothing")
    parser.add_argument("--folder", type=Path, default=ROOT / "benchmarks", help="where benchmarks and history are")
    given = parser.parse_args()
    history = given.folder / "history.jsonl"
    if given.show:
        show(history, given.only)
        return 0
    found = [b for b in sorted(given.folder.glob("*.py")) if given.only in b.stem]
    if not found:
        parser.error(f"no benchmark has {given.only!r} in its name")
    return max(run(benchmark, history, ROOT) for benchmark in found)


if __name__ == "__main__":
    sys.exit(main())

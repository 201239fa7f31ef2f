"""The history of benchmarks: a line for each that ran, also for one that failed its aim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = """import json, sys
json.dump({"ratio": %s, "by": [{"wall": 2}], "ok": True}, open(sys.argv[sys.argv.index("--json") + 1], "w"))
sys.exit(%d)
"""


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "bench.py"), "--folder", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_figures_of_every_run_are_kept(tmp_path: Path) -> None:
    (tmp_path / "fast.py").write_text(BENCH % (10.5, 0))
    (tmp_path / "slow.py").write_text(BENCH % (0.5, 1))
    assert bench(tmp_path, "--only", "fast").returncode == 0
    assert bench(tmp_path).returncode == 1
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [(x["benchmark"], x["status"], x["figures"]["ratio"]) for x in lines] == [
        ("fast", 0, 10.5),
        ("fast", 0, 10.5),
        ("slow", 1, 0.5),
    ]
    assert all(x["revision"] and x["processor"] and x["date"] for x in lines)
    shown = bench(tmp_path, "--show", "--only", "slow").stdout.splitlines()
    assert [line.split()[-2:] for line in shown] == [["by[0].wall", "2"], ["ratio", "0.5"]]


def test_an_unknown_benchmark_is_an_error(tmp_path: Path) -> None:
    done = bench(tmp_path, "--only", "nothing")
    assert done.returncode == 2
    assert "nothing" in done.stderr

"""What is generated for a fixed share of the programs of `tools/replay.py` is what the committed table says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import replay
from tools.replay_worker import grouped

# Every front end, integers and floats, a convolution, a table, state and a loop.
SHARE = (
    "mlp-fixed16-6", "digits-int8-O3", "residual-int8", "softmax-int8", "norm-between-int8",
    "onnx-qdq", "onnx-state", "python-polynomial",
)  # fmt: skip
PAIR = ("mlp-int8", "h100")
KERNEL = 'extern "C" __global__'


@pytest.fixture(scope="module")
def table() -> replay.Digests:
    return replay.read(replay.TABLE.read_text(encoding="utf-8"))


@pytest.mark.must_run
@pytest.mark.needs("ortools", "torch", "onnx")
def test_share_is_what_the_table_says(table: replay.Digests) -> None:
    pairs = replay.chosen(SHARE, ())
    assert {name for name, _ in pairs} == set(SHARE)
    found = replay.differences(table, replay.replay(replay.ROOT, pairs).digests())
    assert not found, "\n".join(
        [*found, "see the texts: tools/replay.py --against main; if meant: make replay ARGS=--update"]
    )


def test_table_is_of_all_programs_and_written_as_the_tool_writes_it(table: replay.Digests) -> None:
    assert set(table) == set(replay.chosen((), ()))
    assert replay.written(table) == replay.TABLE.read_text(encoding="utf-8")


@pytest.mark.must_run
@pytest.mark.needs("ortools", "torch", "onnx")
def test_a_changed_source_is_found(tmp_path: Path) -> None:
    """In a copy of the package, CUDA kernels begin with other words: the texts differ where those stand, alone."""
    for folder in ("cuvil", "cuvil_hw", "targets", "hls", "rtl", "sim", "bitstreams"):
        shutil.copytree(replay.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    files = {path: path.read_text(encoding="utf-8") for path in (tmp_path / "cuvil_hw").rglob("*.py")}
    path, text = next((path, text) for path, text in files.items() if KERNEL in text)
    path.write_text(text.replace(KERNEL, f"{KERNEL} /* changed */"), encoding="utf-8")
    before, after = (replay.replay(tree, [PAIR]) for tree in (replay.ROOT, tmp_path))
    lines = replay.differences(before.digests(), after.digests())
    assert lines == ["mlp-int8 for h100: sources/model.cu differs"]
    shown = replay.diff(before.texts[PAIR], after.texts[PAIR], PAIR, "HEAD")
    assert shown.startswith("--- HEAD:mlp-int8@h100/sources/model.cu\n+++ now:mlp-int8@h100/sources/model.cu\n")
    assert any(line.startswith(f"+{KERNEL} /* changed */ void") for line in shown.splitlines())


@pytest.mark.needs("git")
def test_a_revision_is_written_elsewhere(tmp_path: Path) -> None:
    if not (replay.ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert (replay.checked_out("HEAD", tmp_path) / "cuvil_hw" / "api.py").is_file()
    with pytest.raises(SystemExit, match="no revision nowhere-to-be-found"):
        replay.checked_out("nowhere-to-be-found", tmp_path)


def test_arithmetic_is_that_of_any_processor() -> None:
    """NumPy says itself that it uses nothing beyond its baseline."""
    code = "import numpy; print(numpy.show_config(mode='dicts')['SIMD Extensions'].get('found', []))"
    env = {**os.environ, **replay.plain_arithmetic()}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_differences_say_what_is_new_gone_and_other() -> None:
    before = {("p", "t"): {"a": "1", "b": "2", "c": "3"}}
    after = {("p", "t"): {"a": "1", "b": "9", "d": "4"}, ("q", "t"): {}}
    assert replay.differences(before, after) == [
        "p for t: b differs", "p for t: c is gone", "p for t: d is new", "q for t: not in the table",
    ]  # fmt: skip


def test_table_reads_back_as_it_was_written() -> None:
    usual = {"a.c": "0" * 12, "with blank": "1" * 12}
    digests = {
        ("p", "t"): usual,
        ("q", "t"): {**usual, "a.c": "2" * 12},
        ("r", "t"): {"a.c": "0" * 12},
        ("s", "t"): {"error": "3" * 12},
        ("v", "t"): usual,
        ("p", "u"): usual,
    }
    text = replay.written(digests)
    assert text.count("with blank") == 3  # said once for t, absent in r, and in u
    assert replay.read(text) == digests


def test_figures_of_layers_are_grouped_by_layer() -> None:
    layer = {"name": "fc", "schedule": "x2", "cycles": 7, "use": {"dsp": 3.0}, "unheard": 1}
    groups = grouped({"model": "m", "layers": [layer], "quantization": {"sqnr": 1.23456}, "notes": ["n"], "unheard": 2})
    assert groups["cycles"] == {"layers": {"fc": {"cycles": 7}}}
    assert groups["resources"] == {"layers": {"fc": {"use": {"dsp": 3.0}}}}
    assert groups["schedule"] == {"layers": {"fc": {"name": "fc", "schedule": "x2", "unheard": 1}}}
    assert groups["precision"] == {"quantization": {"sqnr": 1.235}}
    assert groups["about"] == {"model": "m", "unheard": 2}


def test_unknown_choices_are_refused_with_what_there_is() -> None:
    with pytest.raises(SystemExit, match=r"no target h100x; there are x86_64-linux-gnu, .*mlu370-x4"):
        replay.chosen((), ("h100x",))
    with pytest.raises(SystemExit, match=r"no program nothing; there are mlp-int8, "):
        replay.chosen(("nothing",), ())

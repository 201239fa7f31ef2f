"""docs/cli.md says what the commands do: every option, JSON key and variable; -v, -q and completion do what it says."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper

from cuvil_hw.adapters.agilex.runtime import PYTHON_VARIABLE
from cuvil_hw.cli import output
from cuvil_hw.cli.app import app
from cuvil_hw.cli.main import main
from cuvil_hw.cli.several import complete_targets
from cuvil_hw.runtime import cache

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section {title!r}"
    return found[1]


def commands(command: Any = None, path: str = "cuvil") -> Iterator[tuple[str, Any]]:
    """Every command by its words."""
    command = command or typer.main.get_command(app)
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("-")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer, its input, and a program of it."""
    place = tmp_path_factory.mktemp("cli-docs")
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", kinds[:1], kinds[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), place / "net.onnx")
    np.save(place / "x.npy", np.ones((1, 4), np.float32))
    assert main(["compile", str(place / "net.onnx"), "-t", "cpu", "-o", str(place / "net.cuvil"), "-q"]) == 0
    return place


def test_every_command_and_option_is_named_in_its_section() -> None:
    everywhere = options(typer.main.get_command(app)) | {"--help"}
    assert everywhere <= set(OPTION.findall(section("Options of every command")))
    for path, command in commands():
        words = path.split()
        if len(words) == 1 or hasattr(command, "commands"):
            continue
        text = section(" ".join(words[:2]))
        assert f"`{path}`" in text or f"`{path} " in text
        assert options(command) - set(OPTION.findall(text)) == set(), path


def test_no_option_is_named_that_no_command_has() -> None:
    there = {name for _, command in commands() for name in options(command)} | {"--help", "-vv"}
    shown = {name for piece in re.findall(r"`([^`]+)`", PAGE) for name in OPTION.findall(piece)}
    assert shown - there - {"-e", "-c", "-"} == set()  # pip's own


def test_every_variable_that_is_read_is_named() -> None:
    read = {PYTHON_VARIABLE, *cache._ENVIRONMENT}
    for path in (ROOT / "cuvil_hw").rglob("*.py"):
        read |= set(re.findall(r'(?:environ\.get\(|environ\[|getenv\()"(\w+)"', path.read_text(encoding="utf-8")))
    assert {"CUVIL_CACHE", "CUVIL_HOME", "NEUWARE_HOME"} <= read
    assert {name for name in read if name not in section("Environment variables")} == set()


def test_keys_of_json_are_those_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, made, x = (str(folder / name) for name in ("net.onnx", "net.cuvil", "x.npy"))
    board = tmp_path / "board.yaml"
    board.write_text("schema: cuvil-profile/1\nname: own\nextends: pynq-z2\n", encoding="utf-8")
    for line in (
        ["check", net, "-t", "cpu"],
        ["compile", net, "-t", "cpu", "-o", str(tmp_path / "n.cuvil"), "--sources", str(tmp_path / "s")],
        ["compare", made, str(tmp_path / "n.cuvil")],
        ["run", made, "-i", x],
        ["test", made, "-i", x, "--expect", x],
        ["graph", made, "-o", str(tmp_path / "g.svg")],
        ["opt", "--list"],
        ["targets", "list"],
        ["targets", "check", str(board)],
        ["bitstreams", "list"],
    ):
        capsys.readouterr()
        assert main([*line, "--json", "-q"]) == 0, line
        out, err = capsys.readouterr()
        assert not err
        keys = json.loads(out).keys()
        named = section(f"cuvil {line[0]}")
        assert [key for key in keys if f"`{key}`" not in named] == [], line
    assert main(["report", made, "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    named = section("cuvil report").partition("the report itself:")[2].partition("\n")[0]
    assert set(re.findall(r"`(\w+)`", named)) <= there.keys()


def test_quiet_prints_errors_only(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, result = str(folder / "net.cuvil"), tmp_path / "y.npy"
    for line in (
        ["run", made, "-i", str(folder / "x.npy"), "-o", str(result), "--quiet"],
        ["-q", "report", made],
        ["targets", "-q", "list"],
    ):
        assert main(line) == 0
        assert capsys.readouterr() == ("", "")
    assert np.array_equal(np.load(result), np.load(folder / "x.npy"))
    assert main(["targets", "show", "no-such", "-q"]) == 1
    out, err = capsys.readouterr()
    assert (out, err[:6]) == ("", "error:")
    assert main(["targets", "show", "cpu"]) == 0  # what one line asks for is not kept
    assert capsys.readouterr().out


def test_verbose_logs_steps_and_tools(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUVIL_CACHE", str(tmp_path / "cache"))
    line = ["compile", str(folder / "net.onnx"), "-t", "cpu", "-o", str(tmp_path / "n.cuvil"), "--json"]
    assert main([*line, "-v"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["artifact"]
    assert re.search(r"cuvil\.compile: [\w-]+: choose schedules$", err, re.MULTILINE)
    assert re.search(r"cuvil\.build: .*gcc", err)
    assert "built before" not in err
    assert main([*line, "-vv"]) == 0
    assert "cuvil.build: built before: " in capsys.readouterr().err
    assert logging.getLogger("cuvil").handlers == []
    assert main(line) == 0
    assert capsys.readouterr().err == ""


def test_completion() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_CUVIL_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "cuvil_hw.cli.main"]
    done = subprocess.run(
        command, env={**environment, "COMP_WORDS": "cuvil comp"}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["compile", "compare"]
    assert complete_targets("pynq") == ["pynq-z2"]
    assert complete_targets("cpu,pynq") == ["cpu,pynq-z2"]


def test_wide_tables_become_several_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["program", "target", "latency", "inferences/s", "origin", "difference"]
    rows = [["kws.cuvil", "x86_64-linux-gnu", "53.5 µs", "18,708", "analytic; " * 9, "0.01"]]
    numeric = [False, False, True, True, False, True]
    blocks = output.split_columns(columns, rows, numeric, 80)
    assert blocks == [[0, 1, 2, 3, 4], [0, 5]]
    assert output.split_columns(columns, rows, numeric, 300) == [[0, 1, 2, 3, 4, 5]]
    assert output.split_columns(columns, rows, numeric, 10) == [[0, i] for i in range(1, 6)]  # nothing gets lost
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    output.show_table(columns, rows, numeric, split=True)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("kws.cuvil") == 2
    for whole in ("x86_64-linux-gnu", "53.5 µs", "18,708", "0.01", "inferences/s"):
        assert whole in shown
    assert shown.count("analytic;") == 9

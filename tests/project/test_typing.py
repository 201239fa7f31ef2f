"""What type checkers and editors see of the façade."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cuvil
from cuvil_hw import api

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import cuvil

reveal_type(cuvil.compile("a.onnx", "cpu", None, None, "int8", shapes={"x": (1, 2)}, state={"a": "b"}))
cuvil.compile("a.onnx", "cpu", shape={"x": (1, 2)})

@cuvil.compile
def f(x: int) -> str: return ""
reveal_type(f)

@cuvil.compile(target="cpu", opt_level=3, precision="int8")
def g(x: int) -> str: return ""
reveal_type(g)
cuvil.compile(f, "cpu", optlevel=3)
"""


@pytest.mark.needs("mypy")
def test_type_checkers_know_the_options_of_compile(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(CODE)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "Possible overload" not in line and "note:     " not in line]
    said = "\n".join(lines)
    assert 'user.py:4: note: Revealed type is "cuvil_hw.runtime.executable.Executable | ' in said
    assert 'user.py:5: error: Unexpected keyword argument "shape"' in said
    assert 'user.py:9: note: Revealed type is "def (x: int) -> str"' in said
    assert 'user.py:13: note: Revealed type is "def (x: int) -> str"' in said
    assert "user.py:14: error: Unexpected keyword argument" in said or "user.py:14: error: No overload" in said


def test_help_shows_every_option_of_compile() -> None:
    assert list(inspect.signature(cuvil.compile).parameters) == list(inspect.signature(api.compile).parameters)

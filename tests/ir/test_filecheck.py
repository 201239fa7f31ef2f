"""Passes as text: each .mlir file names its passes in the first line and says in CHECK lines what must come out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cuvil_hw.ir.program import parse
from cuvil_hw.passes.pipeline import run_pipeline

FILES = sorted(Path(__file__).parent.glob("*.mlir"))


def check(file: Path, text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "filecheck", str(file)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


@pytest.mark.needs("filecheck")
@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_pass_output(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    head = source.splitlines()[0]
    assert head.startswith("// PASSES: "), f"{file.name} must begin with // PASSES: name,name"
    program = parse(source)
    run_pipeline(program, head.removeprefix("// PASSES: ").split(","))
    result = check(file, program.text())
    assert result.returncode == 0, result.stdout + result.stderr
    parse(program.text())  # what passes print can be read again
    assert check(file, "builtin.module {}").returncode != 0, f"{file.name} accepts anything"

"""Programs that wheels bring are found without an activated environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cuvil_hw.contract import programs
from cuvil_hw.contract.build import BuildPlan, Command


def test_a_program_of_a_wheel_runs_without_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    tool = scripts / "tool-of-a-wheel"
    tool.write_text(f"#!{sys.executable}\nopen('made', 'w').write('1')\n")
    tool.chmod(0o700)
    plan = BuildPlan({}, (Command((tool.name,), "test", "get it"),), ("made",))
    assert plan.missing_tool() is not None
    python = scripts / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    assert programs.find(tool.name) == str(tool)
    assert plan.missing_tool() is None
    assert plan.execute(tmp_path) == {"made": b"1"}

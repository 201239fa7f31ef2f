"""Programs and models as tests.

pytest --cuvil-rig rig.yaml FILE.cuvil …: each check of each program on each board of its target is a test.
pytest --cuvil-target cpu,pynq-z2 FILE.onnx FILE.cuvil …: each model compiles for each target and gives what its IR
means on the device that the target opens here (a simulator, where there is no hardware); a program runs on its own.
The fixture `cuvil_target` is the name of each of these targets in turn.

Every pytest of an environment that has cuvil-hw loads this, so the rest is imported when a program is collected.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cuvil", "programs on boards and simulators (cuvil-hw)")
    group.addoption("--cuvil-rig", metavar="RIG", help="rig file: run .cuvil files on its boards")
    group.addoption("--cuvil-board", metavar="NAME", action="append", help="only this board of the rig")
    group.addoption("--cuvil-feature", metavar="WORD", action="append", help="only boards with this feature")
    group.addoption(
        "--cuvil-target",
        metavar="A,B",
        help="targets: .onnx and .cuvil files are tests, and so is each test with the fixture cuvil_target",
    )
    group.addoption("--cuvil-interface", metavar="NAME", help="device that they run on: sim, hw … (the target's)")


def targets(config: pytest.Config) -> list[str]:
    """Those of --cuvil-target, in their order."""
    return [t.strip() for t in (config.getoption("--cuvil-target") or "").split(",") if t.strip()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without --cuvil-target the target is this machine's processor."""
    if "cuvil_target" in metafunc.fixturenames:
        metafunc.parametrize("cuvil_target", targets(metafunc.config) or ["cpu"])


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    if file_path.suffix == ".cuvil" and parent.config.getoption("--cuvil-rig"):
        from cuvil_hw.rig.pytest_items import ProgramFile

        return ProgramFile.from_parent(parent, path=file_path)
    if file_path.suffix in (".cuvil", ".onnx") and targets(parent.config):
        from cuvil_hw.rig.pytest_targets import TargetFile

        return TargetFile.from_parent(parent, path=file_path)
    return None

"""pytest --cuvil-rig rig.yaml FILE.cuvil …: each check of each program on each board of its target is a test.

Every pytest of an environment that has cuvil-hw loads this, so the rest is imported when a program is collected.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cuvil", "programs on boards (cuvil-hw)")
    group.addoption("--cuvil-rig", metavar="RIG", help="rig file: run .cuvil files on its boards")
    group.addoption("--cuvil-board", metavar="NAME", action="append", help="only this board of the rig")
    group.addoption("--cuvil-feature", metavar="WORD", action="append", help="only boards with this feature")


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    if file_path.suffix == ".cuvil" and parent.config.getoption("--cuvil-rig"):
        from cuvil_hw.rig.pytest_items import ProgramFile

        return ProgramFile.from_parent(parent, path=file_path)
    return None

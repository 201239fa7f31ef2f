"""The tests that pytest_plugin.py collects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuvil_hw.rig.rig_file import read_rig
from cuvil_hw.rig.suite import BoardCheck, run
from cuvil_hw.runtime import artifact
from cuvil_hw.runtime.on_board import CHECKS
from cuvil_hw.target.profile import load_profile


class ProgramFile(pytest.File):
    """One program. It runs on its boards when the first of its checks is asked for."""

    _found: dict[tuple[str, str], BoardCheck] | None = None

    def collect(self) -> Iterator[pytest.Item]:
        option = self.config.getoption
        profile = artifact.read(self.path).manifest.profile.get("name")
        rig = read_rig(Path(option("--cuvil-rig")))
        for board in rig.choose(option("--cuvil-board") or (), option("--cuvil-feature") or ()):
            if load_profile(board.profile).name == profile:
                for check in CHECKS:
                    item: CheckItem = CheckItem.from_parent(self, name=f"{board.name}-{check}")
                    item.board, item.check = board.name, check
                    yield item

    def result(self, board: str, check: str) -> BoardCheck | None:
        if self._found is None:
            boards = list(
                dict.fromkeys(i.board for i in self.session.items if isinstance(i, CheckItem) and i.parent is self)
            )
            results = run(read_rig(Path(self.config.getoption("--cuvil-rig"))), [self.path], boards)
            self._found = {(r.board, r.check): r for r in results}
        return self._found.get((board, check))


class CheckItem(pytest.Item):
    board: str
    check: str

    def runtest(self) -> None:
        parent = self.parent
        assert isinstance(parent, ProgramFile)
        found = parent.result(self.board, self.check)
        if found is None or found.status == "skipped":
            pytest.skip(found.why if found is not None else "an earlier check could not be made")
        for name, value in found.figures.items():
            self.user_properties.append((name, value))
        if not found.right:
            raise CheckError(found.why)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, CheckError) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class CheckError(Exception):
    """What a device did wrong, or why it could not be found out."""

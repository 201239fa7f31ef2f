"""The tests of pytest --cuvil-target: a model or program on the device of each target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuvil_hw import api
from cuvil_hw.entry import gate
from cuvil_hw.errors import CuvilError
from cuvil_hw.rig.pytest_items import CheckError
from cuvil_hw.rig.pytest_plugin import targets
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.load import load
from cuvil_hw.target.profile import load_profile


class TargetFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        for target in targets(self.config):
            item: TargetItem = TargetItem.from_parent(self, name=target)
            item.target = target
            yield item


class TargetItem(pytest.Item):
    target: str

    def runtest(self) -> None:
        interface = self.config.getoption("--cuvil-interface")
        profile = load_profile(self.target)
        if self.path.suffix == ".onnx":
            program = api.compile(self.path, profile, interface=interface)
        else:
            program = load(self.path, interface)
        with program:
            if not isinstance(program, Executable):
                raise CheckError(f"{program.name}: has open shapes; give the program of one size, program.at(…)")
            made_for = program.artifact.manifest.profile.get("name")
            if made_for != profile.name:
                pytest.skip(f"compiled for {made_for}, not for {profile.name}")
            checked = gate.golden(program)
            self.user_properties.append(("vectors", checked.wanted))
            self.user_properties.append(("interface", program.interface))
        if not checked.passed:
            raise CheckError(f"{program.name} on {self.target} ({program.interface}): {checked.got}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        own = isinstance(excinfo.value, CheckError | CuvilError)
        return str(excinfo.value) if own else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.path.name} on {self.target}"

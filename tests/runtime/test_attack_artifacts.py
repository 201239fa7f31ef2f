"""Artifacts whose manifest, sealed again, says what no adapter wrote: ArtifactError, never another exception."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.contract.calling import KeptState
from cuvil_hw.runtime.executable import Executable


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.sum += x
        return {"y": self.sum * 2}


@pytest.fixture(scope="module")
def program() -> Executable:
    made = cuvil.compile(Kept(), "cpu", example_inputs=torch.zeros(3))
    assert isinstance(made, Executable)
    return made


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("info", {"workspace_bytes": "../x"}),
        ("info", {"workspace_bytes": {}}),
        ("info", {"constants": 3}),
        ("info", {"constants": ["x"]}),
        ("info", {"constants": [{}]}),
    ],
)
def test_records_of_another_shape(program: Executable, part: str, value: dict[str, Any]) -> None:
    manifest = program.artifact.manifest
    changed = replace(manifest, **{part: {**getattr(manifest, part), **value}})
    with pytest.raises(cuvil.ArtifactError, match=f"its record for the device is wrong: {next(iter(value))}"):
        Executable(replace(program.artifact, manifest=changed)).open()


@pytest.mark.parametrize(("part", "value"), [("profile", {"settings": "x"}), ("profile", {"settings": [1]})])
def test_settings_of_another_shape(program: Executable, part: str, value: dict[str, Any]) -> None:
    manifest = program.artifact.manifest
    changed = replace(manifest, **{part: {**getattr(manifest, part), **value}})
    with pytest.raises(cuvil.ArtifactError, match="adapter cpu can't read its own part of the manifest"):
        Executable(replace(program.artifact, manifest=changed)).open()


def test_a_result_that_is_kept(program: Executable) -> None:
    manifest = program.artifact.manifest
    state = manifest.calling.states[0]
    calling = replace(manifest.calling, states=(KeptState(state.input, "y", state.initial),))
    with pytest.raises(cuvil.ArtifactError, match="returns 'y', which is no output that callers get"):
        Executable(replace(program.artifact, manifest=replace(manifest, calling=calling)))

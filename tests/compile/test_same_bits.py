"""The tool behind `make same-bits` notices a single wrong bit, and says what did not run."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.types import TensorType

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.needs("gcc", "g++", "ortools", "sklearn")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("same_bits", ROOT / "tools" / "same_bits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["same_bits"] = module
    spec.loader.exec_module(module)
    return module


def small(tool: ModuleType) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    return tool.Case("small", model, 3.0, {"example_inputs": torch.zeros(1, 5), "precision": "fixed<16,6>"})


def devices(tool: ModuleType, *columns: str) -> list[Any]:
    return [d for d in tool.DEVICES if d.column in columns]


def test_equal_devices(tool: ModuleType) -> None:
    found = list(tool.compare(small(tool), devices(tool, "cpu", "pynq-z2"), 32))
    assert found[0][0].startswith("32 samples")
    assert found[1:] == [("=", True), ("=", True)]


def test_one_wrong_bit_fails(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tool.on_device

    def wrong(executable: cuvil.Executable, interfaces: Sequence[str], x: Any) -> tuple[Any, str]:
        got, interface = right(executable, interfaces, x)
        got.reshape(-1).view(np.uint32)[17] ^= 1
        return got, interface

    monkeypatch.setattr(tool, "on_device", wrong)
    assert list(tool.compare(small(tool), devices(tool, "cpu"), 32))[1] == ("1 of 96 differ", False)
    monkeypatch.setattr(tool, "cases", lambda folder, only: {"small": lambda: small(tool)})
    assert tool.main(["--devices", "cpu"]) == 1


def test_a_missing_tool_is_no_difference_and_is_said(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(executable: cuvil.Executable, interfaces: Sequence[str], x: Any) -> tuple[Any, str]:
        raise cuvil.ToolNotFound("emulator", "run kernels", "install it")

    monkeypatch.setattr(tool, "on_device", absent)
    monkeypatch.setattr(tool, "cases", lambda folder, only: {"small": lambda: small(tool)})
    assert tool.main(["--devices", "cpu"]) == 0
    assert "not run: emulator" in capsys.readouterr().out


def test_the_second_interface_runs_when_the_first_lacks_its_tools(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUVIL_AGILEX_PYTHON", "/nowhere/python")
    assert list(tool.compare(small(tool), devices(tool, "agilex"), 32))[1] == ("= (sim-sycl)", True)


def test_inputs_saturate_and_vary(tool: ModuleType) -> None:
    x = tool.inputs(TensorType((1, 5), "f32"), 3.0, 32)
    assert x.shape == (32, 5)
    assert (x[3] > 1e6).all()
    assert (x[4] < -1e6).all()
    assert len(np.unique(x, axis=0)) == 32


def test_absent_models_are_named(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(tool.cases(tmp_path, ["jets", "kws_ref_model"])) == ["jets"]
    out = capsys.readouterr().out
    assert out.startswith("kws_ref_model: skipped, there is no ")
    assert out.count("\n") == 1
    with pytest.raises(SystemExit, match="no model nothing"):
        tool.cases(tmp_path, ["nothing"])

"""What `check` assumes of ranges costs what calibrated ones cost, and advice doesn't lead in circles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw import api
from cuvil_hw.adapters.target_check import adapter_for
from cuvil_hw.compile import numbers
from cuvil_hw.compile.precision import choose_precision
from cuvil_hw.entry.check.coverage import assumed
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.quantize.calibrate import Statistics, collect
from cuvil_hw.target.profile import load_profile

pytestmark = pytest.mark.needs("ortools")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.f(x))


def least(program: Program, statistics: Statistics) -> dict[str, float]:
    """Use of the smallest form of every kernel on a PYNQ-Z2."""
    profile = load_profile("pynq-z2")
    adapter = adapter_for(profile, None)
    chosen = choose_precision(program, "int8", True, profile)
    ready = numbers.quantize(program.clone(), chosen, statistics)
    numbers.make_integer(ready, chosen)
    graph = api.fuse(api.divide(ready, adapter, profile).core, adapter)
    kernels = api.propose(graph, adapter, profile).kernels
    uses = [min((c.estimate.use for c in k.candidates), key=lambda use: use.get("lut", 0)) for k in kernels]
    return {axis: sum(use.get(axis, 0) for use in uses) for axis in ("lut", "ff", "dsp")}


def test_assumed_ranges_cost_what_calibrated_ones_do() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Residual(), Residual()).eval()
    program = api.import_model(model, torch.zeros(1, 3, 8, 8), None, None)
    numbers.simplify(program)
    # Several sets of data: by the luck of a scale one multiplier is narrower or wider.
    sets = [np.random.default_rng(seed).normal(size=(8, 3, 8, 8)).astype(np.float32) for seed in range(3)]
    known, guessed = [least(program, collect(program, data)) for data in sets], least(program, assumed(program))
    for axis, used in guessed.items():
        # Multipliers and memories come whole.
        assert used >= np.floor(0.97 * np.mean([k[axis] for k in known])), axis


def reasons(precision: str | None, data: Any, target: str) -> str:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).double().eval()
    with pytest.raises(CuvilError) as refused:
        cuvil.compile(model, target, torch.zeros(1, 8, dtype=torch.float64), data, precision)
    return str(refused.value)


@pytest.mark.parametrize("target", ["pynq-z2", "mlu270"])
def test_f64_where_there_is_none_is_to_be_converted_whatever_is_tried(target: str) -> None:
    data = np.random.default_rng(0).normal(size=(8, 8))
    for text in (
        reasons("int8", data, target), reasons("int8", None, target), reasons("float32", None, target)
    ):  # fmt: skip
        assert "convert the model to f32" in text
        assert "precision='float32'" not in text
        assert "quantize the model" not in text

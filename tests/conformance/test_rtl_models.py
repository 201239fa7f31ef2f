"""Whole models as SystemVerilog in Verilator: the meaning's bits whatever ports hold back, and the report's cycles.

Minutes each, so with `--full` alone (`make conformance`; -s shows the cycles); tests/adapters/rtl has small networks in
every run. The digits CNN is in examples/digits_zynq.py and `make demo-ecp5`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw import dtypes
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.ir.program import evaluate, parse
from cuvil_hw.runtime.executable import Executable

pytestmark = [pytest.mark.slow, pytest.mark.needs("ortools", "verilator", "g++", "make")]
TARGET = "pynq-z2"
SAMPLES, PATTERNS = 32, 100


class Net(nn.Module):
    """Two resolutions and a way around the lower one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.below = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.last, self.head = nn.Conv2d(12, 4, 3, padding=1), nn.Conv2d(4, 1, 1)

    def forward(self, x: Any) -> Any:
        around = torch.relu(self.first(x))
        low = torch.relu(self.below(nn.functional.max_pool2d(around, 2)))
        joined = torch.cat([nn.functional.interpolate(low, scale_factor=2), around], 1)
        return self.head(torch.relu(self.last(joined)))


class Cell(nn.Module):
    """An LSTM cell, state in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        return self.cell(x, (h, c))


@dataclass(frozen=True)
class Model:
    """`made`: the module, or the path of an ONNX file in the folder `models`; `shapes`: of its inputs."""

    made: Callable[[], nn.Module] | str
    shapes: tuple[tuple[int, ...], ...]
    precision: str | None = None

    def inputs(self, count: int, seed: int) -> list[np.ndarray[Any, Any]]:
        draw = np.random.default_rng(seed)
        return [draw.normal(size=(count, *s[1:])).astype(np.float32) for s in self.shapes]

    def compiled(self, models: Path) -> Executable:
        if isinstance(self.made, str):
            return cuvil.compile(models / self.made, TARGET)
        torch.manual_seed(0)
        data = None
        if self.precision == "int8":
            stacked = self.inputs(32, 7)
            data = [tuple(torch.tensor(a[n : n + 1]) for a in stacked) for n in range(32)]
        example = tuple(torch.zeros(s) for s in self.shapes)
        return cuvil.compile(self.made().eval(), TARGET, example, calibration=data, precision=self.precision)


def jets() -> nn.Module:
    sizes = (16, 64, 32, 32, 5)
    layers = [n for a, b in pairwise(sizes) for n in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


MODELS = {
    "lstm": Model(Cell, ((1, 8), (1, 8), (1, 8)), "int8"),
    "unet": Model(Net, ((1, 1, 8, 8),), "int8"),
    "jets": Model(jets, ((1, 16),), "fixed<16,6>"),
    "ad": Model("ad_deep_autoencoder.onnx", ()),
    "kws": Model("kws_ref_model.onnx", ()),
}


def random_inputs(exe: Executable, count: int) -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(0)
    found = []
    for port in exe.inputs:
        shape = (count, *port.shape[1:])
        kind = dtypes.to_numpy(port.dtype)
        values = draw.normal(size=shape) if kind.kind == "f" else draw.integers(-128, 128, shape)
        found.append(values.astype(kind))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_bits_and_cycles(name: str, models: Path, full: bool, tmp_path: Path) -> None:
    if not full:
        pytest.skip("takes minutes; runs with --full")
    exe = MODELS[name].compiled(models)
    inputs = random_inputs(exe, SAMPLES)
    store = ConstantStore()
    store._arrays.update(exe.artifact.constants())
    meaning = parse(exe.ir, store)
    runs = [evaluate(meaning, [a[n : n + 1] for a in inputs]) for n in range(SAMPLES)]
    wanted = [np.concatenate(r) for r in zip(*runs, strict=True)]
    exe.save(tmp_path / "a.cuvil")
    with cuvil.load(tmp_path / "a.cuvil", interface="rtl") as device:
        for got, want in zip(device.run(*inputs).outputs, wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        found, said = device.timing(), device.report["timing"]["interval"]
        print(f"{name}: {SAMPLES} samples equal, {found.cycles:g} cycles a sample, report {said:g}")
        assert found.cycles == pytest.approx(said, rel=0.05)
    for seed in range(PATTERNS):
        few = [a[seed % SAMPLES :][:2] for a in inputs]
        with cuvil.load(tmp_path / "a.cuvil", interface="rtl", stalls=10 + seed % 80, seed=seed) as device:
            for got, want in zip(device.run(*few).outputs, wanted, strict=True):
                np.testing.assert_array_equal(got, want[seed % SAMPLES :][:2])

"""A design for Agilex as SystemVerilog in Verilator: its ports are streams there, where its kernels have memories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cuvil
from cuvil_hw.compile.golden import meaning as meaning_of
from cuvil_hw.ir.program import evaluate

torch = pytest.importorskip("torch")


@pytest.mark.must_run
@pytest.mark.needs("torch", "ortools", "verilator", "g++", "make")
def test_bits_are_those_of_the_meaning_and_cycles_within_the_slot(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(12, 9)).astype(np.float32)
    model = torch.nn.Sequential(torch.nn.Linear(9, 6), torch.nn.ReLU(), torch.nn.Linear(6, 11)).eval()
    made = cuvil.compile(model, "agilex", torch.tensor(x[:1]), x, "int8", name="net", timing=cuvil.timing("1ms"))
    made.save(tmp_path / "net.cuvil")
    meaning = meaning_of(made.artifact)
    wanted = np.concatenate([evaluate(meaning, [row[None]])[0] for row in x])
    (slot,) = made.report["timing"]["slots"]
    with cuvil.load(tmp_path / "net.cuvil", interface="rtl", stalls=30, seed=1) as device:
        np.testing.assert_array_equal(device(x), wanted)
        timing = device.timing()
    assert made.report["timing"]["interval"] <= timing.cycles <= timing.first_cycles <= slot["cycles"]

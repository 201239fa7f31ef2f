"""Time slots: what fits compiles and says its slack, what doesn't is an error that names layer, cycles and slot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw.errors import CuvilError, MissesSlot

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.must_run, pytest.mark.needs("torch", "ortools")]


class Network(torch.nn.Module):
    """Layers of several processes: windows, stages, converters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.filter = torch.nn.Conv2d(2, 4, 3, padding=1)
        self.scores = torch.nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: Any) -> Any:
        return self.scores(torch.flatten(torch.relu(self.filter(x)), 1))


DATA = np.random.default_rng(0).normal(size=(4, 2, 6, 6)).astype(np.float32)


def compiled(timing: Any, target: str = "pynq-z2", model: Any = None) -> Any:
    model = Network() if model is None else model
    example = torch.tensor(DATA[:1])
    return cuvil.compile(model.eval(), target, example, calibration=DATA, precision="int8", timing=timing, name="net")


@pytest.mark.needs("verilator", "g++", "make")
def test_slack_is_reported_and_the_hardware_takes_no_longer(tmp_path: Path) -> None:
    model = Network()
    cuvil.timing("1ms", criticality=1)(model.filter)
    made = compiled(cuvil.timing("1ms", offset="200us"), model=model)
    made.save(tmp_path / "net.cuvil")
    whole, layer = sorted(made.report["timing"]["slots"], key=lambda s: s["layer"])
    assert (whole["layer"], whole["allowed_cycles"], whole["criticality"]) == ("", 80_000, 2)
    assert layer["layer"] == made.report["layers"][0]["name"]
    assert layer["allowed_cycles"] == 100_000
    assert 36 <= layer["cycles"] < whole["cycles"], "a pixel a cycle at best"
    for use in (whole, layer):
        assert use["slack_cycles"] == use["allowed_cycles"] - use["cycles"]
    assert f"slack {whole['slack_cycles']:,}" in str(made.report)
    with cuvil.load(tmp_path / "net.cuvil", interface="rtl") as device:
        measured = device.timing().first_cycles
    assert 0.8 * whole["cycles"] <= measured <= whole["cycles"]


def test_a_missed_slot_names_layer_cycles_and_slot() -> None:
    with pytest.raises(MissesSlot) as caught:
        compiled(
            {
                "": cuvil.timing("500ns"),
                "scores": cuvil.timing("1us", "900ns", 3),
                "filter": cuvil.timing("1us", 0, 0),
            }
        )
    text = str(caught.value)
    assert re.search(r"2 time slot\(s\) missed", text)
    assert re.search(
        r"the program takes at most [\d,]+ cycles of 50 \(slot of 500 ns from 0 ns on, criticality 2\)", text
    )
    assert re.search(r"layer linear_1 takes at most [\d,]+ cycles of 10 \(slot of 1 us from 900 ns on, .* 3\): ", text)
    assert "filter" not in text, "best effort"


@pytest.mark.parametrize(
    ("timing", "target", "said"),
    [
        (
            lambda: {"nothing": cuvil.timing("1ms")},
            "pynq-z2",
            r"there is no layer 'nothing'; the layers are conv_0 \(test_time_slots.py:\d+ filter\), ",
        ),
        (
            lambda: cuvil.timing("1ms"),
            "cpu",
            r"x86_64.* keeps no time slots|host.* keeps no time slots|keeps no time slots",
        ),
        (lambda: "1ms", "pynq-z2", r"timing is what cuvil.timing\(slot=…\) gives"),
    ],
)
def test_what_cannot_be_kept(timing: Any, target: str, said: str) -> None:
    with pytest.raises(CuvilError, match=said):
        compiled(timing(), target)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("1ms", "1ms"), "offset 1 ms leaves nothing of a slot of 1 ms"),
        (("5 parsec",), "slot is '5 parsec'; give seconds"),
        ((0,), "slot is 0; give seconds"),
        ((float("nan"),), "slot is nan"),
        ((1.0, -1.0), "offset is -1.0"),
        ((1.0, 0, 4), r"criticality is 4, not 0 \(best effort\)"),
        ((1.0, 0, True), "criticality is True"),
    ],
)
def test_what_is_no_slot(given: tuple[Any, ...], said: str) -> None:
    with pytest.raises(CuvilError, match=said):
        cuvil.timing(*given)

"""interface="rtl": a compiled design's SystemVerilog in Verilator, against the simulator of its HLS C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw.adapters.streaming.verilated import build
from cuvil_hw.adapters.streaming.verilated.build import missing
from cuvil_hw.errors import CuvilError, DeviceError, ToolNotFound

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.needs("torch", "ortools", "verilator", "g++", "make"), pytest.mark.must_run]


class Residual(torch.nn.Module):
    """Two layers, and what goes around them."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(size, inner), torch.nn.Linear(inner, size)

    def forward(self, x: Any) -> Any:
        return x + self.second(torch.relu(self.first(x)))


class ResidualPixels(torch.nn.Module):
    """A convolution gives its first pixel when it has more than a row, whatever it is folded to: what goes around it
    waits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return x + self.layer(x)


@pytest.fixture(scope="module")
def design(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """(artifact, inputs, results of the simulator of its HLS C++)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 12)).astype(np.float32)
    compiled = cuvil.compile(Residual(12, 20).eval(), "pynq-z2", torch.tensor(x[:1]), calibration=x, precision="int8")
    path = tmp_path_factory.mktemp("rtl") / "residual.cuvil"
    compiled.save(path)
    with compiled:
        return path, x, compiled(x)


def test_bits_are_those_of_the_simulator_whatever_ports_hold_back(design: tuple[Path, Any, Any]) -> None:
    path, x, wanted = design
    seconds = []
    for seed in range(100):
        with cuvil.load(path, interface="rtl", stalls=seed % 90, seed=seed) as device:
            run = device.run(x)
        np.testing.assert_array_equal(run.outputs[0], wanted)
        seconds.append(run.device_seconds)
    assert seconds[89] > 3 * seconds[0]


def test_cycles_are_those_of_the_report(design: tuple[Path, Any, Any]) -> None:
    with cuvil.load(design[0], interface="rtl") as device:
        timing, estimated = device.timing(), device.report["timing"]
    assert timing.period
    assert timing.cycles == pytest.approx(estimated["interval"], rel=0.05)
    assert timing.first_cycles > 0
    assert timing.origin == "measured (SystemVerilog in Verilator)"
    for p in timing.processes:
        assert p.busy + p.waits_for_words + p.waits_for_room == p.cycles
        assert p.busy >= 0
    for s in timing.streams:
        assert s.most <= s.depth
    assert {p.name for p in timing.processes} >= {layer["name"] for layer in device.report["layers"]}


def test_a_fifo_that_is_one_word_too_small_is_named(tmp_path: Path) -> None:
    """What goes around the layer waits in a FIFO; where that is full before the layer gives a word, nothing moves."""
    x = np.random.default_rng(0).normal(size=(4, 2, 6, 5)).astype(np.float32)
    example = torch.tensor(x[:1])
    cuvil.compile(ResidualPixels().eval(), "pynq-z2", example, calibration=x, precision="int8").save(
        tmp_path / "a.cuvil"
    )
    with cuvil.load(tmp_path / "a.cuvil", interface="rtl") as device:
        found = device.timing()
        around = max((s for s in found.streams if "_to" in s.name), key=lambda s: s.depth)
        least = next(n for n in range(1, around.depth + 1) if not _stuck(device, around.name, n))
        assert least > 1
        with pytest.raises(DeviceError, match=f"stuck.*full FIFOs: .*{around.name}.*too small"):
            device.timing({around.name: least - 1})
        assert device.timing({around.name: least}).cycles >= found.cycles
        with pytest.raises(CuvilError, match=r"only makes smaller; ask for at most"):
            device.timing({around.name: around.depth + 1})
        with pytest.raises(CuvilError, match="no stream 'nothing'"):
            device.timing({"nothing": 1})


def _stuck(device: Any, stream: str, words: int) -> bool:
    try:
        device.timing({stream: words})
    except DeviceError:
        return True
    return False


@pytest.mark.parametrize("kind", [".vcd", ".fst"])
def test_waves_are_written(design: tuple[Path, Any, Any], kind: str, tmp_path: Path) -> None:
    if missing(kind) is not None:
        pytest.skip("needs liblz4-dev and zlib1g-dev")
    path, x, wanted = design
    waves = tmp_path / f"run{kind}"
    with cuvil.load(path, interface="rtl", trace=waves) as device:
        np.testing.assert_array_equal(device(x[:2]), wanted[:2])
    assert waves.stat().st_size > 1000
    if kind == ".vcd":
        assert "fifo_" in waves.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("interface", "options", "message"),
    [
        ("rtl", {"wave": "x.vcd"}, "has no option 'wave'; it has trace, stalls, seed"),
        ("rtl", {"trace": "x.txt"}, r"written as .fst or .vcd"),
        ("rtl", {"stalls": 100}, "a percentage from 0 to 99"),
        ("sim", {"trace": "x.vcd"}, "interface 'sim' has no options; leave out trace"),
    ],
)
def test_wrong_options(design: tuple[Path, Any, Any], interface: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CuvilError, match=message):
        cuvil.load(design[0], interface=interface, **options)


def test_without_verilator(design: tuple[Path, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "verilator", lambda: None)
    with pytest.raises(ToolNotFound, match=r"verilator not found.*\[rtl\].*apt-get install verilator"):
        cuvil.load(design[0], interface="rtl")


def test_a_design_that_is_no_hardware_yet_says_why(tmp_path: Path) -> None:
    x = np.ones((1, 4), np.float32)
    exe = cuvil.compile(Residual(4, 4), "pynq-z2", torch.tensor(x), precision="float32")
    exe.save(tmp_path / "float.cuvil")
    with pytest.raises(CuvilError, match=r"has no SystemVerilog: .*integers"):
        cuvil.load(tmp_path / "float.cuvil", interface="rtl")

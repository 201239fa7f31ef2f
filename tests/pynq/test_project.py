"""The driver and the notebook inside an emitted project, on the simulated board, with pynq and NumPy only."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pynq
import pytest
from pynq.buffer import PynqBuffer

from cuvil_hw.adapters.zynq import hwh, shell
from cuvil_hw.runtime import artifact as container
from sim.pynq.board import SimulatedBoard, bit_file
from sim.pynq.setting import design_of
from tests.pynq.conftest import case

CLOCK_HZ = 50e6  # what the bitstream was built for


def as_vivado_writes(text: bytes) -> bytes:
    """Parameters of a DMA in capitals, and on a Zynq-7000 no clock under the name of another device's register."""
    return re.sub(rb"<PARAMETER NAME=\"PSU__[^>]*>", b"", text).replace(b'"c_', b'"C_')


@pytest.fixture
def project(artifacts: Path, board: SimulatedBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project of a program with two inputs and outputs, and what Vivado would leave in it."""
    artifact = case(artifacts, "two_ports-pynq-z2").artifact
    container.extract(artifact, tmp_path)
    digest, design = design_of(artifact)
    bit = bit_file(b"0123", design.part, "shell_wrapper", int(digest[:8], 16))
    board.designs[hashlib.sha256(bit).hexdigest()] = design
    (tmp_path / "shell.bit").write_bytes(bit)
    plain = shell.standard_hwh(design.inputs, design.outputs, design.part, CLOCK_HZ)
    assert as_vivado_writes(plain) != plain
    (tmp_path / "shell.hwh").write_bytes(as_vivado_writes(plain))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "driver", raising=False)
    return tmp_path


@pytest.mark.filterwarnings("ignore:the fabric runs at 50 MHz")
def test_the_notebook_runs(project: Path, board: SimulatedBoard, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((project / "demo.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert "samples, all as the model says" in said
    assert "samples/s" in said
    assert board.transfers == 2 * 4  # two batches, four ports


@pytest.mark.filterwarnings("ignore:the fabric runs at 50 MHz")
def test_the_notebook_notices_a_wrong_bit(project: Path, board: SimulatedBoard) -> None:
    import driver  # type: ignore[import-not-found]

    vectors = driver.golden()
    right = driver.Design("shell.bit")(*vectors.inputs)
    assert [np.array_equal(a, b) for a, b in zip(right, vectors.outputs, strict=True)] == [True, True]
    assert len({a.tobytes() for a in vectors.outputs[0]}) > 1
    board.faults.corrupt[driver.ports()[-1].name] = 1
    wrong = driver.Design("shell.bit")(*vectors.inputs)
    assert [np.array_equal(a, b) for a, b in zip(wrong, vectors.outputs, strict=True)] == [True, False]


@pytest.mark.filterwarnings("ignore:the fabric runs at 50 MHz")
def test_a_design_that_stands_still_times_out(
    project: Path, board: SimulatedBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its buffers are given back, after no DMA can write into them any more."""
    import driver  # type: ignore[import-not-found]

    kept: list[PynqBuffer] = []  # so that nothing else frees them
    given_back: list[int] = []
    allocate = board.allocate

    def allocated(*args: Any, **named: Any) -> PynqBuffer:
        kept.append(allocate(*args, **named))
        return kept[-1]

    def free(buffer: PynqBuffer) -> None:
        if any(buffer is b for b in kept):
            assert board._fabric is not None
            assert not any(e.busy for e in board._fabric.engines.values())
            given_back.append(buffer.device_address)

    monkeypatch.setattr(board, "allocate", allocated)
    monkeypatch.setattr(PynqBuffer, "freebuffer", free)
    board.faults.stop_words[driver.ports()[0].name] = 3
    with pytest.raises(TimeoutError, match=r"stands still after 0\.2 s"):
        driver.Design("shell.bit")(*driver.golden().inputs, timeout=0.2)
    assert given_back == [b.device_address for b in kept]
    assert len(kept) == 4


def test_the_driver_amends_a_hwh_as_the_runtime_does(project: Path) -> None:
    import driver  # type: ignore[import-not-found]

    text = (project / "shell.hwh").read_bytes()
    assert driver.for_pynq(text, 1e8) == hwh.for_pynq(text, 1e8) != text
    names = {p.name for p in driver.ports()}
    assert driver.built_clock(text, names) == (0, 50.0)
    assert driver.built_clock(text, {*names, "other"}) == (0, 0.0)


def test_the_driver_sets_and_checks_the_clock(
    project: Path, board: SimulatedBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    import driver  # type: ignore[import-not-found]

    board._plain.update(dict.fromkeys((0xF800_0100, 0xF800_0104, 0xF800_0108), 30 << 12))  # PLLs of 1500 MHz
    with pytest.warns(UserWarning, match="the fabric runs at 50 MHz where the design is for 100"):
        driver.Design("shell.bit")
    assert pynq.Clocks.fclk0_mhz == pytest.approx(50, rel=0.01)
    stuck = type("Stuck", (), {"fclk0_mhz": property(lambda _: 150.0, lambda _, value: None)})()
    monkeypatch.setattr(pynq, "Clocks", stuck)
    said = r"fabric clock 0 runs at 150 MHz and can't be set to the 50 MHz that the bitstream was built for"
    with pytest.raises(RuntimeError, match=said):
        driver.Design("shell.bit")


def test_floats_agree_by_the_testbenchs_measure(project: Path) -> None:
    """The same share of the largest value for every element, small ones too; integers agree exactly."""
    import driver  # type: ignore[import-not-found]

    ports = driver.ports()
    assert [p.tolerance for p in ports] == [0.0] * 4
    want = np.array([100.0, 1e-6, np.nan, np.inf, -np.inf], np.float32)
    port = ports[-1]._replace(tolerance=1e-3)
    for error, agrees in ((0.0, True), (9e-4, True), (2e-3, False)):
        got = want.copy()
        got[1] += np.float32(error)
        assert port.agrees(got, want) is agrees
    for n, other in ((2, 0.0), (3, np.nan), (3, -np.inf), (3, 1e30), (0, np.nan)):
        got = want.copy()
        got[n] = other
        assert not port.agrees(got, want)
    integers = np.arange(3)
    assert port.agrees(integers, integers)
    assert not port.agrees(integers, integers + 1)

"""The driver and the notebook inside an emitted project, on the simulated board, with pynq and NumPy only."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from cuvil_hw.adapters.zynq import shell
from cuvil_hw.runtime import artifact as container
from sim.pynq.board import SimulatedBoard, bit_file
from sim.pynq.setting import design_of
from tests.pynq.conftest import case


@pytest.fixture
def project(artifacts: Path, board: SimulatedBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project of a program with two inputs and outputs, and what Vivado would leave in it."""
    artifact = case(artifacts, "two_ports-pynq-z2").artifact
    container.extract(artifact, tmp_path)
    digest, design = design_of(artifact)
    bit = bit_file(b"0123", design.part, "shell_wrapper", int(digest[:8], 16))
    board.designs[hashlib.sha256(bit).hexdigest()] = design
    (tmp_path / "shell.bit").write_bytes(bit)
    (tmp_path / "shell.hwh").write_bytes(shell.standard_hwh(design.inputs, design.outputs, design.part, 1e8))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "driver", raising=False)
    return tmp_path


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


def test_the_notebook_notices_a_wrong_bit(project: Path, board: SimulatedBoard) -> None:
    import driver  # type: ignore[import-not-found]

    vectors = driver.golden()
    right = driver.Design("shell.bit")(*vectors.inputs)
    assert [np.array_equal(a, b) for a, b in zip(right, vectors.outputs, strict=True)] == [True, True]
    assert len({a.tobytes() for a in vectors.outputs[0]}) > 1
    board.faults.corrupt[driver.ports()[-1].name] = 1
    wrong = driver.Design("shell.bit")(*vectors.inputs)
    assert [np.array_equal(a, b) for a, b in zip(wrong, vectors.outputs, strict=True)] == [True, False]


def test_a_design_that_stands_still_times_out(project: Path, board: SimulatedBoard) -> None:
    import driver  # type: ignore[import-not-found]

    board.faults.stop_words[driver.ports()[0].name] = 3
    with pytest.raises(TimeoutError, match=r"stands still after 0\.2 s"):
        driver.Design("shell.bit")(*driver.golden().inputs, timeout=0.2)

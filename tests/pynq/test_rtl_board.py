"""The design's SystemVerilog as the board's fabric: driver → DMA → RTL in Verilator → DMA → driver, bit for bit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import cuvil
from sim.pynq.board import Design, SimulatedBoard
from sim.pynq.setting import register
from tests.pynq.conftest import case
from tests.pynq.test_board import same

_WHERE = "import pathlib, verilator; print(pathlib.Path(verilator.__file__).parent / 'bin')"


@pytest.fixture
def verilator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's Verilator: a board has none."""
    compiler = os.environ.get("CUVIL_COMPILER", "python3")
    found = subprocess.run([compiler, "-c", _WHERE], capture_output=True, text=True, check=False)
    if found.returncode == 0:
        monkeypatch.setenv("PATH", f"{found.stdout.strip()}:{os.environ['PATH']}")


@pytest.mark.usefixtures("verilator")
def test_the_driver_gives_the_bits_of_the_systemverilog(board: SimulatedBoard, artifacts: Path) -> None:
    digits = case(artifacts, "digits-rtl")
    assert digits.artifact.manifest.info["flow"] == "rtl"
    register(board, digits.artifact, fabric="rtl")
    with cuvil.load(digits.path, "hw") as executable:
        run = executable.run(*digits.inputs)
        interval, clock_hz = executable.report["timing"]["interval"], executable.report["clock_hz"]
    assert same(list(run.outputs), digits.expected)
    assert len(np.unique(digits.expected[0])) > 8
    (design,) = board.designs.values()
    assert isinstance(design, Design)
    cycles = design.seconds * clock_hz / run.samples
    assert board.transfers == 2, "one batch"
    # The bench runs a few samples after each reset, so that filling the pipeline counts, too.
    assert interval <= cycles <= 4 * interval, (cycles, interval)

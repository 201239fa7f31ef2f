"""The temporal style on the simulated board: driver → registers → AXI masters → the emitted engine → driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cuvil
from cuvil_hw.adapters.zynq import hwh, shell
from sim.pynq.board import SimulatedBoard
from sim.pynq.setting import active, register
from tests.pynq.conftest import Case, case
from tests.pynq.test_board import results, same


@pytest.fixture
def temporal(artifacts: Path) -> Case:
    return case(artifacts, "temporal-pynq-z2")


def test_the_driver_gives_the_bits(board: SimulatedBoard, temporal: Case) -> None:
    register(board, temporal.artifact)
    with cuvil.load(temporal.path, "hw") as executable:
        run = executable.run(*temporal.inputs)
        assert run.samples == 32
        assert run.device_seconds > 0
        assert same(list(run.outputs), temporal.expected)
        used = board._free
        assert same(results(executable, [a[:3] for a in temporal.inputs]), [a[:3] for a in temporal.expected])
        assert board._free == used  # the memory is allocated once
    assert len({tuple(row) for row in temporal.expected[0]}) > 16  # inputs that tell designs apart


def test_a_core_that_never_ends_is_said_and_the_fabric_programmed_again(board: SimulatedBoard, temporal: Case) -> None:
    register(board, temporal.artifact)
    board.faults.stands = True
    with cuvil.load(temporal.path, "hw") as executable:
        with pytest.raises(cuvil.DeviceError, match=r"the core doesn't end sample 0 within .* AXI masters connected"):
            executable.run(*[a[:1] for a in temporal.inputs])
        board.faults.stands = False
        assert same(results(executable, temporal.inputs), temporal.expected)
    assert len(board.programmed) == 2


def test_memory_beyond_the_reach_of_the_masters_is_refused(home: Path, temporal: Case) -> None:
    with active(SimulatedBoard(memory_at=0x1_0000_0000)) as board:
        register(board, temporal.artifact)
        with pytest.raises(cuvil.DeviceError, match="its memory was placed at 0x100000000, but it reaches 0x0 to"):
            cuvil.load(temporal.path, "hw")


def test_without_a_registered_bitstream(board: SimulatedBoard, temporal: Case) -> None:
    with pytest.raises(cuvil.DeviceError, match="no bitstream is registered for its design"):
        cuvil.load(temporal.path, "hw")


def test_a_block_design_that_does_not_carry_the_masters_is_refused(temporal: Case) -> None:
    info, part = temporal.artifact.manifest.info, str(temporal.artifact.manifest.profile["part"])
    masters = tuple(info["masters"])
    made = shell.masters_hwh(masters, part, 1e8)
    assert set(hwh.wire_masters(hwh.read(made), masters, part).addresses) == set(masters)
    with pytest.raises(cuvil.DeviceError, match=r"must have address registers for .*, other; there is none"):
        hwh.wire_masters(hwh.read(made), (*masters, "other"), part)
    cut = made.replace(b'MASTERBUSINTERFACE="m_axi_source"', b'MASTERBUSINTERFACE="elsewhere"')
    with pytest.raises(cuvil.DeviceError, match="m_axi_source reaches no memory; assign its address"):
        hwh.wire_masters(hwh.read(cut), masters, part)
    with pytest.raises(cuvil.DeviceError, match="is on part 7z020clg4001, the design is for xck26"):
        hwh.wire_masters(hwh.read(made), masters, "xck26-sfvc784-2LV-c")
    assert np.all([len(words) == 2 for words in hwh.wire_masters(hwh.read(made), masters, part).addresses.values()])

"""The temporal style in time: the emitted engine with clocks and a model of the board's memory."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.adapters.zynq.simbuild import BOUNDED
from cuvil_hw.adapters.zynq.temporal import ZynqTemporal
from cuvil_hw.adapters.zynq.temporal_sim import TemporalCycles
from cuvil_hw.contract.timing import Timing
from cuvil_hw.errors import CuvilError
from cuvil_hw.report import timing as views
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.target.profile import load_profile
from tests.adapters.temporal.test_temporal import ENGINES, layers
from tests.support import fpga_runner, temporal_runner
from tests.support.device_runner import planned, program_of

pytestmark = [pytest.mark.needs("g++")]

CLOCKS = (*BOUNDED, "-O1")


class Blocks(nn.Module):
    """Convolutions that are bound by products, by weights and by feature maps; a sum, pools and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep, self.wide = (
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.Conv2d(32, 32, 3, 1, 1, groups=32),
            nn.Conv2d(32, 32, 1),
        )
        self.many, self.last = nn.Conv2d(32, 256, 3, 4, 1), nn.Linear(256, 200)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
        x = x + self.wide(nn.functional.hardswish(self.deep(x)))
        return self.last(torch.relu(self.many(x)).mean((2, 3)))


def compiled(target: str) -> Executable:
    torch.manual_seed(0)
    data = torch.randn(4, 3, 64, 64)
    profile = load_profile(target)
    temporal = replace(profile, settings={**profile.settings, "style": "temporal"})
    made = cuvil.compile(Blocks().eval(), temporal, data[:1], calibration=data, precision="int8")
    assert isinstance(made, Executable)
    return made


@pytest.mark.parametrize("target", ["pynq-z2", "kv260", "zcu104"])
def test_the_report_says_the_simulated_cycles(target: str) -> None:
    executable = compiled(target)
    timing, report = executable.timing(), executable.report
    assert sum(layer.cycles for layer in timing.layers) == timing.cycles == timing.first_cycles
    assert report["latency"]["cycles"] == pytest.approx(timing.cycles, rel=0.02)
    assert [layer.name for layer in timing.layers] == [layer["name"] for layer in report["layers"]]
    long = [(a, b) for a, b in zip(timing.layers, report["layers"], strict=True) if a.cycles > timing.cycles / 8]
    assert long
    for simulated, said in long:
        assert said["cycles"] == pytest.approx(simulated.cycles, rel=0.06)
        if target != "zcu104":  # where the ports share a slow memory, several parts take nearly as long
            assert said["schedule"].endswith(f"bound by {simulated.bound}")
    shown = views.render(timing)
    assert all(layer.name in shown for layer in timing.layers)
    assert "bound by" in views.document(timing)
    named = {p.name for p in timing.processes}
    assert {"fetch_features", "fetch_weights", "multiply", "rescale", "store"} <= named
    for p in timing.processes:
        assert p.busy + p.waits_for_words + p.waits_for_room == p.cycles == timing.cycles
        assert min(p.busy, p.waits_for_words, p.waits_for_room) >= 0


def test_seconds_of_a_run_are_simulated_ones() -> None:
    executable = compiled("pynq-z2")
    timing = executable.timing()
    x = np.random.default_rng(0).normal(size=(2, 3, 64, 64)).astype(np.float32)
    with Executable(executable.artifact, "sim-cycles") as clocked:
        run = clocked.run(x)
    assert run.device_seconds == pytest.approx(2 * timing.cycles / timing.clock_hz)
    assert np.array_equal(run.outputs[0], executable(x))
    with pytest.raises(CuvilError, match="fixed depths"):
        executable.timing({"sums": 8})


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_never_deadlock(engine: object) -> None:
    """FIFOs of their true depth, engines of memories so small that sums are made in parts."""
    assert not temporal_runner.check(layers(), engine, flags=CLOCKS)  # type: ignore[arg-type]


def test_time_depends_on_the_memory_and_not_on_the_host() -> None:
    graph = fpga_runner.graph_of(layers())
    plan = planned(graph, temporal_runner.chosen(graph, ENGINES[3])[0], ZynqTemporal(), temporal_runner.PROFILE)
    with program_of(graph, plan) as program:
        simulation = TemporalCycles(program, 1e8, ("-O1",))

        def timed(latency: int, word_time: int, seed: int = 0) -> Timing:
            functions = simulation._library.functions
            functions.cuvil_sim_set_memory(ctypes.c_long(latency), ctypes.c_long(word_time))
            functions.cuvil_sim_set_order(ctypes.c_ulong(seed))
            return simulation.timing({})

        slow = timed(40, 4096)  # two bytes a cycle
        assert timed(40, 4096, seed=1) == timed(40, 4096, seed=7) == slow
        fast = timed(40, 300)
        assert timed(80, 300).cycles > fast.cycles > timed(0, 300).cycles
        moved = 8 * sum(s.words for s in slow.streams if s.name in ("fetched", "factors", "rows"))
        assert slow.cycles >= moved / 2 > fast.cycles / 2
        simulation.close()

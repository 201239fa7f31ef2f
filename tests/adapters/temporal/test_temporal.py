"""The temporal style: a shared engine and a vector unit run layer after layer. Bits are compared with the meaning.

CUVIL_NETWORKS=100 tries that many random networks instead of two; a seed in a failure reproduces it.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from xdsl.ir import SSAValue

import cuvil
from cuvil_hw import data, ops
from cuvil_hw.adapters.temporal.engine import Engine
from cuvil_hw.adapters.zynq.temporal import ZynqTemporal
from cuvil_hw.adapters.zynq.temporal_sim import TemporalSimulation
from cuvil_hw.errors import ArtifactError, DoesNotFit
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.report.report import Report
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.target.profile import Profile, load_profile
from cuvil_hw.types import TensorType
from tests.support import fpga_runner, temporal_runner
from tests.support.device_runner import planned, program_of
from tests.support.fpga_networks import network
from tests.support.xilinx import ap_types

pytestmark = [pytest.mark.needs("g++")]

COUNT = int(os.environ.get("CUVIL_NETWORKS", "2"))
# Small memories: tiles of few pixels, sums in parts. The third is as wide as it is high.
ENGINES = (
    Engine(8, 8, 1, 64, 16, 64),
    Engine(16, 8, 2, 256, 64, 128),
    Engine(16, 16, 4, 128, 16, 256),
    Engine(32, 16, 1, 512, 128, 512),
)
RESCALE = ops.Rescale((77,), (12,), "i8", 0, -3, 1, "half_even")


def layers() -> Program:
    """One chain for each kind of layer that the engine runs, at odd sizes: a compilation for all."""
    rng = np.random.default_rng(1)
    kinds = [TensorType((1, c, 9, 7), "i8") for c in (3, 5, 20, 11, 17, 6)]
    made = Builder([(f"x{n}", kind) for n, kind in enumerate([*kinds, TensorType((1, 530), "u8")])], "layers")

    def const(dtype: str, *shape: int) -> SSAValue:
        array = rng.integers(-128, 128, shape) if dtype == "i8" else rng.integers(-9999, 9999, shape)
        return made.const(array.astype(np.int8 if dtype == "i8" else np.int32), dtype)

    def conv(n: int, out: int, kernel: tuple[int, int], stride: int, pad: int, dilation: int, groups: int) -> SSAValue:
        op = ops.Conv((stride,) * 2, (pad,) * 4, (dilation,) * 2, groups, 5, (0,), "i32")
        w = const("i8", out, kinds[n].shape[1] // groups, *kernel)
        return made.op(RESCALE, made.op(op, made.input(n), w, const("i32", out)))

    table = ops.Lut(tuple(int(v) for v in rng.integers(-128, 128, 256)), "i8")
    twice = [made.op(ops.Rescale((m,), (0,), "i24"), made.op(ops.Cast("i32"), made.input(5))) for m in (321, 1234)]
    outputs = [
        conv(0, 12, (3, 3), 2, 1, 1, 1),
        made.op(table, conv(1, 9, (2, 3), 1, 2, 2, 1)),
        conv(2, 20, (3, 3), 1, 1, 1, 20),
        made.op(ops.MaxPool((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)), made.input(3)),
        made.op(RESCALE, made.op(ops.SumPool((9, 7), (9, 7), (0, 0, 0, 0), (1, 1), "i32", -7), made.input(4))),
        made.op(RESCALE, made.op(ops.Add("i26"), *twice)),
        made.op(ops.Linear(3, (0,), "i32"), made.input(6), const("i8", 10, 530), const("i32", 10)),
    ]
    return made.finish([(f"y{n}", y) for n, y in enumerate(outputs)])


@pytest.mark.parametrize(("engine", "kernels"), [(ENGINES[0], 5), (ENGINES[3], 7)])
def test_layers_run_on_the_engine_whatever_its_size(engine: Engine, kernels: int) -> None:
    """The windows of a global pool and of a long linear layer don't fit the small one: the vector unit runs these."""
    assert len(temporal_runner.passes(layers(), engine)) == kernels
    assert not temporal_runner.check(layers(), engine)


def test_xilinx_own_integers_give_the_same() -> None:
    assert not temporal_runner.check(layers(), ENGINES[2], headers=ap_types())


@pytest.mark.parametrize("xilinx", [False, True])
def test_sources_compile_without_a_warning(tmp_path: Path, xilinx: bool) -> None:
    graph = fpga_runner.graph_of(layers())
    planned(graph, temporal_runner.chosen(graph, ENGINES[0])[0], ZynqTemporal(), temporal_runner.PROFILE).write(
        tmp_path
    )
    sim = data.folder("sim")
    folders = [sim / "xilinx_compat", ap_types(), sim / "hls"] if xilinx else [sim / "hls"]
    include = [part for folder in folders for part in ("-isystem", folder)]
    options = ("-std=c++14", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Isrc")
    subprocess.run(["g++", *options, *include, "src/layers.cpp"], check=True, cwd=tmp_path)


@pytest.mark.parametrize("seed", range(2000, 2000 + COUNT))
def test_random_networks(seed: int) -> None:
    program, trace = network(seed, chains=8)
    different = temporal_runner.check(program, ENGINES[seed % 4], narrow=seed % 3 > 0, seed=seed)
    assert not different, "\n".join([f"seed {seed}", different, *trace])


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep, self.wide = (
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8),
            nn.Conv2d(8, 8, 1),
        )
        self.last = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = x + self.wide(nn.functional.hardswish(self.deep(x)))
        return self.last(torch.relu(x).mean((2, 3)))


def compiled(target: str | Profile) -> Executable:
    torch.manual_seed(0)
    data = torch.randn(16, 3, 12, 12)
    made = cuvil.compile(Residual().eval(), target, data[:1], calibration=data, precision="int8")
    assert isinstance(made, Executable)
    return made


@pytest.fixture(scope="module")
def executable() -> Executable:
    profile = load_profile("pynq-z2")
    return compiled(replace(profile, settings={**profile.settings, "style": "temporal"}))


@pytest.mark.needs("cc")
def test_a_model_has_the_bits_of_the_processor(executable: Executable) -> None:
    x = np.random.default_rng(0).normal(size=(3, 3, 12, 12)).astype(np.float32)
    assert np.array_equal(executable(x), compiled("cpu")(x))


def test_the_report_says_style_bound_and_origin(executable: Executable) -> None:
    report = executable.report
    assert report["style"] == "temporal"
    assert "temporal style: the profile asks for it (settings.style)" in report["notes"]
    engine = [layer for layer in report["layers"] if layer["schedule"].startswith("engine")]
    assert len(engine) >= 5
    assert {layer["schedule"].partition("bound by ")[2] for layer in engine} <= {"compute", "weights", "feature maps"}
    assert all(total["used"] <= total["budget"] for total in report["totals"])


def test_what_does_not_fit_spatially_is_temporal() -> None:
    """By default: the profile has too few memories for the weights of one wide layer."""
    profile = load_profile("pynq-z2")
    few = [replace(a, limit=60.0) if a.name == "bram18" else a for a in profile.axes]
    scarce = [replace(a, limit=2000.0) if a.name == "lutram" else a for a in few]
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 512), nn.ReLU(), nn.Linear(512, 512)).eval()
    data = torch.randn(8, 3, 8, 8)

    def made(style: str) -> Report:
        settings = {**profile.settings, "style": style}
        small = replace(profile, axes=tuple(scarce), settings=settings)
        return cuvil.compile(model, small, data[:1], calibration=data, precision="int8", interface="null").report

    report = made("auto")
    assert report["style"] == "temporal"
    assert any("; the spatial style does not fit pynq-z2: needs" in n for n in report["notes"])
    with pytest.raises(DoesNotFit):
        made("spatial")


def test_weights_lie_in_ultraram_where_there_is_some() -> None:
    graph = fpga_runner.graph_of(layers())
    engine = replace(ENGINES[3], weights=2048, uram=True)
    sources = planned(graph, temporal_runner.chosen(graph, engine)[0], ZynqTemporal(), temporal_runner.PROFILE).files
    assert b"#define CUVIL_WEIGHTS_IN_URAM\n" in sources["src/layers.cpp"]
    assert b"variable=w type=ram_s2p impl=uram" in sources["src/cuvil_engine.h"]
    offered = {t: ZynqTemporal().offer(graph, load_profile(t)).overhead for t in ("pynq-z2", "zcu104")}
    assert "uram" not in offered["pynq-z2"]
    assert all(n <= load_profile("zcu104").axis(a).budget for a, n in offered["zcu104"].items() if a != "lutram")


def test_another_table_of_passes_is_refused() -> None:
    program = layers()
    graph = fpga_runner.graph_of(program)
    choice, _ = temporal_runner.chosen(graph, ENGINES[3])
    plan = planned(graph, choice, ZynqTemporal(), temporal_runner.PROFILE)
    changed = bytearray(plan.files["src/passes.bin"])
    changed[8] ^= 1
    other = replace(plan, files={**plan.files, "src/passes.bin": bytes(changed)})
    with program_of(graph, other) as made, pytest.raises(ArtifactError, match=r"passes\.bin isn't the one"):
        TemporalSimulation(made)

"""The Agilex adapter on its devices: the emitted OpenCL C and SYCL give the bits of the NumPy meaning; stalls and
missing packages are told.

CUVIL_AGILEX_PYTHON names an environment with Intel's emulator when this one hasn't got it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.adapters.agilex import runtime
from cuvil_hw.adapters.agilex.device import open_device
from cuvil_hw.adapters.agilex.fabric import AGILEX7
from cuvil_hw.adapters.agilex.runtime import EMULATION, POCL, missing
from cuvil_hw.errors import CuvilError, DeviceError, ToolNotFound
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Choice
from cuvil_hw.types import TensorType
from tests.support import agilex_runner, fpga_runner
from tests.support.fpga_networks import network


def must_have(interface: str) -> None:
    """Skip without the packages of an interface; conftest turns the skip of a must_run test into a failure in CI."""
    why = open_device({"name": "agilex"}, interface).usable()
    if why is not None:
        pytest.skip(why)


def designed(program: Program, seed: int, narrow: bool = True) -> tuple[KernelGraph, Choice]:
    graph = fpga_runner.graph_of(program, narrow)
    return graph, fpga_runner.random_choice(graph, random.Random(seed), AGILEX7)


def check(program: Program, interface: str, seed: int, count: int = 8, trace: str = "") -> None:
    must_have(interface)
    inputs = fpga_runner.samples(program, np.random.default_rng(seed), count)
    wanted = fpga_runner.meaning(program, inputs)
    graph, choice = designed(program, seed, seed % 4 > 0)
    with agilex_runner.loaded(graph, choice, interface) as device:
        got, _ = device.run(inputs)
    different = fpga_runner.difference(program, got, wanted)
    assert not different, f"{different}\nseed {seed} on {interface}\n{trace}"


@pytest.mark.must_run
@pytest.mark.parametrize("seed", [0, 3, 7])
def test_random_networks_on_the_emulator(seed: int) -> None:
    program, trace = network(seed)
    check(program, "sim", seed, trace="\n".join(trace))


@pytest.mark.must_run
@pytest.mark.needs("g++")
@pytest.mark.parametrize("seed", [1, 3, 5])
def test_random_networks_as_sycl(seed: int) -> None:
    program, trace = network(seed)
    check(program, "sim-sycl", seed, trace="\n".join(trace))


def test_a_random_network_on_pocl() -> None:
    program, trace = network(1)
    try:
        check(program, "sim-pocl", 1, trace="\n".join(trace))
    except ToolNotFound as e:  # its compiler doesn't know every processor
        pytest.skip(str(e))


def small(build: Callable[[Builder, list], object], *kinds: TensorType) -> Program:
    builder = Builder([(f"x{n}", kind) for n, kind in enumerate(kinds)])
    return builder.finish([("y", build(builder, [builder.input(n) for n in range(len(kinds))]))])  # type: ignore[list-item]


def residual() -> Program:
    """A fork whose short branch has to hold what the long one swallows."""

    def build(b: Builder, x: list) -> object:
        w = b.const(np.ones((2, 2, 3, 3), np.int8))
        y = b.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), 1, 0, (0,), "i32"), x[0], w)
        y = b.op(ops.Rescale((1 << 14,), (16,), "i8"), y)
        return b.op(ops.Add("i9"), x[0], y)

    return small(build, TensorType((1, 2, 4, 4), "i8"))


@pytest.mark.must_run
def test_true_channel_depths_are_enough_on_the_emulator() -> None:
    check(residual(), "sim-depth", 1, count=2)


@pytest.mark.must_run
@pytest.mark.parametrize("interface", ["sim", "sim-sycl"])
def test_narrow_unsigned_and_bool_ports(interface: str) -> None:
    def build(b: Builder, x: list) -> object:
        both = b.op(ops.Less(), x[0], x[0])
        return b.op(ops.Where(), b.op(ops.LogicalOr(), both, x[1]), x[0], b.op(ops.Minimum(), x[0], x[0]))

    check(small(build, TensorType((1, 3, 2), "u4"), TensorType((1, 3, 2), "bool")), interface, 0)


# -- what goes wrong --------------------------------------------------------------------------------------------------


def stalled(interface: str, drop: str) -> str:
    """The error of a design whose kernel `drop` never runs."""
    must_have(interface)
    program = residual()
    inputs = fpga_runner.samples(program, np.random.default_rng(0), 1)
    graph, choice = designed(program, 0)
    plan = agilex_runner.planned(graph, choice)
    kernels = [k for k in plan.info["kernels"] if k["name"] != drop]
    assert len(kernels) == len(plan.info["kernels"]) - 1
    with agilex_runner.program_of(graph, plan, kernels=kernels) as device_program:
        device = open_device({"name": "agilex", "settings": {"stall_s": 1}}, interface).load(device_program)
        try:
            with pytest.raises(DeviceError) as caught:
                device.run(inputs)
        finally:
            device.close()
    return str(caught.value)


@pytest.mark.must_run
def test_a_write_past_the_depth_of_a_channel_without_a_reader_ends_with_its_name() -> None:
    text = stalled("sim-depth", "write_y")
    assert "y (depth 2) is full and nothing reads it" in text or "y_1 (depth 2) is full and nothing reads it" in text
    assert "for 1 s none of the kernels" in text


@pytest.mark.must_run
def test_a_read_that_nothing_feeds_ends_with_the_name_of_its_channel() -> None:
    assert "x0 is empty and nothing writes it" in stalled("sim", "read_x0")


@pytest.mark.needs("g++")
def test_a_pipe_that_is_read_empty_or_left_full_is_an_error(tmp_path: Path) -> None:
    program = residual()
    inputs = fpga_runner.samples(program, np.random.default_rng(0), 1)
    graph, choice = designed(program, 0)
    plan = agilex_runner.planned(graph, choice)
    (name,) = [n for n in plan.files if n.endswith(".sycl.cpp")]
    for drop, expected in (("read_x0", "pipe x0 is read while empty"), ("write_y", "words left in pipe y")):
        lines = plan.files[name].decode().splitlines()
        kept = [line for line in lines if f"single_task<class {drop}_task>" not in line]
        assert len(kept) == len(lines) - 1
        with agilex_runner.program_of(graph, plan) as device_program:
            (device_program.folder / name).write_text("\n".join(kept), encoding="utf-8")
            device = open_device({"name": "agilex"}, "sim-sycl").load(device_program)
            with pytest.raises(DeviceError, match=expected):
                device.run(inputs)


def test_a_source_that_does_not_build_is_told() -> None:
    must_have("sim")
    program = residual()
    graph, choice = designed(program, 0)
    with agilex_runner.program_of(graph, agilex_runner.planned(graph, choice)) as device_program:
        (source,) = [p for p in (device_program.folder / "src").glob("*.cl") if "_buffers" not in p.name]
        source.write_text(f"// {device_program.seal}\n__kernel void broken( {{", encoding="utf-8")
        with pytest.raises(DeviceError, match="error: "):
            open_device({"name": "agilex"}, "sim").load(device_program)


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    monkeypatch.setenv(runtime.PYTHON_VARIABLE, str(python))
    absent = missing(EMULATION)
    assert isinstance(absent, ToolNotFound)
    assert runtime.PYTHON_VARIABLE in str(absent)
    python.touch()
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    assert "pyopencl not found" in str(missing(EMULATION))
    (packages / "pyopencl").mkdir()
    text = str(missing(EMULATION))
    assert "libintelocl_emu.so" in text
    assert "intel-opencl-fpga-emu-rt" in text
    assert "2025.0.5" in text
    assert "pyopencl[pocl]" in str(missing(POCL))
    assert open_device({"name": "agilex"}, "sim").usable() == text
    program = residual()
    graph, choice = designed(program, 0)
    with (
        agilex_runner.program_of(graph, agilex_runner.planned(graph, choice)) as device_program,
        pytest.raises(ToolNotFound, match=r"pip install .*agilex"),
    ):
        open_device({"name": "agilex"}, "sim").load(device_program)
    (tmp_path / "lib" / runtime.EMULATOR).touch()
    assert missing(EMULATION) is None


def test_other_interfaces() -> None:
    with pytest.raises(ToolNotFound, match="later version"):
        open_device({"name": "agilex"}, "hw")
    with pytest.raises(CuvilError, match="sim-depth, sim-pocl"):
        open_device({"name": "agilex"}, "usb")
    assert open_device({"name": "agilex"}, "null").usable() is None

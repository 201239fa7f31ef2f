"""Streaming designs as SystemVerilog in Verilator: the meaning's bits, whatever waits for whom."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from cuvil_hw import ops
from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.form import processes
from cuvil_hw.adapters.streaming.rtl.delays import Delays
from cuvil_hw.adapters.streaming.rtl.emit import emit, hardware
from cuvil_hw.adapters.streaming.timing.figures import time_design
from cuvil_hw.adapters.zynq.fabric import FABRICS
from cuvil_hw.adapters.zynq.project import project
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.legal import parse
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.types import TensorType
from tests.adapters.streaming.timing.test_fpga_fifo import residual
from tests.support import fpga_runner
from tests.support.fpga_networks import network
from tests.support.rtl_runner import modelled, simulated

pytestmark = pytest.mark.must_run
SAMPLES = 6
SIMULATED = pytest.mark.needs("verilator", "g++", "make")


def lowered(program: Program, seed: int) -> tuple[KernelGraph, ModuleOp]:
    """A program, which is changed, in forms drawn at random."""
    graph = fpga_runner.graph_of(program)
    choice = fpga_runner.random_choice(graph, random.Random(seed))
    return graph, dataflow.lower(graph, fpga_runner.forms_of(choice), 64)


def check(program: Program, seed: int, trace: object = "") -> None:
    """All samples, without waiting and with ports that hold words back in 100 patterns."""
    inputs = fpga_runner.samples(program, np.random.default_rng(seed), SAMPLES)
    wanted = fpga_runner.meaning(program, inputs)
    outputs = program.outputs
    graph, module = lowered(program, seed)
    with simulated(graph, module) as simulation:
        for run, percent in enumerate((0, *([10, 30, 60, 90] * 25))):
            got, _ = simulation.run(inputs, run, percent)
            for (name, _), a, b in zip(outputs, got, wanted, strict=True):
                np.testing.assert_array_equal(a, b, f"{name}, ports wait in {percent} % of cycles: {trace}")


def linear() -> Program:
    rng = np.random.default_rng(7)
    builder = Builder([("x", TensorType((1, 4), "i8"))])
    weight = builder.const(rng.integers(-128, 128, (3, 4)).astype(np.int8))
    bias = builder.const(rng.integers(-1000, 1000, 3).astype(np.int32))
    y = builder.op(ops.Linear(0, (0,), "i32"), builder.input(0), weight, bias)
    return builder.finish([("y", y)])


@SIMULATED
@pytest.mark.parametrize("seed", range(2))
def test_a_linear_layer(seed: int) -> None:
    check(linear(), seed)


@SIMULATED
def test_products_by_constants_as_additions() -> None:
    program = linear()
    inputs = fpga_runner.samples(program, np.random.default_rng(3), SAMPLES)
    wanted = fpga_runner.meaning(program, inputs)
    graph = fpga_runner.graph_of(program)
    (kernel,) = graph.kernels
    forms = processes(kernel, FABRICS["dsp48e2"], graph.constants)
    form = next(f for f in forms if f.folding.multiplier == "adders")
    with simulated(graph, dataflow.lower(graph, [form], 64)) as simulation:
        np.testing.assert_array_equal(simulation.run(inputs, 0, 30)[0][0], wanted[0])


@SIMULATED
@pytest.mark.parametrize("seed", [4, 8, 27])
def test_random_networks(seed: int) -> None:
    program, trace = network(seed)
    check(program, seed, trace)


@SIMULATED
@pytest.mark.parametrize("interval", [1, 3])
def test_steps_start_so_many_cycles_apart(interval: int) -> None:
    """Sums of eight numbers, two a step, from tests/ir/hardware."""
    text = (Path(__file__).parents[2] / "ir" / "hardware" / "accumulate.mlir").read_text(encoding="utf-8")
    module = parse(text.replace("#cuvil.pipeline<1>", f"#cuvil.pipeline<{interval}>"))
    x = np.random.default_rng(0).integers(-128, 128, (40, 8)).astype(np.int8)
    with modelled(emit(module, {}, "model"), ["x"], ["y"], 32) as model:
        cycles = {}
        for samples in (20, 40):
            for seed, percent in ((0, 60), (1, 20), (2, 0)):
                model.restart(seed, percent)
                y = np.zeros((samples, 1, 4), np.uint8)
                cycles[samples] = model.run([x[:samples].view(np.uint8).reshape(samples, 2, 4)], [y], samples, False)
                found = y.view("<i2")[:, 0, 0]
                np.testing.assert_array_equal(found, x[:samples].astype(np.int16).sum(1))
    assert cycles[40] - cycles[20] == 20 * 4 * interval


@SIMULATED
@pytest.mark.parametrize("make", [lambda: residual(2), lambda: network(4)[0]], ids=["bypass", "random"])
def test_a_sample_takes_the_cycles_of_the_report(make: Callable[[], Program]) -> None:
    program = make()
    inputs = fpga_runner.samples(program, np.random.default_rng(0), 24)
    graph, module = lowered(program, 5)
    found = time_design(module, graph.constants, lambda depth, bits: {}, lambda depth, bits: "", {})
    with simulated(graph, module) as simulation:
        few, many = (simulation.run([a[:n] for a in inputs])[1] for n in (8, 24))
    assert (many - few) / 16 == pytest.approx(found.interval, rel=0.05)


@pytest.mark.parametrize(("clock_hz", "least"), [(50e6, 2), (100e6, 3), (300e6, 8)])
def test_a_faster_clock_takes_more_stages(clock_hz: float, least: int) -> None:
    graph, module = lowered(residual(), 5)
    delays = Delays.at(clock_hz)
    plans = hardware(module, graph.constants, "model", delays)[2]
    assert max(p.last for p in plans.values()) >= least
    slow = {n: p.longest for n, p in plans.items() if p.longest > delays.period}
    assert clock_hz > 100e6 or not slow


def test_a_project_is_staged_for_the_clock_of_its_profile() -> None:
    graph, module = lowered(linear(), 1)
    stages = []
    for clock_hz in (50e6, 100e6, 300e6):
        files = project(module, graph, replace(fpga_runner.PROFILE, clock_hz=clock_hz), Golden()).files
        layer = files[f"rtl/{graph.kernels[0].name}.sv"].decode()
        stages.append(max(int(n) for n in re.findall(r"logic valid_(\d+);", layer)))
    assert stages[0] < stages[1] < stages[2], stages


def test_two_builds_are_equal() -> None:
    texts = []
    for _ in range(2):
        graph, module = lowered(network(4)[0], 4)
        texts.append(emit(module, graph.constants, "model"))
    assert texts[0] == texts[1]
    assert "model_top.sv" in texts[0]
    assert {f"{k.name}.sv" for k in graph.kernels} < set(texts[0])


def test_floats_are_refused() -> None:
    builder = Builder([("x", TensorType((1, 4), "f32"))])
    graph, module = lowered(builder.finish([("y", builder.op(ops.Neg(), builder.input(0)))]), 0)
    with pytest.raises(CuvilError, match=r"rtl: .*neg.*f32, .>; hardware joins by streams of integers"):
        emit(module, graph.constants, "model")

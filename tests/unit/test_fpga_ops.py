"""Every op that a fabric takes, floats and integers, as streaming designs on simulators: what their meaning says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cuvil_hw.adapters.agilex.device import open_device
from cuvil_hw.adapters.fpga.stage import refusal
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.ops.base import infer
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.types import TensorType
from tests.unit import agilex_runner, fpga_runner
from tests.unit.op_checks import Array, typed
from tests.unit.test_ops_on_cpu import GROUPS, Case
from tests.unit.xilinx import ap_types

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++")]
RTOL = 1e-5
BOUNDED = ("-O0", "-DCUVIL_SIM_BOUNDED")


def taken(name: str) -> list[Case]:
    """Cases of a group that the fabric takes."""
    found = []
    for op, arrays, names in GROUPS[name]:
        types = typed(arrays, names)
        if refusal(op, types, infer(op, types), "x") is None:
            found.append((op, arrays, names))
    return found


NAMES = [name for name in GROUPS if taken(name)]


def program_of(cases: Sequence[Case]) -> tuple[Program, list[Array]]:
    """One design of all cases, and its inputs (1, …)."""
    operands = [o for _, arrays, names in cases for o in zip(arrays, names, strict=True)]
    builder = Builder([(f"x{n}", TensorType(a.shape, d)) for n, (a, d) in enumerate(operands)], "every_op")
    outputs: list[Any] = []
    at = 0
    for op, arrays, _ in cases:
        outputs.append(builder.op(op, *[builder.input(at + n) for n in range(len(arrays))]))
        at += len(arrays)
    return builder.finish([(f"y{n}", v) for n, v in enumerate(outputs)]), [a[None] for a, _ in operands]


def assert_means(program: Program, inputs: Sequence[Array], got: Sequence[Array]) -> None:
    """Integers equal, floats near, NaN and infinities where they belong."""
    for (name, _), have, want in zip(program.outputs, got, fpga_runner.meaning(program, inputs), strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape), name
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have, want, rtol=RTOL, atol=1e-6, err_msg=name, equal_nan=True)
        else:
            np.testing.assert_array_equal(have, want, err_msg=name)


def fresh(graph_of: Program) -> KernelGraph:
    return fpga_runner.graph_of(graph_of.clone())


# Binary integer ops: in random networks and ONNX's cases.
@pytest.mark.parametrize("name", [n for n in NAMES if n != "binary integers"])
def test_ops_in_hls(name: str) -> None:
    program, inputs = program_of(taken(name))
    graph = fresh(program)
    with fpga_runner.loaded(graph, fpga_runner.random_choice(graph, random.Random(1)), BOUNDED) as simulation:
        simulation.stall(3, 30)
        assert_means(program, inputs, simulation.run(inputs)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layers"])
def test_float_ops_on_the_types_of_xilinx(name: str) -> None:
    program, inputs = program_of(taken(name))
    graph = fresh(program)
    choice = fpga_runner.random_choice(graph, random.Random(1))
    with fpga_runner.loaded(graph, choice, ("-O0",), ap_types()) as simulation:
        assert_means(program, inputs, simulation.run(inputs)[0])


@pytest.mark.parametrize("name", ["unary f32", "layers"])
def test_ops_in_sycl(name: str) -> None:
    program, inputs = program_of(taken(name))
    graph = fresh(program)
    choice = fpga_runner.random_choice(graph, random.Random(2))
    with agilex_runner.loaded(graph, choice, "sim-sycl") as device:
        assert_means(program, inputs, device.run(inputs)[0])


@pytest.mark.parametrize("name", ["unary f32", "layers"])
def test_float_ops_on_the_emulator(name: str) -> None:
    why = open_device({"name": "agilex"}, "sim").usable()
    if why is not None:
        pytest.skip(why)
    program, inputs = program_of(taken(name))
    graph = fresh(program)
    choice = fpga_runner.random_choice(graph, random.Random(2))
    with agilex_runner.loaded(graph, choice, "sim") as device:
        assert_means(program, inputs, device.run(inputs)[0])

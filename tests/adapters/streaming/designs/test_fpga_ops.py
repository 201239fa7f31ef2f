"""Ops as streaming designs of any folding, under stalls, and as SYCL, which tests/conformance/test_meaning.py doesn't
run: what their meaning says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from cuvil_hw import ops
from cuvil_hw.adapters.streaming.analysis.stage import refusal
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.ops.base import infer
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.types import TensorType
from tests.support import agilex_runner, fpga_runner
from tests.support.meaning_cases import Case, layers, unary
from tests.support.meaning_targets import differs, wanted
from tests.support.op_checks import Array, typed
from tests.support.xilinx import ap_types

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++")]
BOUNDED = ("-O0", "-DCUVIL_SIM_BOUNDED")


GROUPS = {
    "functions": [c for c in unary() if c.names == ("f32",) and not isinstance(c.op, ops.Cast)],
    "layers": [c for c in layers() if c.names[0] in ("f32", "i8", "u3")],
}


def taken(name: str) -> list[Case]:
    """Cases of a group that the fabric takes."""

    def fits(case: Case) -> bool:
        types = typed(case.arrays, case.names)
        return not case.op.composite and refusal(case.op, types, infer(case.op, types), "x") is None

    return [c for c in GROUPS[name] if fits(c)]


def program_of(cases: Sequence[Case]) -> tuple[Program, list[Array]]:
    """One design of all cases, and its inputs (1, …)."""
    operands = [o for c in cases for o in zip(c.arrays, c.names, strict=True)]
    builder = Builder([(f"x{n}", TensorType(a.shape, d)) for n, (a, d) in enumerate(operands)], "every_op")
    outputs: list[Any] = []
    at = 0
    for c in cases:
        outputs.append(builder.op(c.op, *[builder.input(at + n) for n in range(len(c.arrays))]))
        at += len(c.arrays)
    return builder.finish([(f"y{n}", v) for n, v in enumerate(outputs)]), [a[None] for a, _ in operands]


def assert_mean(cases: Sequence[Case], got: Sequence[Array]) -> None:
    assert [why for c, have in zip(cases, got, strict=True) if (why := differs(c, [have[0]], wanted(c)))] == []


def fresh(graph_of: Program) -> KernelGraph:
    return fpga_runner.graph_of(graph_of.clone())


@pytest.mark.parametrize("name", ["layers"])
def test_ops_in_hls(name: str) -> None:
    program, inputs = program_of(taken(name))
    graph = fresh(program)
    with fpga_runner.loaded(graph, fpga_runner.random_choice(graph, random.Random(1)), BOUNDED) as simulation:
        simulation.stall(3, 30)
        assert_mean(taken(name), simulation.run(inputs)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layers"])
def test_float_ops_on_the_types_of_xilinx(name: str) -> None:
    program, inputs = program_of(taken(name))
    graph = fresh(program)
    choice = fpga_runner.random_choice(graph, random.Random(1))
    with fpga_runner.loaded(graph, choice, ("-O0",), ap_types()) as simulation:
        assert_mean(taken(name), simulation.run(inputs)[0])


@pytest.mark.parametrize("name", ["functions", "layers"])
def test_ops_in_sycl(name: str) -> None:
    program, inputs = program_of(taken(name))
    graph = fresh(program)
    choice = fpga_runner.random_choice(graph, random.Random(2))
    with agilex_runner.loaded(graph, choice, "sim-sycl") as device:
        assert_mean(taken(name), device.run(inputs)[0])

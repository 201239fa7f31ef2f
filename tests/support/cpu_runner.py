"""Runs a level1 program through the CPU adapter, without the pipeline around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cuvil_hw.adapters.cpu.adapter import CpuAdapter
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Loaded
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes import fuse
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Choice
from cuvil_hw.target.profile import Profile, load_profile
from tests.support import device_runner

PROFILE = load_profile("cpu")


def choice_of(graph: KernelGraph, lanes: int | None = None, profile: Profile = PROFILE) -> Choice:
    """For each kernel the form with `lanes` accumulators, or the one with the best estimate."""
    other = lambda form: lanes is not None and form.lanes not in (0, lanes)  # noqa: E731
    return device_runner.cheapest(graph, CpuAdapter(), profile, other)


def graph_of(program: Program, **options: Any) -> KernelGraph:
    fuse.run(program, **{"residual_epilogue": True, **options})
    program.verify()
    return kernel_graph(program)


def plan_of(graph: KernelGraph, lanes: int | None = None, profile: Profile = PROFILE) -> BuildPlan:
    return device_runner.planned(graph, choice_of(graph, lanes, profile), CpuAdapter(), profile)


def source_of(program: Program, lanes: int | None = None) -> str:
    return plan_of(graph_of(program), lanes).files["model.c"].decode()


@contextmanager
def loaded(program: Program, lanes: int | None = None) -> Iterator[Loaded]:
    """The compiled program on this processor."""
    graph = graph_of(program)
    with device_runner.loaded(graph, plan_of(graph, lanes), device_runner.opened(PROFILE, "hw"), build=True) as run:
        yield run


def check(program: Program, *inputs: np.ndarray[Any, Any], lanes: int | None = None, rtol: float = 1e-5) -> list[Any]:
    """The compiled program gives what `evaluate` gives: integers exactly, floats within `rtol` (f16 within one of its
    steps), NaN alike."""
    wanted = evaluate(program, inputs)
    with loaded(program, lanes) as run:
        got, seconds = run.run([np.ascontiguousarray(x)[None] for x in inputs])
    assert seconds >= 0
    device_runner.compare([g[0] for g in got], wanted, rtol, f16_rtol=1e-3)
    return wanted

"""Runs a level1 program on the simulated MLU, without the pipeline around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cuvil_hw.adapters.mlu.adapter import MluAdapter
from cuvil_hw.api import choose, propose
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Loaded
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes import fuse
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.target.profile import Profile, load_profile
from tests.support import device_runner

CARDS = ("mlu270", "mlu370-x4")


def planned(program: Program, profile: Profile) -> tuple[KernelGraph, BuildPlan]:
    fuse.run(program, residual_epilogue=True)
    graph, adapter = kernel_graph(program), MluAdapter()
    choice = choose(propose(graph, adapter, profile), profile)
    return graph, device_runner.planned(graph, choice, adapter, profile)


@contextmanager
def loaded(program: Program, card: str | Profile = "mlu270") -> Iterator[Loaded]:
    profile = load_profile(card)
    graph, plan = planned(program, profile)
    with device_runner.loaded(graph, plan, device_runner.opened(profile, "sim")) as run:
        yield run


def check(program: Program, *inputs: np.ndarray[Any, Any], card: str | Profile = "mlu270", rtol: float = 1e-5) -> None:
    """The simulated card gives what `evaluate` gives: integers exactly, floats within `rtol`, NaN alike."""
    wanted = evaluate(program, inputs)
    with loaded(program, card) as run:
        got, seconds = run.run([np.ascontiguousarray(x)[None] for x in inputs])
    assert seconds >= 0
    device_runner.compare([g[0] for g in got], wanted, rtol)

"""Runs a level1 program through the CUDA adapter on its simulator, without the pipeline around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cuvil_hw.adapters.cuda.adapter import CudaAdapter
from cuvil_hw.adapters.cuda.form import CudaForm
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Loaded
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes import fuse
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Choice
from cuvil_hw.target.profile import Profile, load_profile
from tests.support import device_runner

PROFILE = load_profile("cuda:sm_75")
Prefer = Callable[[CudaForm], float]


def form(name: str, dot4: bool | None = None) -> Prefer:
    """Prefers forms of a kind, with `dot4` where there are several."""

    def prefer(f: CudaForm) -> float:
        described = f.describe()
        return 2 * (f"form={name}" not in described) + (dot4 is not None and ("dot4=yes" in described) != dot4)

    return prefer


def choice_of(graph: KernelGraph, prefer: Prefer | None = None, profile: Profile = PROFILE) -> Choice:
    return device_runner.cheapest(graph, CudaAdapter(), profile, prefer or (lambda f: 0.0))


def graph_of(program: Program) -> KernelGraph:
    fuse.run(program, residual_epilogue=True)
    program.verify()
    return kernel_graph(program)


def plan_of(graph: KernelGraph, prefer: Prefer | None = None, profile: Profile = PROFILE) -> BuildPlan:
    return device_runner.planned(graph, choice_of(graph, prefer, profile), CudaAdapter(), profile)


@contextmanager
def loaded(program: Program, prefer: Prefer | None = None, interface: str = "sim") -> Iterator[Loaded]:
    graph = graph_of(program)
    with device_runner.loaded(graph, plan_of(graph, prefer), device_runner.opened(PROFILE, interface)) as run:
        yield run


def check(
    program: Program,
    *inputs: np.ndarray[Any, Any],
    prefer: Prefer | None = None,
    interface: str = "sim",
    rtol: float = 1e-5,
) -> None:
    """Two samples at once (`inputs` and their reverse) give what `evaluate` gives for each: integers exactly, floats
    within `rtol`, NaN alike."""
    samples = [inputs, tuple(np.ascontiguousarray(x[::-1]) if x.ndim else x for x in inputs)]
    wanted = [evaluate(program, sample) for sample in samples]
    with loaded(program, prefer, interface) as run:
        got, seconds = run.run([np.stack(arrays) for arrays in zip(*samples, strict=True)])
    assert seconds >= 0
    for n, outputs in enumerate(wanted):
        device_runner.compare([g[n] for g in got], outputs, rtol)

"""Runs a level1 program through the CUDA adapter on its simulator, without the pipeline around it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.cuda.adapter import CudaAdapter
from cuvil_hw.build import BuildPlan
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.passes import fuse
from cuvil_hw.profile import Profile, load_profile
from cuvil_hw.runtime.device import DeviceProgram, Loaded, Port
from cuvil_hw.schedule.graph import kernel_graph
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Candidate, Choice, Schedule

PROFILE = load_profile("cuda:sm_75")
Prefer = Callable[[Schedule], float]


def form(name: str, **options: str) -> Prefer:
    """Prefers schedules of a form, with these options where there are several."""
    return lambda s: 2 * (s.option("form") != name) + sum(s.option(k) != v for k, v in options.items())


def choice_of(graph: KernelGraph, prefer: Prefer | None = None, profile: Profile = PROFILE) -> Choice:
    """For each kernel the schedule that `prefer` puts first, and of those the one with the best estimate."""
    adapter, picked = CudaAdapter(), []
    for k in graph.kernels:
        options = [Candidate(s, adapter.estimate(k, s, profile)) for s in adapter.schedules(k, profile)]
        picked.append((k.name, min(options, key=lambda c: (prefer(c.schedule) if prefer else 0, c.estimate.cycles))))
    return Choice(tuple(picked), 0.0, 0.0, {}, "temporal")


def graph_of(program: Program) -> KernelGraph:
    fuse.run(program)
    program.verify()
    return kernel_graph(program)


def plan_of(graph: KernelGraph, prefer: Prefer | None = None, profile: Profile = PROFILE) -> BuildPlan:
    adapter, choice = CudaAdapter(), choice_of(graph, prefer, profile)
    module = adapter.lower(graph, choice, profile)
    module.verify()
    return adapter.plan(module, graph, choice, profile, Golden())


@contextmanager
def loaded(program: Program, prefer: Prefer | None = None, interface: str = "sim") -> Iterator[Loaded]:
    graph = graph_of(program)
    plan = plan_of(graph, prefer)
    with tempfile.TemporaryDirectory() as folder:
        plan.write(Path(folder))
        ports = [tuple(Port(n, graph.buffers[n].type.shape, graph.buffers[n].type.dtype) for n in names)
                 for names in (graph.inputs, graph.outputs)]  # fmt: skip
        described = DeviceProgram(program.name, Path(folder), ports[0], ports[1], plan.info, graph.constants)
        run = CudaAdapter().open(PROFILE, interface).load(described)
        try:
            yield run
        finally:
            run.close()


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
        compare([g[n] for g in got], outputs, rtol)


def compare(got: Sequence[Any], wanted: Sequence[Any], rtol: float) -> None:
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        if np.issubdtype(w.dtype, np.floating):
            np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol, equal_nan=True)
        else:
            np.testing.assert_array_equal(g, w)

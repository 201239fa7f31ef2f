"""Runs a level1 program on the simulated MLU, without the pipeline around it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.mlu.adapter import MluAdapter
from cuvil_hw.api import choose, propose
from cuvil_hw.build import BuildPlan
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.passes import fuse
from cuvil_hw.profile import Profile, load_profile
from cuvil_hw.runtime.device import DeviceProgram, Loaded, Port
from cuvil_hw.schedule.graph import kernel_graph
from cuvil_hw.schedule.kernel import KernelGraph

CARDS = ("mlu270", "mlu370-x4")


def planned(program: Program, profile: Profile) -> tuple[KernelGraph, BuildPlan]:
    fuse.run(program)
    graph, adapter = kernel_graph(program), MluAdapter()
    choice = choose(propose(graph, adapter, profile), profile, {})
    module = adapter.lower(graph, choice, profile)
    module.verify()
    return graph, adapter.plan(module, graph, choice, profile, Golden())


@contextmanager
def loaded(program: Program, card: str | Profile = "mlu270") -> Iterator[Loaded]:
    profile = load_profile(card)
    graph, plan = planned(program, profile)
    with tempfile.TemporaryDirectory() as folder:
        plan.write(Path(folder))
        ports = [tuple(Port(n, graph.buffers[n].type.shape, graph.buffers[n].type.dtype) for n in names)
                 for names in (graph.inputs, graph.outputs)]  # fmt: skip
        described = DeviceProgram(program.name, Path(folder), ports[0], ports[1], plan.info, graph.constants)
        run = MluAdapter().open(profile, "sim").load(described)
        try:
            yield run
        finally:
            run.close()


def check(program: Program, *inputs: np.ndarray[Any, Any], card: str | Profile = "mlu270", rtol: float = 1e-5) -> None:
    """The simulated card gives what `evaluate` gives: integers exactly, floats within `rtol`, NaN alike."""
    wanted = evaluate(program, inputs)
    with loaded(program, card) as run:
        got, seconds = run.run([np.ascontiguousarray(x)[None] for x in inputs])
    assert seconds >= 0
    _compare([g[0] for g in got], wanted, rtol)


def _compare(got: Sequence[Any], wanted: Sequence[Any], rtol: float) -> None:
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        if np.issubdtype(w.dtype, np.floating):
            np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol, equal_nan=True)
        else:
            np.testing.assert_array_equal(g, w)

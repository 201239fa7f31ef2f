"""What the runners of the targets share: a plan's files loaded by a device, and results compared with the meaning."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cuvil_hw.adapters.base import Adapter, Golden, Pads
from cuvil_hw.api import propose
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Device, DeviceProgram, Loaded
from cuvil_hw.contract.record import seal
from cuvil_hw.contract.registry import open_device
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.memory import buffer_bytes, plan_memory
from cuvil_hw.schedule.space import Choice
from cuvil_hw.target.profile import Profile


def design_of(graph: KernelGraph, choice: Choice, adapter: Adapter) -> Design:
    bytes_of = adapter.buffer_bytes if isinstance(adapter, Pads) else buffer_bytes
    return Design(graph, choice, plan_memory(graph, alignment=adapter.alignment, bytes_of=bytes_of), 0.0, {})


def planned(graph: KernelGraph, choice: Choice, adapter: Adapter, profile: Profile) -> BuildPlan:
    """What the adapter makes of a choice, without golden vectors."""
    design = design_of(graph, choice, adapter)
    module = adapter.lower(design, profile)
    module.verify()
    return adapter.plan(module, design, profile, Golden())


def cheapest(
    graph: KernelGraph, adapter: Adapter, profile: Profile, prefer: Callable[[Any], float] = lambda form: 0.0
) -> Choice:
    """For each kernel the form that `prefer` puts first, and of those the one with the fewest cycles."""
    proposals = propose(graph, adapter, profile)
    best = [min(k.candidates, key=lambda c: (prefer(c.form), c.estimate.cycles)) for k in proposals.kernels]
    return Choice(tuple(zip([k.name for k in graph.kernels], best, strict=True)), 0.0, 0.0, {}, "")


def opened(profile: Profile, interface: str) -> Device:
    return open_device(profile.adapter, asdict(profile), interface)


@contextmanager
def program_of(graph: KernelGraph, plan: BuildPlan, build: bool = False) -> Iterator[DeviceProgram]:
    """The plan's files as a device loads them; with `build` its products, too."""
    with tempfile.TemporaryDirectory() as folder:
        if build:
            plan.execute(Path(folder))
        else:
            plan.write(Path(folder))
        sealed = seal(plan.info, *graph.ports())
        yield DeviceProgram(graph.name, Path(folder), *graph.ports(), plan.info, graph.constants, sealed)


@contextmanager
def loaded(graph: KernelGraph, plan: BuildPlan, device: Device, build: bool = False) -> Iterator[Loaded]:
    with program_of(graph, plan, build) as program:
        run = device.load(program)
        try:
            yield run
        finally:
            run.close()


def compare(got: Sequence[Any], wanted: Sequence[Any], rtol: float, f16_rtol: float = 0.0) -> None:
    """Shapes and dtypes are equal, integers too; floats within `rtol` (f16: the larger of both), relative and absolute;
    NaN in the same places."""
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        if np.issubdtype(w.dtype, np.floating):
            near = max(rtol, f16_rtol) if w.dtype == np.float16 else rtol
            np.testing.assert_allclose(g, w, rtol=near, atol=near, equal_nan=True)
        else:
            np.testing.assert_array_equal(g, w)

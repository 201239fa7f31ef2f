"""Runs a level1 program through the Agilex adapter, without the pipeline around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cuvil_hw.adapters.agilex.adapter import AgilexAdapter
from cuvil_hw.adapters.agilex.device import open_device
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import DeviceProgram, Loaded
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Choice
from cuvil_hw.target.profile import load_profile
from tests.support import device_runner

PROFILE = load_profile("agilex")


def planned(graph: KernelGraph, choice: Choice) -> BuildPlan:
    return device_runner.planned(graph, choice, AgilexAdapter(), PROFILE)


@contextmanager
def program_of(graph: KernelGraph, plan: BuildPlan, **info: Any) -> Iterator[DeviceProgram]:
    """The files of a plan as a device loads them; `info` replaces entries of the plan's."""
    with device_runner.program_of(graph, replace(plan, info={**plan.info, **info})) as program:
        yield replace(program, seal="") if info else program  # the sources say that they are the plan's


@contextmanager
def loaded(graph: KernelGraph, choice: Choice, interface: str) -> Iterator[Loaded]:
    with program_of(graph, planned(graph, choice)) as program:
        device = open_device({"name": "agilex", "settings": {"stall_s": 60}}, interface).load(program)
        try:
            yield device
        finally:
            device.close()

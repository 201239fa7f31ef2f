"""Runs a level1 program through the temporal style, on an engine of any size, without the pipeline around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cuvil_hw.adapters.temporal.adapter import forms_on
from cuvil_hw.adapters.temporal.engine import BoardMemory, Engine
from cuvil_hw.adapters.temporal.form import EnginePass, Form
from cuvil_hw.adapters.temporal.layer import layer_of
from cuvil_hw.adapters.zynq.fabric import fabric
from cuvil_hw.adapters.zynq.temporal import ZynqTemporal
from cuvil_hw.adapters.zynq.temporal_sim import TemporalSimulation
from cuvil_hw.ir.program import Program
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Candidate, Choice
from tests.support import fpga_runner
from tests.support.device_runner import planned, program_of

PROFILE = fpga_runner.PROFILE


def chosen(graph: KernelGraph, engine: Engine) -> tuple[Choice, list[Form]]:
    """Everything that the engine runs on it, the rest on the vector unit."""
    layers = [layer_of(k, graph) for k in graph.kernels]
    forms = forms_on(engine, graph, layers, BoardMemory(16.0, 40), fabric(PROFILE))
    picked = [(k.name, Candidate(f, f.estimate(PROFILE))) for k, f in zip(graph.kernels, forms, strict=True)]
    return Choice(tuple(picked), 0.0, 0.0, {}, "temporal"), forms


def check(
    program: Program,
    engine: Engine,
    narrow: bool = True,
    seed: int = 0,
    flags: Sequence[str] = ("-O1",),
    headers: Path | None = None,
) -> str:
    """Simulate four samples: "" when all bits are those of the meaning, else what differs and how kernels ran."""
    inputs = fpga_runner.samples(program, np.random.default_rng(seed), 4)
    wanted = fpga_runner.meaning(program, inputs)
    graph = fpga_runner.graph_of(program, narrow)
    choice, forms = chosen(graph, engine)
    with program_of(graph, planned(graph, choice, ZynqTemporal(), PROFILE)) as made:
        simulation = TemporalSimulation(made, flags, headers)
        got, _ = simulation.run(inputs)
        simulation.close()
    different = fpga_runner.difference(program, got, wanted)
    about = [f"{k.name}: {f.describe()}" for k, f in zip(graph.kernels, forms, strict=True)]
    return "\n".join([different, *about]) if different else ""


def passes(program: Program, engine: Engine) -> dict[str, str]:
    """What runs on the engine, by kernel: how. Changes `program` as the pipeline does."""
    graph = fpga_runner.graph_of(program)
    _, forms = chosen(graph, engine)
    return {k.name: f.describe() for k, f in zip(graph.kernels, forms, strict=True) if isinstance(f, EnginePass)}

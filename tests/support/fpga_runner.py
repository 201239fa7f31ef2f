"""Runs a level1 program through the Zynq adapter, without the pipeline around it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.adapters.streaming.analysis.order import stream_orders, whole_ports
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.form import Process, processes
from cuvil_hw.adapters.zynq.fabric import fabric
from cuvil_hw.adapters.zynq.project import project
from cuvil_hw.adapters.zynq.simbuild import build_simulation
from cuvil_hw.adapters.zynq.simulator import LoadedSimulation
from cuvil_hw.ir.program import Array, Program, evaluate
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Candidate, Choice, Estimate
from cuvil_hw.target.profile import load_profile
from tests.support.device_runner import program_of

PROFILE = load_profile("zynq")
QUICK = ("-O1",)  # compiling takes longer than running these designs


@dataclass(frozen=True)
class Design:
    """A design with one folding for each kernel. `program`: as it was before fusion changed it in place."""

    program: Program
    graph: KernelGraph
    choice: Choice


def graph_of(program: Program, narrow: bool = True) -> KernelGraph:
    """The kernels of a program, as the pipeline makes them. Changes `program`, not its meaning. `narrow`: accumulators
    get the width that interval analysis finds, odd ones mostly."""
    run_pipeline(program, [*(["accumulators"] if narrow else []), "decompose", "fuse"])
    return kernel_graph(program)


def random_choice(graph: KernelGraph, rng: random.Random, family: Fabric | None = None) -> Choice:
    """Any legal folding of each kernel on a family (None: the Zynq profile's), evenly drawn."""
    family = family or fabric(PROFILE)
    orders, ends = stream_orders(graph), whole_ports(graph)
    drawn = [(k.name, rng.choice(processes(k, family, graph.constants, orders, ends))) for k in graph.kernels]
    picked = [(name, Candidate(form, Estimate(0.0, 1))) for name, form in drawn]
    return Choice(tuple(picked), 0.0, 0.0, {}, "spatial")


def forms_of(choice: Choice) -> list[Process]:
    return [c.form for _, c in choice.picked]  # type: ignore[misc]


@contextmanager
def loaded(
    graph: KernelGraph, choice: Choice, flags: Sequence[str] = (), headers: Path | None = None
) -> Iterator[LoadedSimulation]:
    """The emitted sources of a design, compiled for this machine."""
    bits = PROFILE.setting("axi_stream_bits", 64)
    module = dataflow.lower(graph, forms_of(choice), bits)
    module.verify()
    plan = project(module, graph, PROFILE, Golden())
    with program_of(graph, plan) as program:
        yield LoadedSimulation(build_simulation(program, (*QUICK, *flags), headers), program)


def samples(program: Program, rng: np.random.Generator, count: int) -> list[Array]:
    """Inputs (count, *shape): all lowest, all highest, zeros, a checkerboard of both ends, one hot, then random."""
    stacks = []
    for _, kind in program.inputs:
        lo, hi = dtypes.int_range(kind.dtype)
        data = rng.integers(lo, hi, (count, *kind.shape), np.int64, endpoint=True)
        flat = data.reshape(count, -1)
        ends = np.arange(kind.size) % 2
        edges = [np.full(kind.size, lo), np.full(kind.size, hi), np.zeros(kind.size), np.where(ends, lo, hi)]
        hot = np.zeros(kind.size)
        hot[rng.integers(kind.size)] = hi
        for row, edge in zip(flat, [*edges, hot], strict=False):
            row[:] = edge
        stacks.append(data.astype(dtypes.to_numpy(kind.dtype)))
    return stacks


def meaning(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """What NumPy gives for each sample, stacked."""
    runs = [evaluate(program, [stack[n] for stack in inputs]) for n in range(len(inputs[0]))]
    return [np.stack(results) for results in zip(*runs, strict=True)]


def difference(program: Program, got: Sequence[Array], wanted: Sequence[Array]) -> str:
    """Empty when all bits agree, else which outputs differ and where first."""
    lines = []
    for (name, kind), a, b in zip(program.outputs, got, wanted, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            lines.append(f"{name}: {a.dtype}{a.shape} instead of {b.dtype}{b.shape}")
        elif not np.array_equal(a, b):
            at = tuple(np.argwhere(a != b)[0])
            share = float(np.mean(a != b))
            lines.append(f"{name} {kind}: {share:.1%} differ, first at {at}: {a[at]} instead of {b[at]}")
    return "\n".join(lines)

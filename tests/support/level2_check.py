"""The interpreter of level2 against the simulators of all targets, on the same modules.

python -m tests.support.level2_check --graphs 500    lowers random graphs for every target in forms drawn at
random, and runs each module twice: interpreted, and rendered, compiled and simulated. Both must agree with each other
and with the meaning of the graph in NumPy.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import process_time

import numpy as np

from cuvil_hw import api
from cuvil_hw.adapters.base import Golden
from cuvil_hw.contract.device import Loaded
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.schedule.space import Choice
from cuvil_hw.target.profile import load_profile
from tests.support import device_runner
from tests.support.graph_check import first_difference
from tests.support.graph_maker import Array, program_of, samples
from tests.support.graph_steps import KINDS
from tests.support.level2_runner import Interpreted

TARGETS = ("cpu", "pynq-z2", "agilex", "h100", "mlu270")
SAMPLES = 3
TOGETHER = 25  # graphs in one program


@contextmanager
def lowered(program: Program, target: str, seed: int, simulate: bool) -> Iterator[tuple[Interpreted, Loaded | None]]:
    """A program, which is changed, on a target in forms drawn at random: its module interpreted and, with
    `simulate`, what is rendered from it on the target's simulator."""
    profile = load_profile(target)
    adapter = api.adapter_for(profile, None)
    graph = api.fuse(program, adapter)
    draw = random.Random(seed)
    proposals = api.propose(graph, adapter, profile)
    picked = tuple((k.name, draw.choice(k.candidates)) for k in proposals.kernels)
    design = api.plan_memory(graph, Choice(picked, 0.0, 0.0, {}, ""), proposals, adapter, profile)
    module = adapter.lower(design, profile)
    interpreted = Interpreted(graph, module, profile)
    if not simulate:
        yield interpreted, None
        return
    plan = adapter.plan(module, design, profile, Golden())
    device = device_runner.opened(profile, adapter.interface)
    with device_runner.loaded(graph, plan, device, build=bool(plan.commands) and target == "cpu") as loaded:
        yield interpreted, loaded


def failures(seeds: Sequence[int], kind: str, target: str, simulate: bool) -> list[str]:
    """What the interpreter gets wrong, and where the simulator gives something else; all graphs are one program."""
    program, made = program_of(seeds, KINDS[kind])
    inputs = samples(made, program, SAMPLES)
    with np.errstate(all="ignore"):
        runs = [evaluate(program, [stack[n] for stack in inputs]) for n in range(SAMPLES)]
    wanted = [np.stack(results) for results in zip(*runs, strict=True)]
    run_pipeline(program, ["fold", "batch-norm", "accumulators"])
    with lowered(program, target, seeds[0], simulate) as (interpreted, loaded):
        got = interpreted.run(inputs)[0]
        pairs: list[tuple[str, Sequence[Array]]] = [("their meaning", wanted)]
        if loaded is not None:
            pairs.append(("the simulator", loaded.run([np.ascontiguousarray(a) for a in inputs])[0]))
    found = []
    for what, other in pairs:
        for m in made:
            if why := first_difference(m, got, other):
                found.append(f"{kind} {m.seed} on {target}: the interpreter and {what} differ: {why}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=500, help="how many, three of five on integers, two on floats")
    parser.add_argument("--target", choices=TARGETS, action="append", help="all of them when not given")
    parser.add_argument("--no-simulator", action="store_true", help="compare with the meaning alone")
    given = parser.parse_args()
    integers = given.graphs * 3 // 5
    for target in given.target or TARGETS:
        wrong, start = [], process_time()
        for kind, count in (("integers", integers), ("floats", given.graphs - integers)):
            for first in range(0, count, TOGETHER):
                seeds = range(first, min(first + TOGETHER, count))
                wrong += failures(seeds, kind, target, not given.no_simulator)
        seconds = process_time() - start
        print(f"{target}: {given.graphs} graphs, {len(wrong)} differences, {seconds:.0f} s of this process", flush=True)
        print("".join(f"  {line}\n" for line in wrong[:10]), end="", flush=True)


if __name__ == "__main__":
    main()

"""Random graphs on several targets against their meaning in NumPy.

python -m tests.support.graph_check --kind integers --seed 17    builds that graph again, finds how few of its steps
still fail, and prints them with the first difference; --to 99 tries all seeds up to there.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.passes.pipeline import run_pipeline
from tests.support import cpu_runner, fpga_runner, rtl_runner
from tests.support.graph_maker import ROUGH, Array, Kind, Made, Value, program_of, samples
from tests.support.graph_steps import KINDS

SAMPLES = 5
Run = Callable[[Sequence[Array]], Sequence[Array]]


@contextmanager
def cpu(program: Program, seed: int) -> Iterator[Run]:
    with cpu_runner.loaded(program) as loaded:
        yield lambda inputs: loaded.run(inputs)[0]


@contextmanager
def zynq(program: Program, seed: int) -> Iterator[Run]:
    """The design's simulation, with a folding drawn at random for each kernel."""
    graph = fpga_runner.graph_of(program, narrow=False)
    choice = fpga_runner.random_choice(graph, random.Random(seed))
    with fpga_runner.loaded(graph, choice, ("-O0",)) as simulation:
        yield lambda inputs: simulation.run(inputs)[0]


@contextmanager
def rtl(program: Program, seed: int) -> Iterator[Run]:
    """The same design's SystemVerilog in Verilator, with ports that wait in a part of the cycles."""
    graph = fpga_runner.graph_of(program, narrow=False)
    choice = fpga_runner.random_choice(graph, random.Random(seed))
    module = dataflow.lower(graph, fpga_runner.forms_of(choice), 64)
    with rtl_runner.simulated(graph, module, quick=True) as simulation:
        yield lambda inputs: simulation.run(inputs, seed, 20)[0]


TARGETS = {"cpu": cpu, "zynq": zynq, "rtl": rtl}


def differs(value: Value, got: Array, want: Array) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    if value.exact or got.dtype.kind != "f":
        same = (got == want) | ((got != got) & (want != want))
        if same.all():
            return ""
        at = tuple(int(n) for n in np.argwhere(~same)[0])
        return f"{(~same).mean():.1%} differ, first at {at}: {got[at]!r}, expected {want[at]!r}"
    try:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=ROUGH * max(value.peak, 1.0))
    except AssertionError as e:
        return str(e)
    return ""


def failures(seeds: Sequence[int], kind: Kind, target: str, most: int | None = None) -> dict[int, str]:
    """What is wrong, by seed. All graphs are one program; where that can't be built, each half is tried apart."""
    program, made = program_of(seeds, kind, most)
    inputs = samples(made, program, SAMPLES)
    with np.errstate(all="ignore"):
        runs = [evaluate(program, [stack[n] for stack in inputs]) for n in range(SAMPLES)]
    wanted = [np.stack(results) for results in zip(*runs, strict=True)]
    try:
        run_pipeline(program, ["fold", "batch-norm", "accumulators", "decompose", "fold"])
        with TARGETS[target](program, seeds[0]) as run:
            got = run(inputs)
    except (CuvilError, AssertionError, LookupError, TypeError, ValueError, ArithmeticError) as e:
        if len(seeds) == 1:
            return {seeds[0]: f"{type(e).__name__}: {e}"}
        middle = len(seeds) // 2
        return failures(seeds[:middle], kind, target, most) | failures(seeds[middle:], kind, target, most)
    return {m.seed: why for m in made if (why := first_difference(m, got, wanted))}


def first_difference(made: Made, got: Sequence[Array], wanted: Sequence[Array]) -> str:
    for value, n in zip(made.values, made.outputs, strict=True):
        why = differs(value, got[n], wanted[n])
        if why:
            return f"output {n - made.outputs[0]} ({value.type}): {why}"
    return ""


def shrunk(seed: int, kind: Kind, target: str, why: str) -> str:
    """The failure of the shortest beginning of the graph that fails, with its steps."""
    most: int | None = None
    for steps in range(6):
        found = failures([seed], kind, target, steps)
        if found:
            most, why = steps, found[seed]
            break
    _, (made,) = program_of([seed], kind, most)
    return "\n".join([why, *(f"  {line}" for line in made.trace)])


def report(failed: dict[int, str], name: str, target: str) -> str:
    """For an assertion: the first failures, shrunk, and how to see them again."""
    lines = []
    for seed, why in list(failed.items())[:3]:
        again = f"python -m tests.support.graph_check --kind {name} --seed {seed} --target {target}"
        lines.append(f"{again}\n{shrunk(seed, KINDS[name], target, why)}")
    return f"{len(failed)} graphs are wrong on {target}\n" + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--to", type=int, help="the last seed; else one graph")
    parser.add_argument("--together", type=int, default=40, help="graphs in one program")
    parser.add_argument("--target", choices=TARGETS, action="append", help="all of them when not given")
    given = parser.parse_args()
    seeds = range(given.seed, (given.seed if given.to is None else given.to) + 1)
    for target in given.target or TARGETS:
        failed: dict[int, str] = {}
        for start in range(0, len(seeds), given.together):
            failed |= failures(seeds[start : start + given.together], KINDS[given.kind], target)
        print(report(failed, given.kind, target) if failed else f"{len(seeds)} graphs agree on {target}")


if __name__ == "__main__":
    main()

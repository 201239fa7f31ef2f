"""Random QDQ models whose scales are powers of two against exact arithmetic, rounded half to even.

    python tools/qdq_fuzz.py                                       # 2,000 graphs, by the meaning of the compiled IR
    python tools/qdq_fuzz.py --graphs 40 --targets cpu,pynq-z2     # all of them in one program of each target
    python tools/qdq_fuzz.py --seed 1234 --graphs 1                # one again

Prints the seeds, every graph that differs with its steps, and how many ops on floats the graphs kept. Status 1 when any
value differs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw import dtypes  # noqa: E402
from cuvil_hw.frontend.onnx import load_onnx  # noqa: E402
from cuvil_hw.ir import level1  # noqa: E402
from cuvil_hw.ir.program import Program, evaluate  # noqa: E402
from cuvil_hw.passes.pipeline import run_pipeline  # noqa: E402
from tests.support.qdq_graphs import Array, Graph  # noqa: E402
from tests.support.qdq_random import Maker  # noqa: E402

STEPS = ["fold", "batch-norm", "integerize", "accumulators"]
INTERFACES = {"cpu": "hw"}


def on_floats(program: Program) -> list[str]:
    """Ops that compute on floats, but not those that make integers of them at the ends."""
    found = [o for o in program.ops() if isinstance(o, level1.TensorOp)]
    return [
        o.spec.mnemonic
        for o in found
        if all(dtypes.is_float(level1.type_of(v).dtype) for v in (*o.operands, *o.results))
    ]


def meaning(seed: int, floats: Counter[str]) -> str:
    """How the compiled meaning of a graph differs, "" where it doesn't."""
    made = Maker(seed)
    program = load_onnx(made.graph.model())
    run_pipeline(program, STEPS)
    floats.update(on_floats(program))
    got = evaluate(program, [made.graph.inputs[name] for name, _ in program.inputs])
    return differs(made, got)


def differs(made: Maker, got: Sequence[Array]) -> str:
    wrong = sum(int((g.astype(np.int64) != w).sum()) for g, w in zip(got, made.want, strict=True))
    return f"{wrong} of {sum(w.size for w in made.want)} values after {', '.join(made.trace)}" if wrong else ""


def on_target(target: str, seeds: Sequence[int]) -> dict[int, str]:
    """The graphs as one program."""
    graph = Graph()
    made = {seed: Maker(seed, graph) for seed in seeds}
    with cuvil.compile(graph.model(), target, interface=INTERFACES.get(target, "sim")) as program:
        results = program(**graph.inputs)
    results = results if isinstance(results, tuple) else (results,)
    return {seed: differs(m, [got]) for (seed, m), got in zip(made.items(), results, strict=True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph; the others follow")
    parser.add_argument("--targets", default="", help="names of targets, separated by commas; none: the meaning alone")
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + args.graphs)
    print(f"seeds {seeds.start} to {seeds.stop - 1}")
    failed = 0
    if args.targets:
        for target in args.targets.split(","):
            found = {seed: text for seed, text in on_target(target, seeds).items() if text}
            failed += len(found)
            print(f"{target}: {len(found)} of {len(seeds)} graphs differ")
            for seed, text in found.items():
                print(f"  seed {seed}: {text}")
        return 1 if failed else 0
    floats: Counter[str] = Counter()
    for seed in seeds:
        text = meaning(seed, floats)
        if text:
            failed += 1
            print(f"  seed {seed}: {text}")
    print(f"{failed} of {len(seeds)} graphs differ; ops left on floats: {dict(floats.most_common()) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""docs/ops.md: which ONNX operators work where, from a run of ONNX's node tests."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from cuvil_hw.target.profile import load_profile
from tests.support.onnx_suite import CONTRADICTED
from tests.support.onnx_targets import TARGETS, Outcome

ADVICE = "quantize the model (precision int8 or fixed<W,I>)"
HEAD = """# ONNX operators

Written by `make docs-ops` from a run of ONNX's own {cases:,} node tests ({version}); don't edit. Of them
{reference:,} pass on the reference and {cpu:,} on the cpu target. Those of operators that models at the edge use,
without `_expanded` ones, run on every target. A simulator stands for each target but cpu
([simulators.md](simulators.md)). No case gives a wrong result anywhere; all others are refused with a reason.
{left_out} cases are left out, in which ONNX Runtime and PyTorch differ from ONNX's reference: {names}.

Of {edge:,} cases on every target {targets}.

A case counts as passed within the tolerance that it states. {constants:,} of those that pass have operands that
Cuvil wants to be constant (axes, shapes, …) as initializers, the last column says which. `_expanded` cases, in which
ONNX writes an operator by simpler ones, count for the operator that they expand, on the reference and on cpu only.
–: not run on that target.

Profiles: {profiles}.

| operator | cases | {heads} | constant operands |
|---|--:|{rules}---|
"""


def markdown(outcomes: Sequence[Outcome], version: str) -> str:
    """The document. `outcomes`: of all node cases."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        groups[o.case.op].append(o)
    columns = ("reference", *TARGETS)
    totals = {c: sum(o.passed(c) for o in outcomes) for c in columns}
    edge = [o for o in outcomes if all(c in o.on for c in columns)]
    text = HEAD.format(
        cases=len(outcomes),
        left_out=len(CONTRADICTED),
        names=", ".join(sorted(CONTRADICTED)),
        version=version,
        reference=totals["reference"],
        cpu=totals["cpu"],
        edge=len(edge),
        targets=", ".join(f"{sum(o.passed(c) for o in edge):,} pass on {c}" for c in TARGETS),
        constants=sum(bool(o.constants) and o.passed("cpu") for o in outcomes),
        profiles=", ".join(f"{c} is {load_profile(t).name}" for c, t in TARGETS.items() if c != "cpu"),
        heads=" | ".join(columns),
        rules="--:|" * len(columns),
    )
    for op, group in sorted(groups.items()):
        constants = sorted({c for o in group if not o.case.name.endswith("_expanded") for c in o.constants})
        cells = [f"{sum(o.passed(c) for o in group)}" if any(c in o.on for o in group) else "–" for c in columns]
        text += f"| {op} | {len(group)} | {' | '.join(cells)} | {', '.join(constants)} |\n"
    text += f"| **all** | {len(outcomes):,} | {' | '.join(f'{n:,}' for n in totals.values())} | |\n"
    text += "\n## What no target takes, and why\n\n"
    for op, group in sorted(groups.items()):
        reasons = sorted({reason(o.on["reference"].why) for o in group if not o.passed("reference")})
        if reasons:
            text += f"- **{op}**: {'; '.join(reasons)}\n"
    return text + "".join(_refused_by(target, outcomes) for target in TARGETS)


def _refused_by(target: str, outcomes: Sequence[Outcome]) -> str:
    """What passes on the reference and not here."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for o in outcomes:
        if target in o.on and o.passed("reference") and not o.passed(target):
            found[_kind(o.on[target].why)][o.case.op] += 1
    lines = [
        f"- {why}: {', '.join(f'{op} ({n})' for op, n in sorted(ops.items()))}\n" for why, ops in sorted(found.items())
    ]
    return f"\n## What {target} doesn't take, and why\n\n{''.join(lines)}" if lines else ""


def _kind(why: str) -> str:
    """The reason without the name of the op that it begins with, and without advice."""
    return re.sub(r"^\w+ (?=works on|has a tensor)", "", reason(why)).removesuffix(f"; {ADVICE}")


def reason(why: str) -> str:
    """The first reason, without the place where it was found."""
    lines = [x for x in why.splitlines() if x.strip()]
    line = next((x for x in lines if x.startswith("  - ")), lines[0] if lines else "").strip()
    line = re.sub(r"^- [^×]+ ×\d+( at [^:]*)?: ", "", line)
    return re.sub(r"ONNX model '[^']*'", "the model", line).replace("|", "\\|")

"""docs/ops.md: which ONNX operators work where, from a run of ONNX's node tests."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from tests.conformance.onnx_suite import Outcome

HEAD = """# ONNX operators

Written by `make docs-ops` from a run of ONNX's own {cases:,} node tests ({version}); don't edit. Of them
{reference:,} pass on the reference and {cpu:,} on the cpu target, none gives a wrong result; all others are refused
with a reason. A case counts as passed within the tolerance that it states. {constants:,} of those that pass have
operands that Cuvil wants to be constant (axes, shapes, …) as initializers, the last column says which.

`_expanded` cases, in which ONNX writes an operator by simpler ones, count for the operator that they expand.

| operator | cases | reference | cpu | constant operands |
|---|--:|--:|--:|---|
"""


def markdown(outcomes: Sequence[Outcome], version: str) -> str:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        groups[o.case.op].append(o)
    passed = [o for o in outcomes if o.cpu == "passed"]
    text = HEAD.format(
        cases=len(outcomes),
        version=version,
        reference=sum(o.reference == "passed" for o in outcomes),
        cpu=len(passed),
        constants=sum(bool(o.constants) for o in passed),
    )
    refused: list[str] = []
    for op, group in sorted(groups.items()):
        constants = sorted({c for o in group if not o.case.name.endswith("_expanded") for c in o.constants})
        counts = [sum(getattr(o, where) == "passed" for o in group) for where in ("reference", "cpu")]
        text += f"| {op} | {len(group)} | {counts[0]} | {counts[1]} | {', '.join(constants)} |\n"
        reasons = sorted({reason(o) for o in group if "refused" in (o.reference, o.cpu)})
        if reasons:
            refused.append(f"- **{op}**: {'; '.join(reasons)}\n")
    return text + "\n## What is refused, and why\n\n" + "".join(refused)


def reason(o: Outcome) -> str:
    """The first reason, without the place where it was found."""
    lines = [x for x in o.why.splitlines() if x.strip()]
    line = next((x for x in lines if x.startswith("  - ")), lines[0] if lines else "").strip()
    line = re.sub(r"^- [^×]+ ×\d+( at [^:]*)?: ", "", line)
    return re.sub(r"ONNX model '[^']*'", "the model", line).replace("|", "\\|")

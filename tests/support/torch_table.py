"""docs/torch-ops.md: which of PyTorch's operators and modules work where, from a run of its own suites."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tests.support.torch_suite import Outcome

HEAD = """# PyTorch operators and modules

Written by `make docs-torch` from a run of PyTorch's own suites ({version}); don't edit. A case is one set of sample
inputs, float32 or int64, as the suite makes it and again with tensors that are not contiguous; those with no elements
are among them. {limit}A case counts as passed when eager PyTorch's result is met within the tolerance of
`torch.testing.assert_close`, or is as near to the result in double precision as eager PyTorch's own (on average at
most twice as far, anywhere at most four times its worst). Those that `torch.export` itself refuses ("untraced") are not
counted.

| | entries | with all cases passed | cases | passed on the reference | passed on cpu | refused | untraced |
|---|--:|--:|--:|--:|--:|--:|--:|
"""


def markdown(
    suites: Mapping[str, Sequence[Outcome]], left_out: Mapping[str, Sequence[str]], version: str, most: int
) -> str:
    limit = f"Of entries with more cases, {most} for each element type are run, evenly chosen. " if most else ""
    text = HEAD.format(version=version, limit=limit)
    for suite, outcomes in suites.items():
        text += _summary(suite, outcomes)
    for suite, outcomes in suites.items():
        text += f"\n## {suite}\n\n| entry | cases | reference | cpu |\n|---|--:|--:|--:|\n"
        groups = by_op(outcomes)
        for op, group in groups.items():
            counts = [len(traced(group)), sum(on_reference(o) for o in group), sum(o.result == "passed" for o in group)]
            text += f"| {op} | {' | '.join(map(str, counts))} |\n"
        refused = {op: sorted({reason(o) for o in group if o.result == "refused"}) for op, group in groups.items()}
        text += f"\n### {suite}: what is refused, and why\n\n"
        text += "".join(f"- **{op}**: {'; '.join(reasons)}\n" for op, reasons in refused.items() if reasons)
    text += "\n## Entries of op_db that are not run\n\n"
    return text + "".join(f"- {why}: {', '.join(sorted(names))}\n" for why, names in sorted(left_out.items()))


def _summary(suite: str, outcomes: Sequence[Outcome]) -> str:
    groups = by_op(outcomes)
    results = Counter(o.result for o in outcomes)
    numbers = [
        len(groups),
        len(complete(outcomes)),
        len(traced(outcomes)),
        sum(on_reference(o) for o in outcomes),
        results["passed"],
        results["refused"],
        results["untraced"],
    ]
    return f"| {suite} | " + " | ".join(f"{n:,}" for n in numbers) + " |\n"


def traced(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if o.result != "untraced"]


def on_reference(o: Outcome) -> bool:
    return o.result == "passed" or o.where == "cpu"


def by_op(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        groups[o.case.op].append(o)
    return {op: group for op, group in sorted(groups.items()) if traced(group)}


def complete(outcomes: Sequence[Outcome]) -> list[str]:
    """Entries of which every case that torch.export takes passes everywhere."""
    return [op for op, group in by_op(outcomes).items() if all(o.result == "passed" for o in traced(group))]


def reason(o: Outcome) -> str:
    """On one line, without numbers that only this case has."""
    lines = [x.strip() for x in o.why.splitlines() if x.strip()]
    line = next((x for x in lines if x.startswith("- ")), lines[0] if lines else "")
    line = re.sub(r"^- ([^×]+) ×\d+( at [^:]*:\d+)?: ", r"\1: ", line)
    return re.sub(r"\d+(?:x\d+)*x([a-z]+\d)", r"… \1", line).replace("|", "\\|")

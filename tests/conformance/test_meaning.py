"""The rules of docs/numerics.md: every op, every kind of element type, special values, every target.

The reference gives what rules say by hand; each target gives what the reference gives, or refuses with a reason. Unless
`--full` is given, targets other than cpu take a sixth of each op's cases, each target other ones.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from cuvil_hw.errors import ToolNotFound
from cuvil_hw.ops import base
from cuvil_hw.ops.custom import CustomOp
from tests.support.meaning_cases import Case, everything
from tests.support.meaning_rules import beyond, rules
from tests.support.meaning_targets import differs, on_target
from tests.support.onnx_targets import TARGETS
from tests.support.shares import share

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
PARTS = 6
# Of all cases, those that pass at least; of a share as many of a hundred, less four standard deviations of a sample.
LEAST = {"cpu": 1398, "zynq": 812, "agilex": 812, "cuda": 1398, "mlu270": 1041, "mlu370": 598}


def test_every_op_is_in_a_case() -> None:
    """But those that other tests register (CustomOp), and the ends of a loop, which have a meaning only together
    (tests/adapters/base/test_loops.py)."""
    ours = {name for name, cls in base.registry.items() if not issubclass(cls, CustomOp) and _built_in(cls)}
    assert ours - {c.op.mnemonic for c in everything()} == {"loop_begin", "loop_end"}


@pytest.mark.parametrize("words", sorted({c.rule for c in rules()}))
def test_the_reference_follows_the_page(words: str) -> None:
    assert words in " ".join(PAGE.read_text(encoding="utf-8").split()), "the page doesn't say so"
    for case in (c for c in rules() if c.rule == words):
        if case.raises:
            with pytest.raises(base.ShapeError, match="is outside"):
                base.evaluate(case.op, case.arrays)
        else:
            assert differs(case, base.evaluate(case.op, case.arrays), case.want) == ""


def _built_in(cls: type[base.Op]) -> bool:
    return cls.__module__.startswith("cuvil_hw.ops.")


def cases_of(target: str, full: bool) -> list[Case]:
    """All or a share; but the kernels of mlu370 are those of mlu270 with other tiles, so a few types will do."""
    few = target == "mlu370"
    mine = [c for c in (*everything(), *beyond()) if not few or {*c.names} <= {"f16", "f32", "i8", "i64", "u3", "bool"}]
    whole = full or target == "cpu"
    return mine if whole else share(mine, lambda c: c.op.mnemonic, PARTS, list(TARGETS).index(target))


@pytest.mark.must_run
@pytest.mark.needs("cc", "g++")
@pytest.mark.parametrize("target", TARGETS)
def test_targets_follow_the_reference(target: str, full: bool) -> None:
    cases, all_cases = cases_of(target, full), cases_of(target, True)
    try:
        results = on_target(target, cases)
    except ToolNotFound as e:
        pytest.skip(str(e))
    count = Counter(r.status for r in results)
    print(f"{target}: {count['passed']} passed, {count['refused']} refused")
    refused = [(c, r.why) for c, r in zip(cases, results, strict=True) if r.status == "refused"]
    for why, n in Counter(_reason(c, why) for c, why in refused).most_common():
        print(f"  {n}× {why}")
    assert [r.why for r in results if r.status not in ("passed", "refused")] == []
    assert [str(c) for c, why in refused if not why.strip()] == []
    assert {c.op.mnemonic for c in cases} == {c.op.mnemonic for c in all_cases}
    least = LEAST[target] / len(all_cases)
    spread = math.sqrt(least * (1 - least) / len(cases)) if len(cases) < len(all_cases) else 0.0
    assert count["passed"] / len(cases) >= least - 4 * spread


def _reason(case: Case, why: str) -> str:
    """Without the op's name, so that equal reasons are counted together."""
    line = next((part for part in why.splitlines() if "×" in part), why)
    return line.split(": ", 1)[-1].split(";")[0].replace(case.op.mnemonic, "it")

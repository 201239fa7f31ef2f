"""PyTorch's own suites: nothing wrong, nothing crashes, and what passes is written in docs/torch-ops.md.

Unless `--full` is given, of each entry of op_db and element type the first case runs and then every seventh; they must
fit the counts of the page, which a full run writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from cuvil_hw.ops import binary
from tests.support.shares import counts_of
from tests.support.torch_selection import why_left_out
from tests.support.torch_suite import Outcome, module_cases, op_cases, run
from tests.support.torch_table import by_op, complete, markdown, traced

pytestmark = [pytest.mark.slow, pytest.mark.must_run, pytest.mark.needs("cc", "expecttest")]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "torch-ops.md"
MOST = 8  # cases of one entry and element type
PARTS = 7  # odd, as plain and strided cases alternate
DTYPES = (torch.float32, torch.int64)
LEAST = {"op_db": 200, "module_db": 60}  # entries of which all cases pass
# Entries of module_db without a use in inference.
TRAINING = ("Loss", "FractionalMaxPool")
RECURRENT = ("nn.LSTM", "nn.GRU", "nn.RNN", "nn.LSTMCell", "nn.GRUCell", "nn.RNNCell")
ATTENTION = ("nn.MultiheadAttention", "nn.TransformerEncoderLayer", "nn.TransformerDecoderLayer", "nn.Transformer")


def entries() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def label(op: Any) -> str:
    return op.name + (f"/{op.variant_test_name}" if op.variant_test_name else "")


@pytest.fixture(scope="module")
def outcomes(full: bool) -> dict[str, list[Outcome]]:
    from torch.testing._internal.common_modules import module_db

    parts = 1 if full else PARTS
    ops = [op for op in entries() if not why_left_out(label(op))]
    modules = [m for m in module_db if not any(t in m.name for t in TRAINING)]
    return {
        "op_db": run([c for op in ops for d in DTYPES if d in op.dtypes for c in op_cases(op, d, MOST, parts)]),
        "module_db": run([c for m in modules for c in module_cases(m, torch.float32, MOST)]),
    }


@pytest.mark.parametrize("suite", LEAST)
def test_nothing_is_wrong(suite: str, outcomes: dict[str, list[Outcome]]) -> None:
    found = outcomes[suite]
    print(suite, Counter(o.result for o in found), f"{len(complete(found))} entries complete")
    assert [f"{o.case.name}: {o.why}" for o in found if o.result in ("wrong", "crashed")] == []


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, int]]:
    """By entry, of docs/torch-ops.md."""
    return counts_of(DOCS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("suite", LEAST)
def test_results_fit_the_counts_of_the_page(
    suite: str, outcomes: dict[str, list[Outcome]], counts: dict[str, dict[str, int]]
) -> None:
    """Of each entry no more cases pass than the page says, and no more are refused."""
    for op, group in by_op(outcomes[suite]).items():
        passed = sum(o.result == "passed" for o in group)
        assert passed <= counts[op]["cpu"], op
        assert len(traced(group)) - passed <= counts[op]["cases"] - counts[op]["cpu"], op


def test_every_entry_of_the_page_has_a_case(
    outcomes: dict[str, list[Outcome]], counts: dict[str, dict[str, int]]
) -> None:
    assert {op for op in counts if op not in outcomes} <= {o.case.op for found in outcomes.values() for o in found}


@pytest.mark.parametrize("suite", LEAST)
def test_enough_passes(suite: str, outcomes: dict[str, list[Outcome]], counts: dict[str, dict[str, int]]) -> None:
    entries = by_op(outcomes[suite])
    assert sum(counts[op]["cases"] == counts[op]["cpu"] for op in entries) >= LEAST[suite]


@pytest.mark.parametrize("suite", LEAST)
def test_what_is_refused_says_why(suite: str, outcomes: dict[str, list[Outcome]]) -> None:
    assert [o.case.name for o in outcomes[suite] if o.result == "refused" and not o.why.strip()] == []


def test_strides_and_empty_tensors_are_among_the_cases(outcomes: dict[str, list[Outcome]], full: bool) -> None:
    passed = [o.case for o in outcomes["op_db"] if o.result == "passed"]
    assert sum(c.kind == "strided" for c in passed) >= (1000 if full else 1000 // PARTS)
    assert sum(c.empty for c in passed) >= (100 if full else 100 // PARTS)


@pytest.mark.parametrize("name", [*RECURRENT, *ATTENTION])
def test_recurrent_layers_and_attention_pass(name: str, outcomes: dict[str, list[Outcome]]) -> None:
    results = Counter(o.result for o in outcomes["module_db"] if o.case.op == name)
    assert results["passed"] > 0
    assert set(results) <= {"passed", "untraced"}


def test_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    subtract = next(op for op in entries() if label(op) == "sub")
    cases = op_cases(subtract, torch.float32, 4)
    right = binary.Sub.evaluate
    monkeypatch.setattr(binary.Sub, "evaluate", lambda self, a, b: right(self, b, a))
    assert "wrong" in {o.result for o in run(cases, cpu=False)}


def test_docs_say_what_passes(outcomes: dict[str, list[Outcome]], full: bool, request: pytest.FixtureRequest) -> None:
    """The whole page where all cases ran; else what it says is not run."""
    left_out = defaultdict(list)
    for op in entries():
        if why_left_out(label(op)):
            left_out[why_left_out(label(op))].append(label(op))
    if not full:
        page = DOCS.read_text(encoding="utf-8")
        assert all(f"- {why}: {', '.join(sorted(names))}\n" in page for why, names in left_out.items())
        return
    text = markdown(outcomes, left_out, f"torch {torch.__version__.partition('+')[0]}", MOST)
    if request.config.getoption("--update-golden"):
        DOCS.write_text(text, encoding="utf-8")
    assert DOCS.is_file(), "docs/torch-ops.md is missing; write it with: make docs-torch"
    assert text == DOCS.read_text(encoding="utf-8"), "docs/torch-ops.md is out of date; write it with: make docs-torch"

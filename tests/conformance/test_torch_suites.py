"""PyTorch's own suites: nothing wrong, nothing crashes, and what passes is written in docs/torch-ops.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from cuvil_hw.ops import binary
from tests.support.torch_selection import why_left_out
from tests.support.torch_suite import Outcome, module_cases, op_cases, run
from tests.support.torch_table import complete, markdown

pytestmark = [pytest.mark.slow, pytest.mark.must_run, pytest.mark.needs("cc", "expecttest")]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "torch-ops.md"
MOST = 8  # cases of one entry and element type
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
def outcomes() -> dict[str, list[Outcome]]:
    from torch.testing._internal.common_modules import module_db

    ops = [op for op in entries() if not why_left_out(label(op))]
    modules = [m for m in module_db if not any(t in m.name for t in TRAINING)]
    return {
        "op_db": run([c for op in ops for d in DTYPES if d in op.dtypes for c in op_cases(op, d, MOST)]),
        "module_db": run([c for m in modules for c in module_cases(m, torch.float32, MOST)]),
    }


@pytest.mark.parametrize("suite", LEAST)
def test_nothing_is_wrong(suite: str, outcomes: dict[str, list[Outcome]]) -> None:
    found = outcomes[suite]
    print(suite, Counter(o.result for o in found), f"{len(complete(found))} entries complete")
    assert [f"{o.case.name}: {o.why}" for o in found if o.result in ("wrong", "crashed")] == []


@pytest.mark.parametrize("suite", LEAST)
def test_enough_passes(suite: str, outcomes: dict[str, list[Outcome]]) -> None:
    assert len(complete(outcomes[suite])) >= LEAST[suite]


@pytest.mark.parametrize("suite", LEAST)
def test_what_is_refused_says_why(suite: str, outcomes: dict[str, list[Outcome]]) -> None:
    assert [o.case.name for o in outcomes[suite] if o.result == "refused" and not o.why.strip()] == []


def test_strides_and_empty_tensors_are_among_the_cases(outcomes: dict[str, list[Outcome]]) -> None:
    passed = [o.case for o in outcomes["op_db"] if o.result == "passed"]
    assert sum(c.kind == "strided" for c in passed) >= 1000
    assert sum(c.empty for c in passed) >= 100


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


def test_docs_say_what_passes(outcomes: dict[str, list[Outcome]], request: pytest.FixtureRequest) -> None:
    left_out = defaultdict(list)
    for op in entries():
        if why_left_out(label(op)):
            left_out[why_left_out(label(op))].append(label(op))
    text = markdown(outcomes, left_out, f"torch {torch.__version__.partition('+')[0]}", MOST)
    if request.config.getoption("--update-golden"):
        DOCS.write_text(text, encoding="utf-8")
    assert DOCS.is_file(), "docs/torch-ops.md is missing; write it with: make docs-torch"
    assert text == DOCS.read_text(encoding="utf-8"), "docs/torch-ops.md is out of date; write it with: make docs-torch"

"""Indices that a caller gives: outside the table they are an error, on every route, and no row of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.runtime.calling import Range  # noqa: E402
from tests.unit.torch_oracle import Call, rand  # noqa: E402

pytestmark = [pytest.mark.needs("gcc"), pytest.mark.must_run]

IDS = torch.tensor([[1, 4], [0, 3]])
TABLE = rand(5, 3)


def ranges(f: Any, *inputs: Any) -> tuple[Range, ...]:
    return load(Call(f), inputs).calling.ranges


def test_an_embedding_through_the_artifact(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(5, 3).eval()
    cuvil.compile(model, "cpu", example_inputs=IDS).save(tmp_path / "e.cuvil")
    with cuvil.load(tmp_path / "e.cuvil") as program:
        with torch.no_grad():
            torch.testing.assert_close(program(IDS), model(IDS))
        for wrong in (5, -1):
            with pytest.raises(cuvil.InputError, match=rf"'input' is an index from 0 to 4; {wrong} is given"):
                program(torch.tensor([[1, wrong], [0, 3]]))
        with pytest.raises(cuvil.InputError, match="5 is given"):  # in the second sample
            program(np.array([[[1, 4], [0, 3]], [[1, 4], [0, 5]]]))


def test_through_torch_compile() -> None:
    torch._dynamo.reset()
    fast = torch.compile(nn.Embedding(5, 3), backend="cuvil")
    with torch.no_grad():
        fast(IDS)
        with pytest.raises(cuvil.InputError, match="7 is given"):
            fast(IDS + 3)


def test_negative_indices_count_from_the_end_where_pytorch_lets_them() -> None:
    assert ranges(lambda t, i: t[i], TABLE, IDS) == (Range("args_1", -5, 4),)
    assert ranges(lambda t, i: t[i] + t[:2][i], TABLE, IDS % 2) == (Range("args_1", -2, 1),)
    assert ranges(lambda t, i: torch.nn.functional.embedding(i.T.flatten(), t), TABLE, IDS) == (Range("args_1", 0, 4),)


def test_computed_indices_and_branches_have_no_range() -> None:
    assert ranges(lambda t, i: t[i % 5], TABLE, IDS) == ()

    def branches(t: Any, i: Any) -> Any:
        return torch.cond(i.sum() > 3, lambda: t[i] * 2, lambda: t[:2, None].expand(2, 2, 3) + 0)

    assert ranges(branches, TABLE, IDS) == ()

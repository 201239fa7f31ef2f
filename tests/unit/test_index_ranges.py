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


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.uint8])
def test_indices_are_the_callers_through_a_wider_type(dtype: Any) -> None:
    embedded = torch.nn.functional.embedding
    assert ranges(lambda t, i: embedded(i.long().T, t), TABLE, IDS.to(dtype)) == (Range("args_1", 0, 4),)
    assert ranges(lambda t, i: embedded((i.long() + 1).int(), t), TABLE, IDS.to(dtype) // 2) == ()
    assert ranges(lambda t, i: embedded(i.to(torch.int32), t), TABLE, IDS) == ()  # wraps first


@pytest.mark.parametrize("mode", ["sum", "max"])
def test_bags(mode: Any) -> None:
    def bags(t: Any, i: Any, starts: Any) -> Any:
        return torch.nn.functional.embedding_bag(i, t, starts, mode=mode)

    flat, starts = IDS.flatten(), torch.tensor([0, 2])
    assert ranges(bags, TABLE, flat, starts) == (Range("args_1", 0, 4), Range("args_2", 0, 4))
    with cuvil.compile(Call(bags), "cpu", example_inputs=(TABLE, flat, starts)) as program:
        torch.testing.assert_close(program(TABLE, flat, starts), bags(TABLE, flat, starts))
        for wrong in (-1, 5):
            given = torch.tensor([1, wrong, 0, 3])
            with pytest.raises(RuntimeError):
                bags(TABLE, given, starts)
            with pytest.raises(cuvil.InputError, match=f"{wrong} is given"):
                program(TABLE, given, starts)


@pytest.mark.parametrize(
    "f",
    [
        lambda t, i: t.index_select(1, i.flatten()),
        lambda t, i: t.gather(1, i),
        lambda t, i: t.scatter(1, i, 1.0),
        lambda t, i: t.scatter_add(1, i, t),
        lambda t, i: t.scatter_reduce(1, i, t, "amax"),
    ],
)
def test_where_pytorch_refuses_negative_indices(f: Any) -> None:
    assert ranges(f, TABLE, IDS % 3) == (Range("args_1", 0, 2),)
    with pytest.raises((RuntimeError, IndexError)):
        f(TABLE, IDS % 3 - 1)

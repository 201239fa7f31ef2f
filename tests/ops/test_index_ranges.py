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
from cuvil_hw.contract.calling import Range  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from tests.support.torch_oracle import Call, rand  # noqa: E402

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


@pytest.mark.parametrize(
    "f",
    [
        lambda t, i, j: t[i, j],
        lambda t, i, j: t.index_put((i, j), torch.ones(2, 2)),
        lambda t, i, j: t.index_put((i, j), torch.ones(()), accumulate=True),
        lambda t, i, j: t.T[j, i.T.T] * 2,
    ],
)
def test_several_indices_at_once(f: Any) -> None:
    j = torch.tensor([[1, 2], [0, 0]])
    assert set(ranges(f, TABLE, IDS, j)) == {Range("args_1", -5, 4), Range("args_2", -3, 2)}
    with cuvil.compile(Call(f), "cpu", example_inputs=(TABLE, IDS, j)) as program:
        torch.testing.assert_close(program(TABLE, IDS - 5, j - 3), f(TABLE, IDS - 5, j - 3))
        for i, k, wrong in ((IDS + 1, j, 5), (IDS, j + 1, 3), (IDS - 6, j, -6), (IDS, j - 4, -4)):
            with pytest.raises(IndexError):
                f(TABLE, i, k)
            with pytest.raises(cuvil.InputError, match=f"; {wrong} is given"):
                program(TABLE, i, k)


def test_parts_of_an_input() -> None:
    assert ranges(lambda t, i: t[i[0]] + t[:4][i[1].flip(0)], TABLE, IDS) == (
        Range("args_1", -5, 4, ((0, 1, 1), (0, 2, 1))), Range("args_1", -4, 3, ((1, 1, 1), (0, 2, 1))))  # fmt: skip

    def f(t: Any, i: Any) -> Any:
        return t[i[:, 0], i[:, 1]], t.take(i[1:])

    with cuvil.compile(Call(f), "cpu", example_inputs=(TABLE, IDS % 3)) as program:
        given = torch.tensor([[4, 2], [-2, -3]])
        for got, want in zip(program(TABLE, given), f(TABLE, given), strict=True):
            assert torch.equal(got, want)
        for wrong in ([[4, 3], [0, 0]], [[5, 2], [0, 0]], [[0, -4], [0, 0]], [[0, 0], [0, 3]], [[0, 0], [-6, 0]]):
            with pytest.raises(IndexError):
                f(TABLE, torch.tensor(wrong))
            with pytest.raises(cuvil.InputError, match="is given"):
                program(TABLE, torch.tensor(wrong))


def test_positions_of_onnx(tmp_path: Path) -> None:
    """GatherND and ScatterND hold a position in each row; their columns have extents of their own."""
    gather = _onnx("GatherND", ["x", "i"], {}, x=(3, 4), i=(2, 2), y=(2,))
    scatter = _onnx("ScatterND", ["x", "i", "u"], {}, x=(3, 4), i=(2, 2), u=(2,), y=(3, 4))
    batched = _onnx("GatherND", ["x", "i"], {"batch_dims": 1}, x=(2, 3, 4), i=(2, 1), y=(2, 4))
    x, u = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(2, np.float32)
    for model, others in ((gather, ()), (scatter, (u,))):
        cuvil.compile(model, "cpu").save(tmp_path / "p.cuvil")
        with cuvil.load(tmp_path / "p.cuvil") as program:
            program(x, np.array([[2, 3], [-3, -4]]), *others)
            for wrong in ([[3, 0], [0, 0]], [[0, 0], [0, 4]], [[-4, 0], [0, 0]], [[0, 0], [0, -5]]):
                with pytest.raises(cuvil.InputError, match=r"'i' is an index from .* is given"):
                    program(x, np.array(wrong), *others)
    assert load(batched).calling.ranges == (Range("i", -3, 2),)


def _onnx(op: str, inputs: list[str], attributes: dict[str, Any], **shapes: tuple[int, ...]) -> Any:
    from onnx import TensorProto, helper

    def info(name: str) -> Any:
        kind = TensorProto.INT64 if name == "i" else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind, shapes[name])

    node = helper.make_node(op, inputs, ["y"], **attributes)
    graph = helper.make_graph([node], "g", [info(n) for n in inputs], [info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

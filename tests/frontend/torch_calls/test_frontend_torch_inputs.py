"""Inputs of compiled PyTorch models: written into, of any layout, without elements; symbolic sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.errors import CuvilError, InputError  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(got: Any, want: Any) -> None:
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Writes(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        x.mul_(2)
        x[:, 0] = 7
        return x.sum() + y


@pytest.fixture(scope="module")
def writes() -> Any:
    return cuvil.compile(Writes(), "cpu", example_inputs=(rand(2, 3), rand(2, 3)))


def test_what_a_model_writes_into_its_inputs_is_written(writes: Any) -> None:
    assert [p.name for p in writes.outputs] == ["out0"]
    x, y, eager = rand(2, 3, seed=1), rand(2, 3), rand(2, 3, seed=1)
    want = Writes()(eager, y)
    same(writes(x, y), want)
    same(x, eager)
    wide = np.zeros((3, 2), np.float32)
    wide.T[...] = rand(2, 3, seed=1).numpy()
    np.testing.assert_allclose(writes(wide.T, y.numpy()), want.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(wide.T, eager.numpy())


@pytest.mark.parametrize(
    ("x", "why"),
    [
        ([[1.0] * 3] * 2, "a list can't be written to"),
        (np.frombuffer(bytes(24), np.float32).reshape(2, 3), "read-only"),
        (torch.ones(3).expand(2, 3), "share memory"),
        (np.ones((2, 3)), "float64, not float32"),
        (np.ones((2, 3), ">f4")[:1].repeat(2, 0).astype("f2"), "float16, not float32"),
    ],
    ids=["list", "read-only", "expanded", "f64", "f16"],
)
def test_inputs_that_can_not_be_written_are_refused(writes: Any, x: Any, why: str) -> None:
    with pytest.raises(InputError, match=f"input 'x': the model writes into it.*{why}|a list can't be written to"):
        writes(x, rand(2, 3))


def laid_out(x: Any) -> dict[str, Any]:
    """The numbers of `x` (N, C, H, W) in every layout that an input may have."""
    a = x.numpy()
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return {
        "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3).contiguous().transpose(2, 3),
        "strided": wide[..., ::2],
        "offset": torch.cat([x, x])[x.shape[0] :],
        "negative": np.ascontiguousarray(a[:, ::-1, :, ::-1])[:, ::-1, :, ::-1],
        "big_endian": a.astype(">f4"),
        "fortran": np.asfortranarray(a),
        "read_only": np.broadcast_to(a, a.shape),
        "unaligned": np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(a.shape),
        "list": a.tolist(),
        "f64": a.astype(np.float64),
    }


def test_any_layout_gives_the_same_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1)).requires_grad_(False)
    model.to(memory_format=torch.channels_last)
    x = rand(1, 3, 5, 4)
    program = cuvil.compile(model, "cpu", example_inputs=x.to(memory_format=torch.channels_last))
    program.save(tmp_path / "p.cuvil")
    for executable in (program, cuvil.load(tmp_path / "p.cuvil")):
        want = executable(x.numpy())
        np.testing.assert_allclose(want, model(x).numpy(), rtol=1e-5, atol=1e-6)
        for batch in (x, torch.cat([x, -x, x])):
            want = executable(batch.numpy())
            for name, value in laid_out(batch).items():
                assert np.array_equal(np.asarray(executable(value)), want), name
        expanded = executable(x[:, :1, :1].expand(2, 3, 5, 4))
        assert np.array_equal(expanded.numpy(), executable(x[:, :1, :1].expand(2, 3, 5, 4).contiguous().numpy()))
        assert executable(np.zeros((0, 3, 5, 4), np.float32)).shape == (0, 2, 5, 4)


def test_inputs_without_elements() -> None:
    class Sums(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x.sum(1), torch.cat([x, y], 1)

    program = cuvil.compile(Sums(), "cpu", example_inputs=(torch.zeros(2, 0), rand(2, 3)))
    same(program(torch.zeros(0, 2).T, rand(3, 2).T), Sums()(torch.zeros(2, 0), rand(3, 2).T))


def dynamic() -> Any:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Any, y: Any) -> Any:
            return {"n": self.layer(x) * x.shape[0] + y.sum(), "flat": x.reshape(-1)[: x.shape[0]]}

    n, k = torch.export.Dim("n", min=2, max=9), torch.export.Dim("k", min=2)
    return torch.export.export(Head(), (rand(3, 4), rand(5)), dynamic_shapes=({0: n}, {0: k}))


def test_an_exported_program_with_symbolic_sizes_takes_sizes() -> None:
    exported = dynamic()
    x, y = rand(7, 4), rand(2)
    with torch.no_grad():
        want = exported.module()(x, y)
    for given in ({"example_inputs": (x, y)}, {"shapes": {"x": (7, 4), "y": (2,)}}):
        program = load(exported, **given)
        assert [tuple(t.shape) for _, t in program.inputs] == [(7, 4), (2,)]
        got = dict(zip((n for n, _ in program.outputs), evaluate(program, [x.numpy(), y.numpy()]), strict=True))
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value.numpy(), rtol=1e-5)
    assert any("test_frontend_torch_inputs.py" in str(op) or "layer" in str(op) for op in program.ops())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, r"symbolic sizes: x \(.*, 4\), y .* in \[2, 9\].*give example_inputs, or shapes="),
        ({"shapes": {"x": (7, 4)}}, "symbolic sizes"),
        ({"shapes": {"x": (7, 4), "y": (2,), "z": (1,)}}, "shapes names z; the inputs are x, y"),
        ({"shapes": {"x": (10, 4), "y": (2,)}}, "can't take these sizes.*9"),
        ({"shapes": {"x": (7, 5), "y": (2,)}}, "can't take these sizes"),
        ({"example_inputs": (rand(7, 4),)}, "missing a required argument|can't take these sizes"),
    ],
)
def test_sizes_that_are_missing_or_wrong(given: dict[str, Any], why: str) -> None:
    with pytest.raises(CuvilError, match=why):
        load(dynamic(), **given)

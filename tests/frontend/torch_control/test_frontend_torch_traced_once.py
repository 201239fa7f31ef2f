"""Models that are traced once: torch's decompositions, a second trace, aren't asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import cuvil  # noqa: E402
from tests.support.torch_oracle import check, rand  # noqa: E402


def below(x: Any) -> Any:
    """A view that is taken before a write shows it afterwards, and the write goes through it."""
    y = x + 1
    row, turned = y[:, 1], y.transpose(0, 1)
    row.mul_(3)
    turned[0].add_(x[:, 2])
    return y, row, turned


def filled(x: Any) -> Any:
    y = torch.empty(4, 6)
    y[:, :3] = x[:, ::2]
    y[:, 3:].copy_(x[0, :3])
    y[1:3].view(-1)[2::5].fill_(7)
    return y


def divided(x: Any) -> Any:
    y = (x * 2).to(torch.float16)
    y.div_(x)  # stays f16
    z = torch.zeros(4, 6, dtype=torch.int64)
    z.add_((x > 0).long()).mul_(2)
    return y, z


def routed(x: Any) -> Any:
    y = x.exp()
    a, b = y.chunk(2, 1)
    y.clamp_(max=1.5)
    return a + b, F.dropout(y, 0.5, False).neg_(), y


def named(input: Any) -> Any:
    """The parameter is called like a builtin."""
    y = input * 1
    y[0] = 0
    return y, input


PLAIN: dict[str, Callable[[Any], Any]] = {
    "detach_": lambda x: x + torch.arange(6.0).detach_(),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[:, 1], x[0, 0], indexing="xy"),
    "activation": lambda x: F.silu(F.relu(x * 2, inplace=True).sub_(0.1), inplace=True),
    "views": below,
    "slices": filled,
    "types": divided,
    "chunks": routed,
    "masked": lambda x: (x * 1).masked_fill_(x > 0, 3.0).index_put_((torch.tensor([1]),), x[0]),
    "permuted": lambda x: (x + 0).view(2, 2, 6).permute(2, 0, 1).sqrt_().reshape(6, 4),
    "powers": lambda x: (x * 1).pow_(2).ldexp_(x),
    "named": named,
    "operators": lambda x: __import__("operator").iadd(x * 1, x),
}


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    def second(*_: Any, **__: Any) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", second)


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_traced_once(name: str, once: None) -> None:
    check(PLAIN[name], rand(4, 6))


def test_what_is_left_to_torch() -> None:
    def parts(x: Any) -> Any:
        y = x + 1
        first, _ = y.chunk(2, 1)
        first.mul_(2)
        return y

    check(parts, rand(4, 6))


def test_writes_through_views_of_another_type() -> None:
    """They aren't taken for writes of numbers: this one doubles, by the exponent."""

    def bits(x: Any) -> Any:
        y = x.abs() + 1
        y.view(torch.int32)[:, 1::2].add_(1 << 23)
        return y

    check(bits, rand(4, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8, torch.bool, torch.bfloat16], ids=str)
def test_where_with_numbers_and_operators_of_bits_need_no_second_trace(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = torch.tensor([True, False, True, False])
    x, y = torch.tensor([1, 0, 3, 7]).to(dtype), torch.tensor([2, 5, 0, 1]).to(dtype)

    class Model(nn.Module):
        def forward(self, mask: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = [torch.where(mask, x, 2.5), torch.where(mask, x, -3), torch.where(mask, -3, x), mask & (x > 0)]
            if not x.dtype.is_floating_point:
                found += [x & y, x | y, x ^ y]
            return tuple(found)

    def second(*_: Any, **__: Any) -> Any:
        raise AssertionError("traced again")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", second)
    got = cuvil.compile(Model().eval(), "cpu", (mask, x, y))(mask, x, y)
    for ours, torchs in zip(got, Model()(mask, x, y), strict=True):
        assert ours.dtype == torchs.dtype
        assert torch.equal(ours, torchs)

"""Python numbers beside integer tensors, and bools and NaN where torch has rules of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cuvil
from cuvil_hw.frontend import load
from tests.support.torch_oracle import Call, check

SIGNED = torch.tensor([-128, 127, -1, 5], dtype=torch.int8)
UNSIGNED = torch.tensor([255, 0, 5], dtype=torch.uint8)


@pytest.mark.parametrize("x", [SIGNED, UNSIGNED], ids=["i8", "u8"])
def test_numbers_beyond_the_type_wrap(x: torch.Tensor) -> None:
    check(lambda x: (x + 300, x - 300, 300 - x, x * -1, x + 2**40, x % 300, x // 300, x & 300, x | -300, x // -1), x)
    check(lambda x: (x > 200, x > 300, x < -1, x == 511, x != -1, x <= 2**40, x >= -129), x)


@pytest.mark.parametrize(
    "f",
    [lambda x: x.masked_fill(x > 0, 300), lambda x: torch.full_like(x, 300), lambda x: torch.add(x, x, alpha=300)],
    ids=["masked_fill", "full_like", "alpha"],
)
def test_numbers_that_torch_refuses_are_refused(f: Any) -> None:
    with pytest.raises(cuvil.CuvilError, match="300"):
        load(Call(f), (SIGNED,))


def test_shifts_by_numbers() -> None:
    check(lambda x: (x << 1, x >> 1, x.clone().__ilshift__(2), x.clone().__irshift__(2)), SIGNED)
    check(lambda x: (x << 1, x >> 1), torch.tensor([2**62, -(2**63), 7]))


def test_extremes_of_bools() -> None:
    x = torch.tensor([[True, False], [False, False]])
    check(lambda x: (x.max(), x.min(), x.amax(1), x.amin(0), *x.max(1), *x.min(0)), x)


def test_sign_of_nan() -> None:
    check(torch.sign, torch.tensor([float("nan"), -2.0, 0.0, -0.0, float("inf")]))
    check(torch.sign, torch.tensor([-2, 0, 7]))

"""Memory, zeros and emptiness: what arrays share, which zero a number is, what nothing adds up to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cuvil
from tests.support.dynamo_oracle import compiled
from tests.support.torch_oracle import Call, check


def add_into(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    return a + b


def test_a_written_input_shares_no_memory() -> None:
    program = cuvil.compile(Call(add_into), "cpu", example_inputs=(torch.zeros(2, 3), torch.zeros(2, 3)))
    x = torch.arange(9.0).reshape(3, 3)
    before = x.clone()
    for a, b in ((x[:2], x[:2]), (x[:2], x[1:])):
        for given in ((a, b), (a.numpy(), b.numpy())):
            with pytest.raises(cuvil.InputError, match="'args_0': the model writes into it, and input 'args_1' has"):
                program(*given)
    assert torch.equal(x, before)
    assert torch.equal(program(x[:2], x[:2].clone()), 2 * before[:2] + 1)


def test_columns_of_one_array_share_nothing() -> None:
    program = cuvil.compile(Call(add_into), "cpu", example_inputs=(torch.zeros(4), torch.zeros(4)))
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert np.array_equal(program(x[:, 0], x[:, 1]), [2, 6, 10, 14])
    assert np.array_equal(x[:, 0], [1, 3, 5, 7])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
def test_nothing_holds_no_truth(dtype: torch.dtype) -> None:
    check(lambda x: (x.any(), x.any(0), x.any(1), x.all(), x.all(0), x.all(1)), torch.zeros(0, 3, dtype=dtype))


def test_zeros_of_either_sign_and_nan_are_numbers_of_their_own() -> None:
    fast, made = compiled(lambda x, n: x / n)
    x = torch.tensor([1.0, -2.0])
    for n in (2.0, 3.0, -0.0, 0.0, float("nan"), -0.0, float("nan")):
        got = fast(x, n)
        assert np.array_equal(got.numpy(), (x / n).numpy(), equal_nan=True), n
    assert len(made) == 5

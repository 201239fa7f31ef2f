"""Open shapes where torch's symbolic sizes are no Python integers: programs are those of plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.errors import CuvilError


class Model(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


ASKS = {
    "rounded": lambda x: x * round(x.shape[0] * 5, -1),
    "length of a text": lambda x: x * len(f"{x.shape[0]}"),
    "str": lambda x: x + len(str(x.shape[0])),
    "isinstance": lambda x: x * (2 if isinstance(x.shape[0], int) else 3),
    "type": lambda x: x * (2 if type(x.shape[0]) is int else 3),
    "rounded shape": lambda x: torch.arange(round(x.shape[0] * 5, -1)).float(),
}


@pytest.mark.parametrize("what", ASKS)
def test_questions_that_only_a_number_answers(what: str) -> None:
    model = Model(ASKS[what])
    dim = cuvil.Dim("N", min=2, max=40)
    program = cuvil.compile(model, "cpu", example_inputs=torch.ones(15), shapes={"x": (dim,)})
    assert not program.proven
    for size in (15, 12):
        assert torch.equal(program(torch.ones(size)), model(torch.ones(size)))


def test_plain_models_stay_proven_and_keep_the_weights_of_compilation() -> None:
    model = nn.Linear(3, 2).eval()
    dim = cuvil.Dim("N", min=1, max=8)
    program = cuvil.compile(model, "cpu", example_inputs=torch.ones(2, 3), shapes={"input": (dim, 3)})
    assert program.proven
    x = torch.randn(5, 3)
    want = model(x)
    model.weight.data.zero_()
    torch.testing.assert_close(program(x), want, rtol=1e-5, atol=1e-6)


def test_the_rule_that_matters_is_named() -> None:
    dim = cuvil.Dim("N", min=2, max=64)
    with pytest.raises(CuvilError, match=r"it takes sizes with N % 2 == 0\n"):
        cuvil.compile(Model(lambda x: x.view(2, -1)), "cpu", example_inputs=torch.ones(16), shapes={"x": (dim,)})

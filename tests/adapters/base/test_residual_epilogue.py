"""What meets behind a layer joins the layer's kernel on targets that run kernels one after another: fewer kernels, the
same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cuvil
from cuvil_hw.adapters.target_check import adapter_for
from cuvil_hw.target.profile import load_profile


class Block(nn.Module):
    """A residual block whose skip connection is a convolution, and one whose skip connection is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.main, self.skip, self.last = (
            nn.Conv2d(i, 8, k, padding=k // 2) for i, k in ((3, 3), (8, 3), (8, 1), (8, 3))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.main(x) + self.skip(x))
        return torch.relu(x + self.last(x))


class Gates(nn.Module):
    """Sums of layers, a product with a row that is broadcast, and a residual around a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.a(x) + self.b(x))
        return x + self.c(x) * self.d(x.mean(1, keepdim=True))


NETS: dict[str, tuple[Any, tuple[int, ...], int]] = {"block": (Block, (3, 12, 12), 4), "gates": (Gates, (6, 16), 5)}


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("target", ["cpu", "h100", "mlu270"])
def test_fewer_kernels_and_the_same_bits(
    target: str, net: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, shape, reductions = NETS[net]
    torch.manual_seed(4)
    model = made().eval()
    data = np.random.default_rng(5).normal(size=(8, 1, *shape)).astype(np.float32)
    given = data if precision == "int8" else None

    def compiled() -> cuvil.Executable:
        return cuvil.compile(model, target, torch.zeros(1, *shape), given, precision)

    joined = compiled()
    monkeypatch.setattr(type(adapter_for(load_profile(target), None)), "residual_epilogue", False)
    apart = compiled()
    counts = [len(program.report["layers"]) for program in (joined, apart)]
    assert counts[0] < counts[1]
    if precision == "float32":
        assert counts[0] == reductions
    for x in data[:2]:
        have = joined(x)
        np.testing.assert_array_equal(have, apart(x))
        if precision == "float32":
            np.testing.assert_allclose(have, model(torch.from_numpy(x)).detach().numpy(), rtol=1e-5, atol=1e-5)

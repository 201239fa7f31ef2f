"""Functions compiled by torch.compile's backend `cuvil`, compared with themselves in eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cuvil_hw.entry.torch_compile import backend
from cuvil_hw.runtime.executable import Executable


def compiled(f: Any, **kwargs: Any) -> tuple[Any, list[Executable]]:
    """f compiled, and the programs as they are made."""
    made: list[Executable] = []
    options = {"done": made.append, **kwargs.pop("options", {})}
    return torch.compile(f, backend=backend, options=options, **kwargs), made


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
        assert got.stride() == want.stride()
    elif isinstance(want, list | tuple):
        for g, w in zip(got, want, strict=True):
            same(g, w)
    else:
        assert got == want


def agree(f: Callable[..., Any], fast: Callable[..., Any], *args: Any) -> Any:
    """Results and what is left in the inputs."""
    mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
    with torch.no_grad():
        want, got = f(*theirs), fast(*mine)
    same(got, want)
    same(mine, theirs)
    return got


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def net() -> Net:
    torch.manual_seed(0)
    model = Net()
    nn.init.normal_(model.norm.running_mean)
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    return model.eval()

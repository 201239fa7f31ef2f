"""PyTorch eager as the oracle of the PyTorch front end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from cuvil_hw.frontend import load
from cuvil_hw.ir.program import evaluate

TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.float64: (1e-12, 1e-12), torch.float16: (3e-3, 3e-3)}


class Call(nn.Module):
    """A function as a module; keyword tensors are parameters."""

    def __init__(self, f: Callable[..., Any], **parameters: Any) -> None:
        super().__init__()
        self.f = f
        for name, value in parameters.items():
            self.register_buffer(name, value)

    def forward(self, *args: Any) -> Any:
        return self.f(*args, **dict(self.named_buffers()))


class Twice(nn.Module):
    """One layer on two inputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, y: Any) -> Any:
        return self.layer(x), self.layer(y)


def leaves(value: Any) -> list[Any]:
    return [v for v in torch.utils._pytree.tree_leaves(value) if v is not None]


def check(f: Callable[..., Any], *inputs: Any, **parameters: Any) -> Any:
    """Import f, compare shapes, dtypes and values of all outputs with eager; returns the program."""
    module = f if isinstance(f, nn.Module) else Call(f, **parameters)
    program = load(module, inputs)
    module = module.eval()
    with torch.no_grad():
        want = leaves(module(*[x.clone() for x in inputs]))
    got = evaluate(program, [x.numpy() for x in inputs])
    assert len(got) == len(want)
    for g, w, (_, kind) in zip(got, want, program.outputs, strict=True):
        assert kind.shape == tuple(w.shape)
        assert g.shape == tuple(w.shape)
        assert g.dtype == w.numpy().dtype
        rtol, atol = TOLERANCE.get(w.dtype, (0, 0))
        np.testing.assert_allclose(g, w.numpy(), rtol=rtol, atol=atol)
    return program


def rand(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

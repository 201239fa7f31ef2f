"""Random functions of what a computed mask selects: chosen in a random way, worked on row by row, put to use.

`python -m tests.support.masks_random 200` compares as many with PyTorch, by the meaning of the imported program.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from cuvil_hw.frontend.torch.export import load_torch
from cuvil_hw.ir.program import evaluate

N, D, E = 6, 4, 3  # rows, features, experts
Step = Callable[..., Any]

# Rows of x by a mask (N,), with what is needed to write them back.
SELECT: list[Step] = [
    lambda x, m: (x[m], m),
    lambda x, m: (x[torch.where(m)[0]], torch.where(m)[0]),
    lambda x, m: (x[m.nonzero()[:, 0]], m.nonzero()[:, 0]),
    lambda x, m: (x.index_select(0, torch.argwhere(m).squeeze(-1)), torch.argwhere(m).squeeze(-1)),
    lambda x, m: (x[None, m].reshape(-1, D), m),
    lambda x, m: (x.t()[:, m].t(), m),
    lambda x, m: (F.embedding(m.nonzero().flatten(), x), m),
]
ROWS: list[Step] = [
    lambda h, w: h * 2 - 1,
    lambda h, w: torch.relu(h) + h.sum(-1, keepdim=True),
    lambda h, w: F.linear(h, w, w[0]),
    lambda h, w: h @ w,
    lambda h, w: F.layer_norm(h, (D,), w[0], w[1]),
    lambda h, w: torch.softmax(h, -1),
    lambda h, w: torch.cat([h[:, :1], h[:, 1:] * 2], -1),
    lambda h, w: h.reshape(-1, 2, 2).transpose(1, 2).flatten(1),
    lambda h, w: torch.where(h > 0, h, w[0]),
    lambda h, w: h.masked_fill(h < 0, 0.5) + torch.zeros(h.shape[0], 1),
    lambda h, w: torch.stack(h.unbind(-1), -1) / (1 + h.abs().amax(-1, keepdim=True)),
    lambda h, w: (h.unsqueeze(1) @ w.expand(h.shape[0], D, D)).squeeze(1),
    lambda h, w: h.gather(1, h.argsort(1)),
    lambda h, w: h * h.argmax(-1)[:, None],
    lambda h, w: torch.add(*F.linear(h, torch.cat([w, w])).chunk(2, -1)),
]


def put(y: torch.Tensor, at: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[at] = h
    return y


def added(y: torch.Tensor, at: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[at] += h
    return y


def positions(at: torch.Tensor) -> torch.Tensor:
    return at.nonzero()[:, 0] if at.dtype == torch.bool else at


USE: list[Step] = [
    put,
    added,
    lambda y, at, h: y.index_add(0, positions(at), h),
    lambda y, at, h: y.index_copy(0, positions(at), h),
    lambda y, at, h: y.scatter_add(0, positions(at)[:, None].expand(-1, D), h),
    lambda y, at, h: y + h.sum(0),
    lambda y, at, h: y + torch.nan_to_num(h.mean()),
    lambda y, at, h: y * h.shape[0] + h.cumsum(0).sum(),
    lambda y, at, h: y + (h > 0).any(0) + (h > 0).all() * 2,
    lambda y, at, h: y + torch.softmax(y @ h.t() + torch.zeros(N, h.shape[0]), -1).sum(),
    lambda y, at, h: y + torch.cat([y, y[at], h]).sum(0),
    lambda y, at, h: y @ (h.t() @ (h * 0.1)) * 0.1,
    lambda y, at, h: y + h[h[:, 0] > 0].sum(0),
]  # fmt: skip
MASKS: list[Step] = [
    lambda x, c: x[:, 0] > 0,
    lambda x, c: c == 1,
    lambda x, c: (c > 0) & (x.sum(-1) < 1),
    lambda x, c: ~(x > 0).all(-1),
    lambda x, c: x[:, 1].abs() > 0.3,
]


class Random(nn.Module):
    """Some selections in a row, each of what the one before made; `take` is a random choice."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        take = random.Random(seed)
        self.steps = [
            (take.choice(MASKS), take.choice(SELECT), [take.choice(ROWS) for _ in range(take.randint(0, 3))],
             take.choice(USE))
            for _ in range(take.randint(1, 3))
        ]  # fmt: skip
        self.register_buffer("w", torch.randn(D, D, generator=torch.Generator().manual_seed(seed)) / 2)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        y = x
        for mask, select, rows, use in self.steps:
            h, at = select(y, mask(x, c))
            for step in rows:
                h = step(h, self.w)
            y = use(y, at, h)
        return y


def inputs(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(x, classes): random ones, then such whose masks are full, empty, and of one row."""
    make = torch.Generator().manual_seed(seed)
    x, c = torch.randn(N, D, generator=make), torch.randint(0, E, (N,), generator=make)
    one = -x.abs() - 1
    one[N // 2] *= -1
    return [
        (x, c),
        (x.abs() + 1, torch.ones_like(c)),
        (-x.abs() - 1, torch.zeros_like(c)),
        (one, (one[:, 0] > 0).long()),
    ]


def compare(seed: int) -> None:
    """Raises AssertionError where the program differs from PyTorch, Unsupported where it is refused."""
    model = Random(seed)
    cases = inputs(seed)
    program = load_torch(model, cases[0])
    assert not program.calling.guards
    for case in cases:
        (made,) = evaluate(program, [t.numpy() for t in case])
        torch.testing.assert_close(torch.from_numpy(made.copy()), model(*case), equal_nan=True, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    first, count = (0, int(sys.argv[1])) if len(sys.argv) == 2 else map(int, sys.argv[1:3])
    failed = 0
    for number in range(first, first + count):
        try:
            compare(number)
        except Exception as error:
            failed += 1
            print(number, type(error).__name__, str(error)[:500])
    print(f"{count - failed} of {count} agree")

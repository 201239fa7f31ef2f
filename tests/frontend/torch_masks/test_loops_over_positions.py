"""Loops through what nonzero found, as experts of transformers have them: against PyTorch, on every route."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cuvil
from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.frontend.torch.export import load_torch
from cuvil_hw.ir.program import evaluate
from tests.frontend.torch_masks.test_masked_experts import D, E, Function, routed
from tests.support.python_runner import agrees


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Named(nn.ModuleDict):
    """Experts by name, as SwitchTransformers has them."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for i in range(E):
                self[f"expert_{i}"] = nn.Linear(D, D)

    def forward(self, x: Any, top: Any, w: Any) -> Any:
        result = torch.zeros_like(x)
        mask = F.one_hot(top, E).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for i in hit:
            rank, token = torch.where(mask[i].squeeze(0))
            rows = x[None, token].reshape(-1, x.shape[-1])
            result.index_add_(0, token, self[f"expert_{i[0]}"](rows) * w[token, rank, None])
        return result


class Stacked(nn.Module):
    """Experts' weights in one tensor, as Mixtral has them; one class more than there are experts is left out."""

    def __init__(self) -> None:
        super().__init__()
        make = torch.Generator().manual_seed(0)
        self.up = nn.Parameter(torch.randn(E, 16, D, generator=make) / 4)
        self.down = nn.Parameter(torch.randn(E, D, 8, generator=make) / 4)
        self.act = nn.SiLU()

    def forward(self, x: Any, top: Any, w: Any) -> Any:
        result = torch.zeros_like(x)
        with torch.no_grad():
            mask = F.one_hot(top, E + 1).permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for i in hit:
            i = i[0]
            if i == E:
                continue
            rank, token = torch.where(mask[i])
            gate, up = F.linear(x[token], self.up[i]).chunk(2, dim=-1)
            rows = F.linear(self.act(gate) * up, self.down[i]) * w[token, rank, None]
            result.index_add_(0, token, rows.to(result.dtype))
        return result


@pytest.mark.parametrize("kind", [Named, Stacked])
def test_meaning(kind: type[nn.Module]) -> None:
    model = kind().eval()
    program = load_torch(model, routed(4)[0])
    guards = {g.output for g in program.calling.guards}
    for case in routed(4):
        made = dict(zip([n for n, _ in program.outputs], evaluate(program, [t.numpy() for t in case]), strict=True))
        assert all(made.pop(g).all() for g in guards)
        (y,) = made.values()
        torch.testing.assert_close(torch.from_numpy(y.copy()), model(*case).detach())
    assert type(model) is kind


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.experts = nn.LayerNorm(D), Stacked()

    def forward(self, x: Any, top: Any, w: Any) -> Any:
        return x + self.experts(self.norm(x), top, w)


@pytest.mark.needs("gcc")
def test_accelerate() -> None:
    model = Layer().eval()
    cases = routed(3)
    with torch.no_grad():
        fast = cuvil.accelerate(model)
        for case in cases:
            torch.testing.assert_close(fast(*case), model(*case))
        assert len(fast.cuvil_programs) == 1
        assert type(model.experts) is Stacked
        model.experts.down.mul_(2)  # compiled anew
        torch.testing.assert_close(fast(*cases[0]), model(*cases[0]))
        assert len(fast.cuvil_programs) == 2


def chosen(loop: Any) -> Any:
    """As transformers chooses among experts' implementations: some work only where nothing is compiled."""

    @functools.wraps(loop)
    def forward(self: Any, x: Any, top: Any, w: Any) -> Any:
        if not torch.compiler.is_compiling():
            x = torch.from_numpy(x.numpy())  # which nothing that is traced can do
        return loop(self, x, top, w)

    return forward


class Chosen(Stacked):
    forward = chosen(Stacked.forward)


@pytest.mark.needs("gcc")
def test_a_module_hears_that_it_is_compiled() -> None:
    model, case = Layer().eval(), routed(3)[0]
    model.experts = Chosen()
    with torch.no_grad():
        torch.testing.assert_close(cuvil.accelerate(model)(*case), model(*case))


def test_the_module_in_a_function() -> None:
    model = Layer().eval().requires_grad_(False)
    agrees(lambda x, top, w: model(x, top, w) * 2, routed(3)[0], routed(3)[1])


def counted(x):
    total, seen, last = x * 0, 0, -1
    for i in torch.nonzero(x[:, 0] > 0).flatten():
        total = total + x[i] * (i + 1)
        seen += 1
        last = i
        if seen == 2:
            break
    return total, seen + 0 * x, last + 0 * x


def pairs(x):
    y = x.clone()
    for row, column in (x > 0.5).nonzero():
        y[row, column] -= row * 2 + column
    return y


def masks(x):
    y, i = x.clone(), torch.where(x[:, 0] > 0)[0]
    y[i] = x[i] * 2
    return y, x[torch.argwhere(x > 0)[:, 0]].sum()


X = torch.tensor([[1.0, -2.0], [-0.5, 0.25], [0.75, 2.0], [3.0, -1.0]])


@pytest.mark.parametrize("f", [counted, pairs, masks])
def test_functions(f: Any) -> None:
    agrees(f, (X,), (-X,), (X.abs() + 1,), (-X.abs(),), (X.flip(0),))


def bounded(x):
    return torch.nonzero_static(x > 0, size=3, fill_value=-1), torch.nonzero_static(x, size=9, fill_value=7)


def test_positions_with_a_bound() -> None:
    program = load_torch(Function(bounded), X)
    for x in (X, -X, X * 0, X.abs(), X.flip(0)):
        for a, b in zip(evaluate(program, [x.numpy()]), bounded(x), strict=True):
            assert torch.equal(torch.from_numpy(a.copy()), b)
    agrees(bounded, (X,), (-X,))


def test_what_has_no_bound_says_what_has() -> None:
    for f in (lambda x: torch.unique(x), lambda x: x.nonzero()):
        with pytest.raises(Unsupported, match=r"\.py:\d+: .*(nonzero_static|tensor and mask)"):
            load_torch(Function(f), X)


def changed_since(x):
    y, i = x.clone(), torch.where(x[:, 0] > 0)[0]
    i += 1
    for k in i:
        y[k - 1] = 0
    return y


def computed_from(x):
    y = x.clone()
    for k in torch.where(x[:, 0] > 0)[0] + 1:
        y[k - 1] = 0
    return y


def test_positions_that_were_changed_are_no_longer_those_found() -> None:
    agrees(computed_from, (X,), (-X,), (X.abs() + 1,), (-X.abs(),))
    with pytest.raises(Unsupported, match=r"torch can't express it by simpler operators"):
        agrees(changed_since, (X,))


def of_a_number(x):
    found = torch.where(x[0, 0] > 0, x, 0).nonzero_static(size=2), torch.nonzero_static(x[0, 0], size=2)
    return *found, x[0, 0].nonzero().shape[0] + 0 * x


def test_a_tensor_without_dimensions() -> None:
    program = load_torch(Function(of_a_number), X)
    for x in (X, -X, X * 0):
        for a, b in zip(evaluate(program, [x.numpy()]), of_a_number(x), strict=True):
            assert torch.equal(torch.from_numpy(a.copy()), b)


def assigned(x):
    y = x.copy()
    y[np.nonzero(x[:, 0] > 0)] *= 2
    i, j = np.where(x < 0)
    y[i, j] = x[i, j] - i + j
    k = np.flatnonzero(x[:, 1] > 0)
    return y, x[k].sum(0), x[k].mean(), np.argwhere(x > 0).sum(0), (x > 0).nonzero()[0].sum()


def one_by_one(x):
    y, seen = x.copy(), 0
    for i in np.nonzero(x[:, 0] > 0)[0]:
        y[i] = y[i - 1] + i
        seen += 1
    for i, j in np.argwhere(x < 0):
        y[i, j] += i - j
    for k in np.argwhere(x[:, 1] > 0)[:, 0].astype(np.int64):
        y[k] *= 2
    return y, seen + 0 * x


@pytest.mark.parametrize("f", [assigned, one_by_one])
def test_functions_of_numpy(f: Any) -> None:
    x = X.numpy()
    agrees(f, (x,), (-x,), (np.abs(x) + 1,), (x[::-1].copy(),))


def test_positions_of_numpy_are_no_result() -> None:
    for f in (lambda x: np.nonzero(x), lambda x: np.flatnonzero(x > 0) * 2, lambda x: np.unique(x)):
        with pytest.raises(Unsupported, match=r"mask"):
            agrees(f, (X.numpy(),))


class Converts(nn.Module):
    """Converts a layer while it runs, as the router of SwitchTransformers does."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(2, 3), dtype

    def forward(self, x: Any) -> Any:
        self.layer = self.layer.to(self.dtype)
        return self.layer(x.to(self.dtype)).float()


def test_a_conversion_that_changes_nothing() -> None:
    model = Converts(torch.float32).eval()
    want = model(X)
    (y,) = evaluate(load_torch(model, X), [X.numpy()])
    torch.testing.assert_close(torch.from_numpy(y), want.detach())
    assert "_apply" not in vars(model.layer)


def test_a_conversion_that_changes_weights() -> None:
    model = Converts(torch.float64).eval()
    with pytest.raises(CuvilError, match=r"weight of Linear from torch\.float32.*before: module\.to\(torch\.float64\)"):
        load_torch(model, X)
    assert model.layer.weight.dtype == torch.float32
    model.to(torch.float64)
    (y,) = evaluate(load_torch(model, X), [X.numpy()])
    torch.testing.assert_close(torch.from_numpy(y), model(X).detach())

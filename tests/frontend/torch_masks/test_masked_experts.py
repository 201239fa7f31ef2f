"""Experts that take the tokens that are routed to them by boolean masks, and other uses of what masks select: against
PyTorch, on every route."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cuvil
from cuvil_hw import dtypes
from cuvil_hw.errors import Unsupported
from cuvil_hw.frontend.torch.export import load_torch
from cuvil_hw.ir.program import evaluate
from cuvil_hw.runtime.inputs import to_tensor
from tests.support import masks_random
from tests.support.dynamo_oracle import compiled

E, D = 4, 6  # experts, features


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def switch(x: Any, top: Any, w: Any, experts: Any) -> Any:
    y, mask = torch.zeros_like(x), F.one_hot(top, E).permute(2, 1, 0)
    for i, expert in enumerate(experts):
        rank, token = torch.where(mask[i])
        h = expert(x[None, token].reshape(-1, x.shape[-1])) * w[token, rank, None]
        y.index_add_(0, token, h.to(x.dtype))
    return y


def written(x: Any, top: Any, w: Any, experts: Any) -> Any:
    y = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        m = (top == i).any(-1)
        y[m] += expert(x[m]) * (w * (top == i)).sum(-1)[m].unsqueeze(-1)
    return y


def looked_up(x: Any, top: Any, w: Any, experts: Any) -> Any:
    y = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        token, rank = (top == i).nonzero(as_tuple=True)
        y[token] = y[token] + expert(x[token]) * w[token, rank][:, None]
    return y


def first_choice(x: Any, top: Any, w: Any, experts: Any) -> Any:
    y = x.clone()
    for i, expert in enumerate(experts):
        token = torch.nonzero(top[:, 0] == i).squeeze(-1)
        y[token] = expert(x.index_select(0, token))
    return y


def scattered(x: Any, top: Any, w: Any, experts: Any) -> Any:
    y = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        token = torch.nonzero(top == i)[:, 0]  # a token twice where it chose twice
        y = y.scatter_add(0, token[:, None].expand(-1, D), expert(x[token]))
    return y


def copied(x: Any, top: Any, w: Any, experts: Any) -> Any:
    y = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        token, rank = torch.where(top == i)
        y = y.index_add(0, token, expert(x[token]).mul_(w[token, rank].view(-1, 1)))
        y.index_copy_(0, token, y[token] * 2)
    return y


class Experts(nn.Module):
    def __init__(self, route: Callable[..., Any]) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(D, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, D)) for _ in range(E)
            )
        self.route = route

    def forward(self, x: Any, top: Any, w: Any) -> Any:
        return self.route(x, top, w, self.experts)


def routed(n: int) -> list[tuple[Any, ...]]:
    """Tokens, choices and weights: spread over experts, all of one expert, over two, each twice the same one."""
    g = torch.Generator().manual_seed(n)
    choices = [
        torch.stack([torch.randperm(E, generator=g)[:2] for _ in range(n)]),
        torch.full((n, 2), E - 1),
        torch.randint(0, 2, (n, 2), generator=g),
        torch.randint(0, E, (n, 1), generator=g).expand(n, 2).clone(),
    ]
    return [(torch.randn(n, D, generator=g), top, torch.rand(n, 2, generator=g)) for top in choices]


ROUTES = [switch, written, looked_up, first_choice, scattered, copied]


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("route", ROUTES)
def test_meaning(route: Callable[..., Any], n: int) -> None:
    model = Experts(route).eval()
    cases = routed(n)
    program = load_torch(model, cases[0])
    guards = {g.output for g in program.calling.guards}  # of one_hot: classes in range
    for case in cases:
        made = dict(zip([n for n, _ in program.outputs], evaluate(program, [t.numpy() for t in case]), strict=True))
        assert all(made.pop(g).all() for g in guards)
        (y,) = made.values()
        torch.testing.assert_close(torch.from_numpy(y.copy()), model(*case).detach())


@pytest.mark.needs("gcc")
def test_every_route() -> None:
    model = Experts(switch).eval()
    before = copy.deepcopy(model.state_dict())
    cases = routed(3)
    with torch.no_grad():
        want = [model(*case) for case in cases]
        torch_compiled, made = compiled(model, fullgraph=True)
        programs = {
            "compile": cuvil.compile(model, "cpu", example_inputs=cases[0]),
            "torch.compile": torch_compiled,
            "accelerate": cuvil.accelerate(model),
            "function": cuvil.compile(lambda x, top, w: model(x, top, w), "cpu", example_inputs=cases[0]),
        }
        for name, program in programs.items():
            for case, y in zip(cases, want, strict=True):
                torch.testing.assert_close(program(*case), y, msg=lambda m, name=name: f"{name}: {m}")
        assert len(made) == 1
        assert all(torch.equal(model(*case), y) for case, y in zip(cases, want, strict=True))
    assert all(torch.equal(a, before[k]) and a.requires_grad for k, a in model.named_parameters())


@pytest.mark.parametrize("seed", range(10))
def test_random_selections(seed: int) -> None:
    masks_random.compare(seed)


def column(x: Any) -> Any:
    return (x[:, 0][x[:, 0] > 0] * x[:2].reshape(-1)[:, None]).sum()


def of_rows(x: Any) -> Any:
    h = x[x[:, 0] > 0]
    h[h > 1] = h[h > 1] * 2
    h[:, 1] = h[:, 0]
    return (
        h.flatten().sum(),
        h.std(1).sum(),
        h.topk(2, 1)[0].sum(0),
        h.softmax(0).sum(0),
        h.prod(0),
        h.norm(dim=-1).sum(),
    )


def lengths(x: Any) -> Any:
    m = x[:, 0] > 0
    return x.sum() / x[m].shape[0], m.nonzero().size(0) * x, (torch.ones(x[m].shape[0], 1) * x[m]).sum(0)


def by_columns(x: Any) -> Any:
    y, m = x.clone(), x[0] > 0
    y[:, m] = x[:, m] * 2
    return y, x[:, m].mean(), x[:, m].softmax(-1).sum(-1), torch.cat([x[:, m], x[:, ~m], x], 1).sum(1)


def products(x: Any) -> Any:
    h = x[x[:, 0] > -9]
    return h.T @ h, torch.softmax(x @ h.T, -1) @ h, torch.bmm(h.unsqueeze(1), h.unsqueeze(2)).sum()


def places(x: Any) -> Any:
    y, z = x.clone(), x.clone()
    y[torch.where(x > 0)] = -x[torch.where(x > 0)]
    z[torch.nonzero(x[:, 0] > 0)[:, 0]] = 5.0
    return y, z, x.index_fill(0, torch.nonzero(x[:, 1] > 0)[:, 0], 3.0), torch.argwhere(x > 0).sum(0)


@pytest.mark.filterwarnings(r"ignore:std\(\).*degrees of freedom")  # eager's, once in a process, where no row is
@pytest.mark.parametrize("f", [column, of_rows, lengths, by_columns, products, places])
def test_uses_of_what_is_selected(f: Callable[..., Any]) -> None:
    x = torch.tensor([[1.0, -2.0, 3.0], [-0.5, 0.25, -1.0], [0.5, 2.0, -4.0], [-1.0, -1.0, -1.0]])
    program = load_torch(Function(f), x)
    for given in (x, x.flip(0), -x, x.abs() + 1, -x.abs() - 1):
        want = f(given)
        made = evaluate(program, [given.numpy()])
        for a, b in zip(made, want if isinstance(want, tuple) else (want,), strict=True):
            torch.testing.assert_close(torch.from_numpy(a.copy()), b, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_reductions_of_narrow_floats(dtype: Any) -> None:
    """A mean is rounded once, and its sum doesn't leave the range of f16."""

    def f(x: Any) -> Any:
        h = x[x > 0]
        return h.mean(), x[x[:, 0] > 0].mean(0, dtype=torch.float32), h.amax(), h.amin(), x[x > 300].sum()

    x = torch.arange(-400.0, 400).reshape(100, 8).to(dtype)
    program = load_torch(Function(f), x)
    port = dtypes.BF16 if dtype == torch.bfloat16 else np.float16
    made = evaluate(program, [x.view(torch.uint16).numpy().view(port)])
    for a, b in zip(made, f(x), strict=False):  # behind the results, whether there were any
        torch.testing.assert_close(to_tensor(a.copy(), dtypes.from_numpy(a.dtype)), b)


def test_masks_computed_twice_by_layers_that_read_one_value_twice() -> None:
    def mask(x: Any) -> Any:
        for _ in range(40):
            x = x * 0.5 + torch.sin(x)
        return x > 0

    def f(x: Any, y: Any) -> Any:
        y = y.clone()
        y[mask(x)] = x[mask(x)] * 2
        return y

    x, y = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([4.0, 5.0, 6.0])
    (made,) = evaluate(load_torch(Function(f), (x, y)), [x.numpy(), y.numpy()])
    torch.testing.assert_close(torch.from_numpy(made.copy()), f(x, y))


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def test_a_row_that_may_not_be_there() -> None:
    program = load_torch(Function(lambda x: (x[x > 0][0], x[x > 0][-1], (x > 0).nonzero()[1])), torch.ones(4))
    first, last, second, *guards = evaluate(program, [torch.tensor([-1.0, 2.0, 3.0, -4.0]).numpy()])
    assert (first, last, second) == (2, 3, 2)
    assert all(g.all() for g in guards)
    first, last, _, *guards = evaluate(program, [torch.tensor([-1.0, 2.0, -3.0, -4.0]).numpy()])
    assert (first, last) == (2, 2)
    assert not all(g.all() for g in guards)


def test_two_axes_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"along two axes; use torch\.where"):
        load_torch(Function(lambda x: (x[x[:, 0] > 0] @ x[x[:, 0] > 0].T).sum()), torch.ones(3, 3))


@pytest.mark.needs("gcc")
def test_torch_compile_follows_masks() -> None:
    x = torch.tensor([1.0, -2.0, 3.0])
    with torch.no_grad():
        fast, made = compiled(lambda x: (x[x > 0].sum(), x * 2), fullgraph=True)
        assert [t.tolist() for t in fast(x)] == [4, [2, -4, 6]]
        assert [t.tolist() for t in fast(-x)] == [2, [-2, 4, -6]]
        assert len(made) == 1
        assert not torch._dynamo.config.capture_dynamic_output_shape_ops


@pytest.mark.needs("gcc")
def test_torch_compile_where_the_selected_leave_the_graph(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.tensor([1.0, -2.0, 3.0])
    with torch.no_grad():
        fast, _ = compiled(lambda x: (x * 3)[x > 0] * 2)
        assert fast(x).tolist() == [6, 18]  # PyTorch selects, as without the backend
        assert "aten.nonzero" in caplog.text
        whole, _ = compiled(lambda x: (x * 3)[x > 0] * 2, fullgraph=True)
        with pytest.raises(Unsupported, match=r"test_masked_experts\.py:\d+: .*return a tensor and the mask"):
            whole(x)

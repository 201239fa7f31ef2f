"""Uses of selected rows that depend on their order or number, distinct elements, branches on sizes: against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cuvil
from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.frontend.torch.export import load_torch
from cuvil_hw.ir.program import evaluate
from tests.frontend.torch_masks.test_masked_experts import Function
from tests.support.dynamo_oracle import compiled
from tests.support.python_runner import agrees

X = torch.tensor([[1.0, -2.0, 3.0], [-0.5, 0.25, -1.0], [0.0, 2.0, -4.0], [-1.0, -1.0, -1.0]])
XS = [(X,), (-X,), (X.flip(0),), (X.abs() + 1,), (-X.abs() - 1,)]  # masks of all, of none
I = torch.tensor([3, 1, 1, 2, 3, 3, 0, 1])
IS = [(I,), (I.flip(0),), (I * 0,), (torch.arange(8),)]


def compare(f: Callable[..., Any], calls: list[tuple[Any, ...]]) -> None:
    """By the meaning of the imported program: equal results, and a failing guard where PyTorch raises."""
    program = load_torch(Function(f).eval(), calls[0])
    guards = {g.output for g in program.calling.guards}
    for given in calls:
        made = dict(zip([n for n, _ in program.outputs], evaluate(program, [t.numpy() for t in given]), strict=True))
        fine = all(made.pop(g).all() for g in guards)
        try:
            want = f(*[t.clone() for t in given])
        except (RuntimeError, IndexError):
            assert not fine
            continue
        assert fine
        want = want if isinstance(want, tuple) else (want,)
        for a, b in zip(made.values(), want, strict=True):
            torch.testing.assert_close(torch.from_numpy(a.copy()), b, equal_nan=True, rtol=1e-5, atol=1e-5)


def slices(x: Any) -> Any:
    h = x[x > 0]
    odd = h[::2].sum(), h[1::3].sum(), h[1:-1].sum(), h[-3:-1].sum(), h[2:4].sum(), (h[1:] - h[:-1]).sum()
    return *odd, x[x[:, 0] > 0][:1].sum(0), (h.flip(0) * h).sum()


def sizes_of_values(x: Any) -> Any:
    n, y = (x[:, 0] > 0).sum().item(), x.clone()
    y[:n] += 1
    part = y[n:]
    part.mul_(2)
    return y, x[:n].sum(0), part.sum(), y[n - 1 : n + 1].sum(), torch.arange(4) < n


def filled_up(x: Any) -> Any:
    h, rows, y = x[x > 0], x[x[:, 0] > 0], torch.full((12,), -1.0)
    y[: h.shape[0]] = h
    return y, F.pad(h, (0, 14 - h.shape[0]), value=2.0), F.pad(rows, (0, 0, 0, 4 - rows.shape[0])), h.shape[0] * x


def order(x: Any) -> Any:
    h, y = x[x > 0], x.clone()
    y[x > 0] = h.sort(descending=True)[0]
    rows = x[x[:, 0] > 0]
    turned = rows[rows[:, 1].argsort(stable=True)]
    return y, turned.cumsum(0).sum(0), (rows.sort(0)[1] * torch.arange(rows.shape[0])[:, None]).sum(0)


def chosen(x: Any) -> Any:
    x = x + torch.arange(12.0).view(4, 3) / 64  # no two equal
    h, rows = x[x > -3.5], x[x[:, 0] > -9]
    return *h.topk(2), *h.kthvalue(2), h.argmin(), rows.argmax(0), *rows.max(0), rows[torch.tensor([0, -1])], rows[1]


def statistics(x: Any) -> Any:
    h = x[x > 0]
    nans = torch.where(x > 2, torch.nan, x)
    spread = h.std(), h.var(correction=0), x[x[:, 0] > 0].var(0), h.norm(), torch.count_nonzero(x[x < 0])
    return *spread, h.median(), nans[x > -3].median(), nans[x > -3].nanmedian(), torch.einsum("n,n->", h, h)


def several_masks(x: Any) -> Any:
    y, z = x.clone(), x.clone()
    y[x > 0] = (x * 3)[x.flip(0) > 0]
    z[x[:, 0] > 0] = x[x.flip(0)[:, 0] > 0]
    return y, z, (x[x > 0] * (x - 1)[x.flip(1) > 0]).sum()


def numbers(x: Any) -> Any:
    h = x[x > 0]
    even = torch.arange(0, h.shape[0], 2)
    return (h * torch.arange(1, h.shape[0] + 1)).sum(), even.sum(), x.take((x > 0).nonzero()[:, 0]).sum()


def values_of_a_known_number(x: Any) -> Any:
    y, z = x.clone(), x.clone()
    y[x > 1.5] = torch.tensor([7.0, 8.0])
    z[:, x[0] > 0] = torch.arange(4.0)[:, None]
    return y, z


def as_many_as_checked(x: Any) -> Any:
    h = x[x[:, 0] > -0.7]
    torch._check(h.shape[0] == 3)
    return h * 2, x[x > -9].view(2, 6)


def at_least(x: Any) -> Any:
    h = x[x[:, 0] > 0]
    torch._check(h.shape[0] >= 2)
    return h.sum(0)


def distinct(x: Any) -> Any:
    u, which, counts = torch.unique(x, return_inverse=True, return_counts=True)
    y = torch.full((8,), -1)
    y[: u.shape[0]] = u
    means = torch.zeros(8).index_add(0, which, x.float())
    return which, y, (u * counts).sum(), counts.max(), (u * 2)[which], u.numel() * means, u[0], u[-1]


def neighbours(x: Any) -> Any:
    """As CTC decoders have it."""
    u = torch.unique_consecutive(x)
    u, y = u[u != 0], torch.full((8,), -1)
    y[: u.shape[0]] = u
    rows, which, counts = torch.unique_consecutive(x.view(4, 2) // 2, dim=0, return_inverse=True, return_counts=True)
    return y, rows.sum(0), which, (counts * counts).sum()


def repeated(x: Any) -> Any:
    """As length regulators have it."""
    return torch.repeat_interleave(torch.arange(16.0).view(8, 2), x, 0, output_size=14)


def parts(x: Any) -> Any:
    """Experts one behind the other: tokens sorted by expert, split by counts."""
    order = x.argsort(stable=True)
    rows = torch.arange(8.0)[order].split(F.one_hot(x, 4).sum(0).tolist())
    return torch.zeros(8).index_add(0, order, torch.cat([r * i for i, r in enumerate(rows)]))


FLOATS = [slices, sizes_of_values, filled_up, order, chosen, statistics, several_masks, numbers,
          values_of_a_known_number, as_many_as_checked, at_least]  # fmt: skip
WHOLE = [distinct, neighbours, repeated, parts]


@pytest.mark.filterwarnings(r"ignore:(std|var)\(\).*degrees of freedom")
@pytest.mark.parametrize("f", [*FLOATS, *WHOLE])
def test_models(f: Callable[..., Any]) -> None:
    compare(f, XS if f in FLOATS else [*IS, (I * 0 - 1,)] if f is repeated else IS)


@pytest.mark.filterwarnings(r"ignore:(std|var)\(\).*degrees of freedom")
@pytest.mark.parametrize("f", [slices, sizes_of_values, filled_up, order, statistics, distinct, neighbours])
def test_functions(f: Callable[..., Any]) -> None:
    agrees(f, *(XS if f in FLOATS else IS))


def loops(x):
    a, b, c, y = x[0] * 0, x[0] * 0, 0, x.clone()
    for row in x[x[:, 0] > 0]:
        a = torch.tanh(a + row)
    for k, row in enumerate(x[x[:, 0] < 0], 1):
        b = b + row * k
    for i, j in zip(*torch.where(x > 1), strict=True):
        y[i, j] = 2 * x[i, j]
    for i in (x[:, 1] > 0).nonzero().flatten().tolist():
        c = c * 2 + i
    for v in torch.unique(x > 0):
        b = b + v
    return a, b, c + 0 * x, y


def branches(x):
    a, b = x[x > 0], x[x < 0]
    if a.shape[0] > b.shape[0] and len(a) != 5:
        return a.sum()
    if a.numel() == b.numel():
        return x.sum() * 0
    return b.mean()


@pytest.mark.parametrize("f", [loops, branches])
def test_functions_that_loop_and_branch(f: Any) -> None:
    agrees(f, *XS)


class Skips(nn.Module):
    """Experts that are left out where no token is routed to them, as transformers' first Mixtral has it."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.experts, self.gate = nn.ModuleList(nn.Linear(3, 3) for _ in range(4)), nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        weights, choices = self.gate(x).softmax(-1).topk(2)
        mask, y = F.one_hot(choices, 4).permute(2, 1, 0), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rank, token = torch.where(mask[i])
            if token.shape[0] == 0:
                continue
            y.index_add_(0, token, torch.tanh(expert(x[None, token].reshape(-1, 3))) * weights[token, rank, None])
        if (y > 0.5).any():
            y = y * 2
        return y


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = Skips()

    def forward(self, x: Any) -> Any:
        return x + self.experts(x)


def test_a_module_that_branches_on_values() -> None:
    model = Layer().eval().requires_grad_(False)
    compare(model, XS)
    agrees(lambda x: model(x) * 2, *XS)
    assert type(model.experts) is Skips


@pytest.mark.needs("gcc")
def test_accelerate() -> None:
    model = Layer().eval()
    fast = cuvil.accelerate(model)
    with torch.no_grad():
        for (x,) in XS:
            torch.testing.assert_close(fast(x), model(x))
    assert len(fast.cuvil_programs) == 1
    assert type(model.experts) is Skips


@pytest.mark.needs("gcc")
@pytest.mark.filterwarnings(r"ignore:(std|var)\(\).*degrees of freedom")
def test_torch_compile() -> None:
    torch._dynamo.reset()

    def whole(x: Any, i: Any) -> Any:
        return *slices(x), *filled_up(x), *order(x), *statistics(x)[:5], *distinct(i)

    with torch.no_grad():
        fast, made = compiled(whole, fullgraph=True)
        for (x,), (i,) in zip(XS, [*IS, IS[0]], strict=True):
            torch.testing.assert_close(fast(x, i), whole(x, i), equal_nan=True)
    assert len(made) == 1
    torch._dynamo.reset()


def test_refusals_name_a_way() -> None:
    for f, x, way in (
        (lambda x: x[x > 0][:2], X, "give tensor and mask"),
        (lambda x: torch.repeat_interleave(x, x).sum(), I, "output_size"),
        (lambda x: torch.bincount(x).sum(), I, "one_hot"),
        (lambda x: torch.unique(x.view(4, 2), dim=0).sum(), I, "unique_consecutive"),
    ):
        with pytest.raises(Unsupported, match=way):
            load_torch(Function(f), x)


def appended(x):
    made = []
    for i in range(4):
        n = (x[i] > 0).sum().item()
        if n == 0:
            continue
        made.append(x[i, :n].sum())
    return torch.stack(made)


def test_a_list_that_values_fill_is_refused() -> None:
    with pytest.raises(CuvilError, match=r"test_selected_rows\.py:\d+.*depends on tensors"):
        agrees(appended, (X,))


@pytest.mark.needs("gcc")
def test_on_a_simulated_gpu() -> None:
    model = Layer().eval().requires_grad_(False)
    both = Function(lambda x, i: (model(x), *order(x), *distinct(i)))
    with cuvil.compile(both, "h100", example_inputs=(X, I), interface="sim") as program:
        for (x,), (i,) in zip(XS, [*IS, IS[0]], strict=True):
            for got, want in zip(program(x, i), both(x, i), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)

"""Computed masks and positions in PyTorch models and in functions: selected, reduced, assigned; against PyTorch."""

from __future__ import annotations

import pytest
import torch

from cuvil_hw.errors import Unsupported
from cuvil_hw.frontend.torch.export import load_torch
from cuvil_hw.ir.program import evaluate
from tests.support.python_runner import agrees

X = torch.tensor([[1.0, -2.0, 3.0], [-0.5, 0.25, -1.0], [0.0, 2.0, -4.0], [-1.0, -1.0, -1.0]])
ROW = torch.tensor([1.0, -2.0, 0.5])


def assigned(x):
    y, m = x.clone(), x > 0
    y[m] = 3.0
    y[x < -1] += 0.5
    return y


def transformed(x):
    y, m = x * 1, x > 0
    y[m] = torch.exp(x[m]) * 2 + 1
    y[y > 4] = -y[y > 4]
    y[y < 0] *= 3
    return y


def rows(x):
    y, m = x * 1, x.sum(1) > 0
    y[m] = torch.relu(x[m] @ torch.eye(3) - 1) + x[m].sum(1, keepdim=True)
    return y


def reduced(x):
    m = x > -1
    return x[m].sum(), x[m].mean(), (x[m] * 2).max(), x[m].amin(), (x[m] > 0).all(), (x[m] > 2).any(), x[m].shape[0] * x


def by_rows(x):
    m = x[:, 0] > 0.5
    return x[m].sum(0), x[m].mean(dim=0), x[m].amax(0), torch.masked_select(x, x > 0).sum()


MODELS = [assigned, transformed, rows, reduced, by_rows]


class Model(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def compared(f, *inputs: torch.Tensor) -> None:
    program = load_torch(Model(f), inputs)
    for x in (inputs[0], inputs[0].flip(0), -inputs[0]):
        want = f(x, *inputs[1:])
        want = want if isinstance(want, tuple) else (want,)
        given = [t.numpy() for t in (x, *inputs[1:])]
        made = dict(zip([n for n, _ in program.outputs], evaluate(program, given), strict=True))
        guards = {g.output for g in program.calling.guards}
        assert all(made[g].all() for g in guards)
        for a, b in zip((v for n, v in made.items() if n not in guards), want, strict=True):
            torch.testing.assert_close(torch.from_numpy(a.copy()), b)


@pytest.mark.parametrize("f", MODELS)
def test_masks_in_models(f) -> None:
    compared(f, X)


@pytest.mark.parametrize("f", MODELS)
def test_masks_in_functions(f) -> None:
    agrees(f, (X,), (X.flip(0),))


def outer(x, w):
    y = x[:, None]
    return (x[x > 0] * y[x > 0]).sum()


def batches(x, w):
    return (x.reshape(2, 2)[w[:2] > 0] @ torch.ones(1, 2, 3)).sum()


@pytest.mark.parametrize("f", [outer, batches])
def test_rows_that_become_another_axis_are_refused(f) -> None:
    with pytest.raises(Unsupported, match=r"another axis; use torch\.where"):
        load_torch(Model(f), (torch.tensor([1.0, -2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, -3.0, 4.0])))


def beside(x):
    m = x[:, 0] > 0.5
    return (x[m] * ROW[None] + ROW).sum(0), (x[x > 0] * ROW[:1]).sum()


def test_what_leaves_the_rows_in_place_is_computed() -> None:
    compared(beside, X)


def numpy_masks(x):
    y, m = x * 1, x > 0
    y[m] = 2
    y[x < 0] += x[x < 0] * 2
    return y, x[m].sum()


def test_masks_of_numpy() -> None:
    agrees(numpy_masks, (X.numpy(),), (-X.numpy(),))


def test_what_a_mask_selects_is_no_result() -> None:
    with pytest.raises(Unsupported, match="known at run time only"):
        load_torch(Model(lambda x: x[x > 0]), X)


def test_the_largest_of_nothing_is_an_error() -> None:
    program = load_torch(Model(lambda x: x[x > 0].max()), X)
    made = dict(zip([n for n, _ in program.outputs], evaluate(program, [-abs(X.numpy())]), strict=True))
    (guard,) = program.calling.guards
    assert not made[guard.output]
    assert "there are none" in guard.message


def placed(x, i):
    y = x.clone()
    y[i] = x[0] * 2
    y[:, i] = 3.0
    y[i, 1] += 1
    y[1:, i] = x[i, :3]
    return y, x[:, i]


@pytest.mark.parametrize("at", [2, 0, -1])
def test_positions_that_tensors_hold(at: int) -> None:
    square = torch.arange(16.0).reshape(4, 4)
    compared(placed, square, torch.tensor(at))
    agrees(placed, (square, torch.tensor(at)))


class Ring(torch.nn.Module):
    """Keeps the last rows that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))
        self.register_buffer("rows", torch.zeros(4, 3))

    def forward(self, x):
        self.rows[self.at] = x
        self.at.copy_((self.at + 1) % 4)
        return self.rows.sum(0)


def test_a_ring_buffer_keeps_its_state() -> None:
    import cuvil

    program, model = cuvil.compile(Ring(), "cpu", example_inputs=torch.ones(3)), Ring()
    for i in range(6):
        x = torch.full((3,), float(i))
        assert torch.equal(program(x), model(x))

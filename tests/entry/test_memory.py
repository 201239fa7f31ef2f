"""Compiled functions change in memory what Python would change, or say that they can't."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cuvil  # noqa: E402
from cuvil_hw.entry import decorator  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402


class _Reference:
    """An executable that computes by the ops' meaning."""

    def __init__(self, program) -> None:
        self.program = program

    def run(self, *arrays):
        values = [x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in arrays]
        names = [n for n, _ in self.program.outputs]
        made = dict(zip(names, map(np.array, evaluate(self.program, values)), strict=True))
        given = dict(zip([n for n, _ in self.program.inputs], values, strict=True))
        for write in self.program.calling.writes:
            np.copyto(given[write.input], made[write.output])
        kept = self.program.calling.kept_outputs
        return type("Run", (), {"outputs": [v for n, v in made.items() if n not in kept]})


@pytest.fixture
def compiled(monkeypatch):
    programs = []
    monkeypatch.setattr(
        decorator.api, "compile", lambda program, *_, **__: programs.append(program) or _Reference(program)
    )
    return programs


def asks(x):
    return x + (1 if x.is_contiguous() else 2) * x.stride(0)


def through_reshape(x):
    y = x.reshape(-1)
    y += 1
    return x * 2


def through_ravel(x):
    y = np.ravel(x)
    y += 1
    return x * 2


def through_contiguous(x):
    y = np.ascontiguousarray(x)
    y += 1
    return x * 2


def computed(x):
    h = x * 2
    y = h.reshape(-1)
    y += 1
    return h


def both(x, y):
    x += 1
    return y * 2 + (1 if x is y else 2)


def rows(*_):
    return torch.arange(6.0).reshape(2, 3)


def columns(*_):
    return torch.arange(6.0).reshape(3, 2).t()


def gaps(*_):
    return torch.arange(12.0).reshape(2, 6)[:, ::2]


@pytest.mark.parametrize("makes", [(rows, columns), (columns, rows)], ids=["rows", "columns"])
@pytest.mark.parametrize("function", [asks, through_reshape, through_ravel, through_contiguous, computed])
def test_strides_count_where_they_matter(function, makes, compiled) -> None:
    made = cuvil.compile(function)
    numpy = function in (through_ravel, through_contiguous)
    for make in makes:
        mine, theirs = ((x.numpy() if numpy else x) for x in (make(), make()))
        assert made(mine).tolist() == function(theirs).tolist()
        assert mine.tolist() == theirs.tolist()
    assert len(compiled) == 2


def test_strides_do_not_count_elsewhere(compiled) -> None:
    def plain(x):
        y = torch.zeros(6)
        y[:] = x.reshape(-1)
        return y

    made = cuvil.compile(plain)
    for make in (rows, columns, gaps):
        assert torch.equal(made(make()), plain(make()))
    assert len(compiled) == 1


@pytest.mark.parametrize("function", [asks, through_reshape])
def test_arguments_with_gaps(function, compiled) -> None:
    with pytest.raises(cuvil.Unsupported, match=r"gaps .*pass a copy"):
        cuvil.compile(function)(gaps())
    assert torch.equal(cuvil.compile(computed)(gaps()), computed(gaps()))


def test_an_array_that_is_given_twice_is_one(compiled) -> None:
    made = cuvil.compile(both)
    for make in (lambda: [torch.ones(3), torch.ones(3)], lambda: [torch.ones(3)] * 2, lambda: [np.ones(3)] * 2):
        mine, theirs = make(), make()
        assert made(*mine).tolist() == both(*theirs).tolist()
        assert [x.tolist() for x in mine] == [x.tolist() for x in theirs]


OUTSIDE = torch.ones(4, dtype=torch.bfloat16)


def test_writes_into_shared_memory_are_refused(compiled) -> None:
    made, shared, apart = cuvil.compile(both), torch.ones(4), torch.ones(6)
    with pytest.raises(cuvil.CuvilError, match="x is written into, and y shares its memory"):
        made(shared[:3], shared[1:])
    assert made(apart[::2], apart[1::2]).tolist() == [4, 4, 4]

    def outside(x):
        x += 1
        return OUTSIDE * 2

    with pytest.raises(cuvil.CuvilError, match="x is written into, and an array from outside"):
        cuvil.compile(outside)(OUTSIDE)
    with pytest.raises(cuvil.Unsupported, match="whether an argument is an array from outside"):
        cuvil.compile(lambda x: x * (2 if x is OUTSIDE else 3))(OUTSIDE)


def test_what_a_program_cannot_know_is_refused(compiled) -> None:
    with pytest.raises(cuvil.Unsupported, match=r"storage_offset .*memory"):
        cuvil.compile(lambda x: x + x.storage_offset())(rows())
    with pytest.raises(cuvil.Unsupported, match=r"requires grad"):
        cuvil.compile(lambda x: x + (1 if x.requires_grad else 2))(rows().requires_grad_())

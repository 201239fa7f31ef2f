"""Loops of Python functions: ends that values decide, trips that never happen, what a bound costs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cuvil_hw.frontend.python import load  # noqa: E402
from tests.support.python_runner import agrees  # noqa: E402

TABLE = [2.0, 1.0]


def scanned(x):
    i = 0
    while x[i] > 0:
        i += 1
    return i


def written(x):
    y, i = x * 0, 0
    while i < 5 and x[i] > 0:
        y[i] = x[i] * 2
        i += 1
    return y


def looked_up(x):
    i, total = 0, x.sum() * 0
    while total < 2:
        total = total + TABLE[i] * x[0]
        i += 1
    return total, 1 / (2 - i) if x[1] > 0 else 0.5


CALLS = [([1.0, -1.0, 2.0],), ([1.0, 2.0, -3.0],), ([-1.0, 2.0, 3.0],), ([1.0, 2.0, 3.0],), ([0.25, 0.5, 1.0],)]


@pytest.mark.parametrize("f", [scanned, written, looked_up])
def test_trips_that_never_happen_may_fail(f) -> None:
    """Those that do raise as Python does: the list, the tensor or the division that is too short."""
    agrees(f, *[(torch.tensor(x),) for (x,) in CALLS])


def halved(x):
    while abs(x).max() > 0.1:
        x = x * 0.5
        if x.sum() < -1:
            return -x
    return x


def test_a_bound_costs_in_proportion() -> None:
    def size(trips: int) -> int:
        given = load.arguments(halved, (torch.ones(3),), {})
        program = load.trace_function(halved, given, trips, "halved").program
        return sum(1 for _ in program.main.body.walk())

    four, eight, sixteen = map(size, (4, 8, 16))
    assert sixteen - eight == 2 * (eight - four)

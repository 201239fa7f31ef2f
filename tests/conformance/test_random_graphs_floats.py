"""Random graphs with floats, and with tensors without elements: NumPy, this processor and the Zynq simulator agree.

What every target computes alike (arithmetic, comparisons, what only moves values) must have equal bits; sums, whose
order is free, and library functions may differ by what docs/numerics.md leaves open.
"""

from __future__ import annotations

import pytest

from tests.support.graph_check import failures, report
from tests.support.graph_maker import program_of
from tests.support.graph_steps import EMPTY, FLOATS

pytestmark = [pytest.mark.must_run, pytest.mark.needs("cc", "g++")]

TOGETHER = 40


@pytest.mark.slow
@pytest.mark.share(start=6)
@pytest.mark.parametrize("target", ["cpu", "zynq"])
@pytest.mark.parametrize("start", range(0, 480, TOGETHER))
def test_float_graphs_agree_with_their_meaning(start: int, target: str) -> None:
    print(f"seeds {start} to {start + TOGETHER - 1}")
    failed = failures(range(start, start + TOGETHER), FLOATS, target)
    assert not failed, report(failed, "floats", target)


@pytest.mark.slow
@pytest.mark.share(start=3)
@pytest.mark.parametrize("start", range(0, 200, TOGETHER))
def test_tensors_without_elements(start: int) -> None:
    """A stream can't carry them, so they run on the processor only."""
    print(f"seeds {start} to {start + TOGETHER - 1}")
    failed = failures(range(start, start + TOGETHER), EMPTY, "cpu")
    assert not failed, report(failed, "empty", "cpu")


def test_some_graphs_have_exact_results_some_others_and_some_no_elements() -> None:
    exact = rough = empty = 0
    for kind in (FLOATS, EMPTY):
        _, made = program_of(range(TOGETHER), kind)
        for value in (v for m in made for v in m.values):
            exact += value.exact
            rough += not value.exact
            empty += value.type.size == 0
    assert min(exact, rough, empty) >= 15

"""Whole layers as the model prices them, against Yosys' counts of their SystemVerilog (a committed file)."""

from __future__ import annotations

import cost_designs
import pytest


@pytest.fixture(scope="module")
def chosen() -> list[cost_designs.Layer]:
    return list(cost_designs.layers())


def test_most_counted_forms_are_still_offered(chosen: list[cost_designs.Layer]) -> None:
    """Else the file has to be counted again."""
    assert len(chosen) >= 0.8 * len(cost_designs.counts())
    assert {layer.kind for layer in chosen} == set(cost_designs.KINDS)


def test_multiplier_blocks_are_those_of_yosys(chosen: list[cost_designs.Layer]) -> None:
    known = cost_designs.counts()
    assert [n.modelled["dsp"] for n in chosen] == [known[n.name]["dsp"] for n in chosen]


def test_errors_are_relative_to_what_was_counted() -> None:
    found = cost_designs.errors("conv", "lut", [(110.0, 100.0), (50.0, 100.0), (3.0, 0.0), (0.0, 0.0)])
    assert (found.designs, found.wrong_zeros) == (2, 1)
    assert (found.median, found.worst) == (pytest.approx(0.3), pytest.approx(0.5))

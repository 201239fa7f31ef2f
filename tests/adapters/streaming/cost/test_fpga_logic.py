"""LUTs of single parts and of dense layers, against counts of other tools: Yosys (a committed file) and Vitis HLS."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable

import cost_model
import pytest
from fabric_primitives import held_out

from cuvil_hw.adapters.streaming.analysis import logic
from cuvil_hw.adapters.streaming.analysis.fabric import distributed, fifo_use
from cuvil_hw.adapters.zynq.fabric import FABRICS
from tests.support.programs import ROOT

ZYNQ = FABRICS["dsp48e1"]
Form = Callable[[int, int, int], float]
FORMS: dict[str, Form] = {
    "multiplier": lambda n, a, b: logic.multiplier(a, b),
    "adder": lambda n, a, b: logic.adder(a),
    "tree": lambda n, a, b: logic.tree(n, a),
    "multiplexer": lambda n, a, b: logic.multiplexer(n, a),
    "counter": lambda n, a, b: logic.counter(n),
    "rom": lambda n, a, b: distributed(ZYNQ, n, a),
    "fifo": lambda n, a, b: fifo_use(ZYNQ, n, a).lut,
    # A pair of operands a cycle, n of them: products, their tree, an accumulator of 24 bits.
    "core": lambda n, a, b: n * logic.multiplier(a, b) + logic.tree(n, a + b) + logic.adder(24),
}


def rows(part: str) -> list[tuple[int, int, int, int]]:
    """(n, a, b, LUTs) of the rows that nothing was fitted to; a core's are all unseen."""
    with (ROOT / "tests/golden/fabric_primitives.csv").open(newline="") as file:
        found = [
            (n, a, b, int(r["lut"])) for r in csv.DictReader(file)
            if r["part"] == part for n, a, b in [(int(r["n"]), int(r["a"]), int(r["b"]))]
        ]  # fmt: skip
    return found if part == "core" else [r for r in found if held_out(part, *r[:3])]


@pytest.mark.parametrize("part", FORMS)
def test_parts_as_yosys_maps_them(part: str) -> None:
    """Yosys packs no two shift registers of 16 words into one table, as the fabric does: those rows are left out."""
    errors = [abs(FORMS[part](n, a, b) - lut) / lut for n, a, b, lut in rows(part) if (part, n) != ("fifo", 16)]
    assert errors
    assert statistics.median(errors) <= 0.10


def test_a_product_by_one_bit_is_no_multiplier() -> None:
    assert logic.multiplier(8, 1) == 4
    assert logic.multiplier(8, 0) == 0
    assert logic.multiplier(3, 8) == logic.multiplier(8, 3)


def test_an_odd_tree() -> None:
    assert logic.tree(1, 8) == 0
    assert logic.tree(3, 8) == 9 + 10
    assert logic.tree(5, 8) == 2 * 9 + 10 + 11


@pytest.mark.parametrize(("quantity", "most"), [("dsp", 0.1), ("bram18", 0.1), ("lut", 0.25), ("ff", 0.25)])
def test_layers_that_another_tool_synthesised(quantity: str, most: float) -> None:
    """The rows of benchmarks/cost_model.py that are held out."""
    path = cost_model.DATA / cost_model.FILE
    if not path.is_file():
        pytest.skip(f"no {path.name}: reports of others, which don't come with the sources")
    held = [r for r in cost_model.rows(path) if r.held_out]
    assert len(held) > 150
    assert cost_model.summary(cost_model.pairs(cost_model.fitted(cost_model.rows(path)), held, quantity)).median <= most

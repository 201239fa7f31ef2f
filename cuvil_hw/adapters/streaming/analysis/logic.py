"""Look-up tables (of six inputs) of the parts that designs are made of: multipliers, adders, selections, counters.

Each form follows from how a fabric with carry chains builds the part; what it is multiplied by is fitted, and stands in
COEFFICIENTS with its origin. They plan a design as synthesis maps it: estimates of an HLS tool are higher
(benchmarks/cost_model.py shows both), and a synthesis report replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from cuvil_hw.adapters.streaming.analysis.adders import digits


@dataclass(frozen=True, slots=True)
class Coefficient:
    """`value`: what a form is multiplied by; `origin`: what says so."""

    value: float
    origin: str


_YOSYS = "Yosys 0.23, synth_xilinx -family xc7, benchmarks/fabric_primitives.py: median over the rows not held out"
_HLS4ML = "wa-hls4ml reports of single dense layers (csynth), benchmarks/cost_model.py, rows not held out"
_DA4ML = "20 routed designs of da4ml (jedi_linear_da4ml_post_route.csv): median against the full adders of their graphs"
COEFFICIENTS: Mapping[str, Coefficient] = {
    "multiplier": Coefficient(1.0, _YOSYS),
    "adder": Coefficient(1.0, _YOSYS),
    "multiplexer": Coefficient(0.274, _YOSYS),
    "counter": Coefficient(1.29, _YOSYS),
    "operand register": Coefficient(1.0, _HLS4ML),
    "addition of a graph": Coefficient(1.05, _DA4ML),
    "register of a graph": Coefficient(0.53, _DA4ML),
}


def _times(part: str, amount: float) -> float:
    return COEFFICIENTS[part].value * amount


def multiplier(a: int, b: int, factor: int | None = None) -> float:
    """A signed product of a × b bits. A carry chain adds two rows of partial products, others add their sums two at a
    time: one chain less than there are rows, each about as long as the wider operand. By one bit it is a selection, by
    a constant `factor` an adder for each of its signed binary digits but one."""
    if factor is not None:
        return (len(digits(factor)) - 1) * adder(a + b)
    wide, narrow = max(a, b), min(a, b)
    if narrow <= 1:
        return wide / 2 if narrow else 0
    return _times("multiplier", (narrow + narrow % 2 - 1) * (wide + 1))


def adder(bits: int) -> float:
    """A sum, a difference or a comparison of `bits` bits: one table and one step of the carry chain a bit."""
    return _times("adder", bits)


def tree(terms: int, bits: int) -> float:
    """The sum of `terms` numbers of `bits` bits, two at a time; every level is one bit wider."""
    total = 0.0
    while terms > 1:
        bits += 1
        total += terms // 2 * adder(bits)
        terms = ceil(terms / 2)
    return total


def multiplexer(inputs: int, bits: int) -> float:
    """One of `inputs` words: a table chooses one of four bits, the slices' own multiplexers join four tables."""
    return _times("multiplexer", inputs * bits) if inputs > 1 else 0


def counter(steps: int) -> float:
    """A counter that wraps after `steps`, with the comparison that says so."""
    return _times("counter", max(steps - 1, 1).bit_length())


def graph(full_adders: float) -> tuple[float, float]:
    """LUTs and flip-flops of sums of constant products, which take so many full adders."""
    luts = _times("addition of a graph", full_adders)
    return luts, _times("register of a graph", luts)


def operand_registers(products: int, bits: int) -> float:
    """Flip-flops in front of the multipliers: an operand of `bits` bits for each of `products`."""
    return _times("operand register", products * bits)

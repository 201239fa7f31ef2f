"""The FPGA cost model beside synthesis reports of dense layers that somebody else made.

    python benchmarks/cost_model.py [--data FOLDER] [--rule4ml FILE] [--json FILE]

Reads wa_hls4ml_search_2024_results_resource.csv: Vitis HLS reports of single dense layers by hls4ml, "resource"
strategy, activations of 16 bits. A quarter of the rows, by the hash of what describes them, is held out: nothing is
fitted to those. rule4ml's predictions for the same rows come from benchmarks/peers/rule4ml_predict.py.

How the mapping goes. Such a layer isn't one of our stages, but it is made of the same parts, and the parts are what is
tested: d_in·d_out/rf multipliers with an operand register each, in DSP blocks from 6 bits on; weights in block memory,
rf words deep; d_out accumulators in registers, and for each multiplier an adder to one of them, chosen by a multiplexer
over all where it serves more than two (and a table that says which). LUTs of parts have the coefficients that products
have (analysis/logic.py), fitted to Yosys' counts. Only what our stages don't have is fitted here, on the rows not held
out: hls4ml keeps all inputs in registers and selects among them, and something in each layer has a constant size.

What it doesn't tell: nothing of windows, streams, FIFOs and epilogues, which these layers lack. And all of it is what
the HLS tool estimates; the implemented design takes fewer LUTs (2 to 10 times fewer, by ../shared/reference/fpga.md).
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fabric_primitives import held_out

from cuvil_hw.adapters.streaming.analysis import logic
from cuvil_hw.adapters.streaming.analysis.fabric import block_rams, multiplier_blocks
from cuvil_hw.adapters.zynq.fabric import FABRICS

FILE = "wa_hls4ml_search_2024_results_resource.csv"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "fpga"
FABRIC = FABRICS["dsp48e2"]  # the reports are for an UltraScale+ device
ACTIVATION_BITS = 16
FIRST_DSP_BITS = 6  # from this width on the tool takes a multiplier block for a product
QUANTITIES = {"dsp": "DSP_hls", "bram18": "BRAM_18K_hls", "lut": "LUT_hls", "ff": "FF_hls"}
Prediction = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """One report: `bits` of the weights, `rf` the reuse factor, `measured` by quantity."""

    d_in: int
    d_out: int
    bits: int
    rf: int
    measured: Prediction

    @property
    def key(self) -> tuple[int, int, int, int]:
        return self.d_in, self.d_out, self.bits, self.rf

    @property
    def held_out(self) -> bool:
        return held_out(*self.key)


@dataclass(frozen=True)
class Overhead:
    """What hls4ml's layers have and ours don't: LUTs a layer and an input, flip-flops a layer."""

    lut: float = 0.0
    lut_per_input: float = 0.0
    ff: float = 0.0


@dataclass(frozen=True)
class Errors:
    """Of |model - measured| / measured over values measured above 0; `zeros`: rows where only one of both is 0."""

    rows: int
    median: float
    p90: float
    zeros: int


def rows(path: Path) -> list[Row]:
    """The successful ones that reuse multipliers at all."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Row(int(r["d_in"]), int(r["d_out"]), int(r["prec"]), int(r["rf"]),
                {name: float(r[column]) for name, column in QUANTITIES.items()})
            for r in csv.DictReader(file) if r["hls_synth_success"] == "True" and int(r["rf"]) > 1
        ]  # fmt: skip


def parts(row: Row) -> dict[str, float]:
    """What the parts of a layer take, overhead apart."""
    products = row.d_in * row.d_out / row.rf
    several = row.rf > 2 * row.d_in  # outputs for which a multiplier works in turn
    in_blocks = row.bits >= FIRST_DSP_BITS
    each = logic.adder(ACTIVATION_BITS)
    each += 0 if in_blocks else logic.multiplier(ACTIVATION_BITS, row.bits)
    each += logic.multiplexer(1 << (row.d_out - 1).bit_length(), ACTIVATION_BITS) if several else 0
    return {
        "dsp": products * multiplier_blocks(FABRIC, ACTIVATION_BITS, row.bits) if in_blocks else 0,
        "bram18": block_rams(FABRIC, row.rf, int(products * row.bits)) + several,
        "lut": products * each,
        "ff": logic.operand_registers(int(products), row.bits) + ACTIVATION_BITS * row.d_out,
    }


def fitted(known: Iterable[Row]) -> Overhead:
    """Least squares of the relative errors on the rows that are not held out."""
    train = [r for r in known if not r.held_out]
    luts = np.array([r.measured["lut"] for r in train])
    rest = 1 - np.array([parts(r)["lut"] for r in train]) / luts
    per = np.array([[1.0, r.d_in] for r in train]) / luts[:, None]
    constant, per_input = np.linalg.lstsq(per, rest, rcond=None)[0]
    registers = statistics.median(r.measured["ff"] - parts(r)["ff"] for r in train)
    return Overhead(float(constant), float(per_input), registers)


def predicted(row: Row, overhead: Overhead) -> Prediction:
    found = parts(row)
    found["lut"] += overhead.lut + overhead.lut_per_input * row.d_in
    found["ff"] += overhead.ff
    return found


def pairs(overhead: Overhead, chosen: Iterable[Row], quantity: str) -> list[tuple[float, float]]:
    """(model, measured)."""
    return [(predicted(r, overhead)[quantity], r.measured[quantity]) for r in chosen]


def summary(found: Sequence[tuple[float, float]]) -> Errors:
    errors = sorted(abs(a - b) / b for a, b in found if b > 0)
    zeros = sum((round(a) > 0) != (b > 0) for a, b in found)
    return Errors(len(errors), statistics.median(errors), errors[int(0.9 * (len(errors) - 1))], zeros)


def peer(path: Path) -> Mapping[tuple[int, ...], Prediction]:
    """Predictions by row, from a CSV with columns d_in, d_out, prec, rf and the quantities."""
    with path.open(newline="", encoding="utf-8") as file:
        return {
            tuple(int(r[c]) for c in ("d_in", "d_out", "prec", "rf")): {q: float(r[q]) for q in QUANTITIES}
            for r in csv.DictReader(file)
        }


def table(known: Sequence[Row], others: Mapping[tuple[int, ...], Prediction]) -> Iterator[tuple[str, str, Errors]]:
    """(who, quantity, errors) on the held-out rows."""
    overhead = fitted(known)
    held = [r for r in known if r.held_out]
    for quantity in QUANTITIES:
        yield "cuvil", quantity, summary(pairs(overhead, held, quantity))
        same = [(others[r.key][quantity], r.measured[quantity]) for r in held if r.key in others]
        if same:
            yield "rule4ml", quantity, summary(same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the reports")
    parser.add_argument("--rule4ml", type=Path, help="predictions of rule4ml for these rows (CSV)")
    parser.add_argument("--json", type=Path, help="also write the summary here")
    chosen = parser.parse_args()
    path = chosen.data / FILE
    if not path.is_file():
        print(f"no {path}: nothing to compare with; give the folder with --data", file=sys.stderr)
        return 0
    known = rows(path)
    held = sum(r.held_out for r in known)
    print(f"{len(known)} dense layers, {held} held out; fitted to the others: {fitted(known)}")
    for name, c in logic.COEFFICIENTS.items():
        print(f"  {name:17} {c.value:<6g} {c.origin}")
    print(f"{'held out':10}{'quantity':>9}{'rows':>6}{'median error':>14}{'p90 error':>11}{'zero only in one':>18}")
    results = list(table(known, peer(chosen.rule4ml) if chosen.rule4ml else {}))
    for who, quantity, e in results:
        print(f"{who:10}{quantity:>9}{e.rows:6d}{e.median:14.1%}{e.p90:11.1%}{e.zeros:18d}")
    if chosen.json:
        listed = [{"who": who, "quantity": quantity, **vars(e)} for who, quantity, e in results]
        chosen.json.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

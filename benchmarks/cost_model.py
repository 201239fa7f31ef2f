"""The FPGA cost model beside synthesis reports of dense layers that somebody else made.

    python benchmarks/cost_model.py [--data FOLDER] [--json FILE]

Reads wa_hls4ml_search_2024_results_resource.csv (Vitis HLS reports of single dense layers by hls4ml, "resource"
strategy). A layer of d_in × d_out weights with reuse factor rf multiplies d_in·d_out/rf pairs a cycle; it is compared
with the folding of ours that does the same. No constant of the model was fitted to these rows: all of them are unseen.

What can be compared: cycles, multipliers and weight memory follow from the folding alone. LUTs and registers do not:
hls4ml keeps all inputs and outputs in registers and selects among them, where our stages stream words. They are shown
as ratios, to be read as the difference between two architectures.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cuvil_hw import ops
from cuvil_hw.adapters.streaming.analysis import cost, fold
from cuvil_hw.adapters.streaming.analysis.fold import Folding
from cuvil_hw.adapters.streaming.analysis.stage import Stage, classify
from cuvil_hw.adapters.zynq.fabric import FABRICS
from cuvil_hw.ir.program import Builder
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.types import TensorType

FILE = "wa_hls4ml_search_2024_results_resource.csv"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "fpga"
FABRIC = FABRICS["dsp48e2"]  # the reports are for an UltraScale+ device
FIRST_DSP_BITS = 6  # from this width on the tool takes a multiplier block for a product
QUANTITIES = {"cycles": "IntervalMin_hls", "dsp": "DSP_hls", "bram18": "BRAM_18K_hls", "lut": "LUT_hls", "ff": "FF_hls"}


@dataclass(frozen=True)
class Row:
    """One report: `bits` of inputs and weights, `rf` the reuse factor, `measured` by quantity."""

    d_in: int
    d_out: int
    bits: int
    rf: int
    measured: dict[str, float]


def rows(path: Path) -> Iterator[Row]:
    """The successful ones that reuse multipliers at all."""
    with path.open(newline="", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            if r["hls_synth_success"] == "True" and int(r["rf"]) > 1:
                measured = {name: float(r[column]) for name, column in QUANTITIES.items()}
                yield Row(int(r["d_in"]), int(r["d_out"]), int(r["prec"]), int(r["rf"]), measured)


def stage(row: Row) -> Stage:
    """A dense layer as these are: weights and inputs of one width, a result shifted to it."""
    dtype, acc = f"i{row.bits}", f"i{2 * row.bits + row.d_in.bit_length()}"
    builder = Builder([("x", TensorType((1, row.d_in), dtype))])
    w = np.ones((row.d_out, row.d_in), np.int8 if row.bits <= 8 else np.int16)
    y = builder.op(ops.Linear(0, (0,), acc), builder.input(0), builder.const(w, dtype))
    program = builder.finish([("y", builder.op(ops.Rescale((1,), row.bits, dtype), y))])
    run_pipeline(program, ["fuse"])
    return classify(kernel_graph(program).kernels[0])


def equivalent(s: Stage, row: Row) -> Folding | None:
    """The folding with as many multipliers, as square as possible; None when ours has none with that number."""
    wanted = row.d_in * row.d_out / row.rf
    multiplier = "dsp" if row.bits >= FIRST_DSP_BITS else "lut"
    found = [
        f
        for f in fold.foldings(s, FABRIC.floats)
        if f.memory == "bram" and f.multiplier == multiplier and f.pe * f.simd == wanted
    ]
    return min(found, key=lambda f: abs(f.pe - f.simd), default=None)


def compare(path: Path) -> tuple[dict[str, list[tuple[float, float]]], int]:
    """((model, measured) by quantity, rows without an equivalent folding)."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in QUANTITIES}
    without = 0
    for row in rows(path):
        s = stage(row)
        folding = equivalent(s, row)
        if folding is None:
            without += 1
            continue
        cycles = float(cost.cycles(folding, FABRIC.floats))
        use = {**cost.resources(folding, FABRIC).axes(FABRIC), "cycles": cycles}
        for name in QUANTITIES:
            pairs[name].append((use[name], row.measured[name]))
    return pairs, without


def summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Median and 90th percentile of |model - measured| / measured, and median ratio, over measured values above 0."""
    known = [(a, b) for a, b in pairs if b > 0]
    errors = sorted(abs(a - b) / b for a, b in known)
    return {
        "rows": len(known),
        "median_error": statistics.median(errors),
        "p90_error": errors[int(0.9 * (len(errors) - 1))],
        "median_ratio": statistics.median(a / b for a, b in known),
        "false_zeros": sum((a > 0) != (b > 0) for a, b in pairs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the reports")
    parser.add_argument("--json", type=Path, help="also write the summary here")
    chosen = parser.parse_args()
    path = chosen.data / FILE
    if not path.is_file():
        print(f"no {path}: nothing to compare with; give the folder with --data", file=sys.stderr)
        return 0
    pairs, without = compare(path)
    results = {name: summary(of) for name, of in pairs.items()}
    count = len(pairs["cycles"])
    print(f"{count} dense layers, {without} more without an equivalent folding; none was used for fitting")
    print(f"{'':8}{'rows':>6}{'median error':>15}{'p90 error':>12}{'model/measured':>17}{'zero only in one':>19}")
    for name, r in results.items():
        print(
            f"{name:8}{r['rows']:6d}{r['median_error']:15.1%}{r['p90_error']:12.1%}{r['median_ratio']:17.3f}"
            f"{r['false_zeros']:19d}"
        )
    if chosen.json:
        chosen.json.write_text(json.dumps({"without": without, **results}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

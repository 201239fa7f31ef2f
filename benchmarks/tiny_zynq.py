"""The four int8 models of MLPerf Tiny on a PYNQ-Z2: cycles as simulated and as reported, resources, published designs.

    python benchmarks/tiny_zynq.py [--target pynq-z2] [--models FOLDER] [--json FILE]

For each model: `report` is what `cuvil.compile` prints of the fabric; `simulated` runs the emitted sources with clocks
(sim-cycles), which says how long a sample takes if every loop keeps its interval and no pipeline has to fill, so that
silicon can only be slower; `formula` is the slowest stage's estimate. Resources are the report's (analytic), as shares
of the budget, which is 70 % of the part's LUTs. Nothing is synthesised.

The published designs are the fastest of MLPerf Tiny's results on a Zynq-7020 for the same network and, except AD's
(a network of its own, hls4ml AD08), at 8 bits or fewer: files tiny_results_v0.7 and v1.1 of MLCommons. They were
measured on boards and include what a board's host adds; ours are of the core alone.

Exit code 1 when report and simulation differ by more than 2 %, a resource is over its budget, or a design is slower
than the published one.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cuvil
from cuvil_hw.target.profile import load_profile

MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"
MOST_APART = 0.02


@dataclass(frozen=True, slots=True)
class Published:
    """Inferences per second on a board, and where the figure stands."""

    rate: float
    what: str


CASES = {
    "ad_deep_autoencoder": Published(53_365, "hls4ml AD08, PYNQ-Z2, 100 MHz, v0.7 open"),
    "ic_resnet": Published(2_431, "fpgaConvNet, ZedBoard, 143 MHz, v1.1 closed"),
    "vww_mobilenet_v1": Published(105.4, "fpgaConvNet, ZedBoard, 111 MHz, v1.1 closed"),
    "kws_ref_model": Published(3_088, "KWS of the same network, Zynq-7020"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One model. Cycles are those from one sample to the next."""

    model: str
    report_cycles: float
    report_origin: str
    simulated_cycles: float
    formula_cycles: float
    first_cycles: int
    rate: float
    published: float
    what: str
    use: dict[str, float]
    bottlenecks: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        found = []
        if abs(self.report_cycles / self.simulated_cycles - 1) > MOST_APART:
            found.append(f"report and simulation differ by {self.report_cycles / self.simulated_cycles - 1:+.1%}")
        found += [f"{axis} at {share:.0%}" for axis, share in self.use.items() if share > 1]
        if self.rate <= self.published:
            found.append(f"slower than {self.published:,.0f}/s")
        return found


def measure(path: Path, target: str, published: Published) -> Row:
    program = cuvil.compile(path, target)
    report = program.report
    clock_hz = load_profile(target).clock_hz
    timing = program.timing()
    program.close()
    reported = report["timing"]
    return Row(
        path.stem,
        float(reported["interval"]),
        reported["origin"],
        timing.cycles,
        float(max(layer["cycles"] for layer in report["layers"])),
        timing.first_cycles,
        clock_hz / timing.cycles,
        published.rate,
        published.what,
        {t["axis"]: t["used"] / t["budget"] for t in report["totals"] if t["budget"]},
        tuple(timing.bottlenecks),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="pynq-z2")
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    missing = [n for n in CASES if not (options.models / f"{n}.onnx").is_file()]
    if missing:
        print(
            f"{options.models}: has no {', '.join(missing)} (.onnx); give their folder with --models", file=sys.stderr
        )
        return 2
    rows = []
    for name, published in CASES.items():
        rows.append(row := measure(options.models / f"{name}.onnx", options.target, published))
        use = ", ".join(f"{axis} {share:.0%}" for axis, share in row.use.items())
        print(f"{row.model} on {options.target}")
        reported = f"report {row.report_cycles:,.0f} ({row.report_origin})"
        print(f"  cycles: {reported}, simulated {row.simulated_cycles:,.0f}, formula {row.formula_cycles:,.0f}")
        print(f"  first result after {row.first_cycles:,} cycles")
        times = f"{row.rate / row.published:.2f} times {row.published:,.0f}/s ({row.what})"
        print(f"  {row.rate:,.0f} inferences/s simulated, core alone: {times}")
        print(f"  bottleneck: {', '.join(row.bottlenecks)}; {use} (analytic)")
        print(f"  {'; '.join(row.faults) or 'in order'}", flush=True)
    if options.json is not None:
        found: list[dict[str, Any]] = [asdict(row) | {"faults": row.faults} for row in rows]
        options.json.write_text(json.dumps({"target": options.target, "models": found}, indent=1), encoding="utf-8")
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(main())

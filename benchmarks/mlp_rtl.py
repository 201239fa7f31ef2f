"""The int8 MLP 16-64-32-5 as hardware: our SystemVerilog beside the Verilog of others, counted by one Yosys.

    python benchmarks/mlp_rtl.py [--peers FOLDER] [--only TEXT] [--all] [--json FILE]

All hold the same weights and give the same bits (benchmarks/peers/mlp_network.py). Ours is what a design with
AXI4-Stream ports is in `cuvil synth`, at foldings from one product a cycle to all of them; cycles between two samples
are simulated, and 64 samples run in Verilator before a design is counted. FOLDER holds what
benchmarks/peers/mlp_da4ml.py wrote: a .json file says for each design which files, ports and cycles it has. Yosys
maps everything for the 7 series; nothing is placed or routed. A LUT6 that could hold two small functions counts as
two. The designs that make all products at once take Yosys more than five minutes of processor time each; they are
counted with --all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peers.mlp_network import SIZES, meaning, network, samples

from cuvil_hw import ops
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.form import Process, processes
from cuvil_hw.adapters.streaming.rtl.emit import emit
from cuvil_hw.adapters.streaming.synthesis.yosys import synthesise
from cuvil_hw.adapters.streaming.timing.figures import time_design
from cuvil_hw.adapters.streaming.verilated.build import library_files
from cuvil_hw.adapters.zynq.fabric import FABRICS
from cuvil_hw.adapters.zynq.synthesis import flow
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.types import TensorType

FABRIC = FABRICS["dsp48e1"]
FLOW = flow({"part": "xc7z020clg400-1"})
AXES = ("lut", "ff", "dsp", "bram18")
AXIS_BITS = 128  # a sample in a word, as the peers take it
AT_ONCE = "all products, as additions"
# (outputs, inputs) a cycle of each layer, what multiplies, where weights lie
POINTS: Mapping[str, tuple[tuple[tuple[int, int], ...], str, str]] = {
    AT_ONCE: (((64, 16), (32, 64), (5, 32)), "adders", ""),
    "one product a layer, DSP": (((1, 1), (1, 1), (1, 1)), "dsp", "bram"),
    "one product a layer, LUT": (((1, 1), (1, 1), (1, 1)), "lut", "lutram"),
    "8 / 16 / 2 products, DSP": (((1, 8), (1, 16), (1, 2)), "dsp", "bram"),
    "8 / 16 / 2 products, LUT": (((1, 8), (1, 16), (1, 2)), "lut", "lutram"),
    "16 / 32 / 4 products, pairs in a DSP": (((2, 8), (2, 16), (1, 4)), "pair", "bram"),
}


@dataclass(frozen=True)
class Row:
    """`cycles`: between two samples; `latency`: of one sample; `use`: by axis."""

    tool: str
    point: str
    cycles: int
    latency: int
    use: Mapping[str, float]

    @property
    def product(self) -> float:
        return self.cycles * self.use["lut"]


def program() -> Program:
    builder = Builder([("x", TensorType((1, SIZES[0]), "i8"))], "mlp")
    value = builder.input(0)
    for layer in network():
        kind = ops.Linear(0, (0,), "i32")
        value = builder.op(kind, value, builder.const(layer.weights), builder.const(layer.bias))
        value = builder.op(ops.Rescale((1,), (layer.shift,), "i8", rounding="floor"), value)
        if layer.lo == 0:
            value = builder.op(ops.Clamp(0, 127), value)
    return builder.finish([("y", value)])


def graph() -> KernelGraph:
    made = program()
    run_pipeline(made, ["accumulators", "decompose", "fuse"])
    return kernel_graph(made)


def forms(design: KernelGraph, point: str) -> list[Process]:
    """Of each layer. Raises LookupError where the adapter has no such form."""
    folds, multiplier, memory = POINTS[point]
    found = []
    orders = stream_orders(design)
    for kernel, (pe, simd) in zip(design.kernels, folds, strict=True):
        offered = [f for f in processes(kernel, FABRIC, design.constants, orders)
                   if (f.folding.pe, f.folding.simd) == (pe, simd)]  # fmt: skip
        kinds = (multiplier, "dsp") if multiplier == "pair" else (multiplier,)
        chosen = [f for kind in kinds for f in offered if f.folding.multiplier == kind and f.folding.memory == memory]
        if not chosen:
            raise LookupError(f"{point}: {kernel.name} has {sorted(f.describe() for f in offered)}")
        found.append(chosen[0])
    return found


def ours(point: str) -> Row:
    """Lower, run in Verilator, count."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' bench around a design
    from tests.support.rtl_runner import simulated

    design = graph()
    module = dataflow.lower(design, forms(design, point), AXIS_BITS, packets=True)
    timing = time_design(module, design.constants, lambda depth, bits: {}, lambda depth, bits: "", {})
    x = samples(64)
    with simulated(design, module, AXIS_BITS, quick=True) as simulation:
        (one,), latency = simulation.run([x[:1, None]])
        (got,), _ = simulation.run([x[:, None]])
    np.testing.assert_array_equal(got[:, 0], meaning(network(), x))
    np.testing.assert_array_equal(one[0, 0], got[0, 0])
    files = {name: text.encode() for name, text in emit(module, design.constants, "mlp").items()}
    counted = synthesise({**library_files(), **files}, "mlp_top", FLOW)
    use = {a: sum(u.get(a, 0) for u in (*counted.instances.values(), counted.rest)) for a in AXES}
    return Row("cuvil-hw", point, int(timing.interval), latency, use)


def theirs(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def counted(folder: Path, about: Any) -> Row:
    files = {Path(name).name: (folder / name).read_bytes() for name in about["files"]}
    listed = ", ".join(f"{way} {wide} {name}" for way, wide, name in about["ports"])
    wired = ", ".join(f".{name}({name})" for _, _, name in about["ports"])
    files["shell.v"] = f"module shell({listed}); {about['top']} design({wired}); endmodule\n".encode()
    found = synthesise(files, "shell", FLOW)
    use = {a: found.instances["design"].get(a, 0.0) for a in AXES}
    return Row(about["tool"], about["point"], about["cycles"], about["latency"], use)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with the peers' designs")
    parser.add_argument("--only", default="", help="points whose names hold this")
    parser.add_argument("--all", action="store_true", help="also the designs that make all products at once")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    chosen = parser.parse_args()
    rows: list[Row] = []

    def show(row: Row) -> None:
        rows.append(row)
        use = "".join(f"{row.use[a]:8.0f}" for a in AXES)
        print(f"{row.tool:14}{row.point:38}{row.cycles:8d}{row.latency:8d}{use}{row.product:14,.0f}", flush=True)

    heads = "".join(f"{a:>8}" for a in AXES)
    print(f"{'tool':14}{'design':38}{'cycles':>8}{'latency':>8}{heads}{'cycles x LUT':>14}")
    for point in POINTS:
        if chosen.only in point and (chosen.all or point != AT_ONCE):
            show(ours(point))
    for name, about in theirs(chosen.peers) if chosen.peers else ():
        if chosen.only in name:
            show(counted(chosen.peers, about))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

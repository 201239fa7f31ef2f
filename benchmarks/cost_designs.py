"""Single layers as the FPGA targets build them: what the cost model says, and what Yosys maps their SystemVerilog to.

    python benchmarks/cost_designs.py [--recount FILE]

Every kind of layer in sizes and foldings that are drawn with a fixed seed. `--recount` emits the SystemVerilog of each,
has Yosys map all of them for the 7 series (Debian's package yosys) and writes the counts as CSV; tests/golden/
cost_designs.csv is such a file, and without options the model is compared with it. A quarter of the designs, by
the hash of what describes them (`held_out`), is for testing: nothing may be fitted to those.

A count is of a whole design with its ports, dissolved into one piece; a LUT6 that could hold two small functions counts
as two. Nothing is placed or routed.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fabric_primitives import held_out

from cuvil_hw import dtypes, ops
from cuvil_hw.adapters.streaming.analysis.cost import resources
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.form import Process, processes
from cuvil_hw.adapters.streaming.rtl.emit import emit
from cuvil_hw.adapters.streaming.rtl.scalars import NotHardware
from cuvil_hw.adapters.streaming.synthesis.yosys import synthesise
from cuvil_hw.adapters.streaming.verilated.build import library_files
from cuvil_hw.adapters.zynq.fabric import FABRICS
from cuvil_hw.adapters.zynq.synthesis import flow
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.types import TensorType

FABRIC = FABRICS["dsp48e1"]
COUNTS = Path(__file__).resolve().parents[1] / "tests" / "golden" / "cost_designs.csv"
PART = {"part": "xc7z020clg400-1"}
AXIS_BITS = 64
AXES = ("lut", "ff", "bram18", "dsp")
EACH = 6  # designs of a kind
MOST_LANES = 16  # outputs by inputs a cycle: what Yosys maps in seconds
PORT = re.compile(r"^  (input|output) +logic (\[\d+:0\])? ?(\w+),?$", re.MULTILINE)
KINDS = ("linear", "conv", "depthwise", "pool", "add", "table")


@dataclass(frozen=True)
class Layer:
    """One design: a kernel in one of its forms. `name`: its kind and number."""

    kind: str
    name: str
    graph: KernelGraph
    form: Process

    @property
    def modelled(self) -> Mapping[str, float]:
        """Use of the stage and of what joins it to the ports."""
        joined = dataflow.overhead(self.graph, [self.form], FABRIC, AXIS_BITS, packets=True)
        own = resources(self.form.folding, FABRIC).axes(FABRIC)
        return {axis: own[axis] + joined.get(axis, 0.0) for axis in AXES}

    @property
    def held_out(self) -> bool:
        return held_out(self.name)


def programs(kind: str, seed: int) -> Program:
    """A layer of int8 tensors (weights of 8, now and then 4 bits) with the rescale behind it, sizes drawn."""
    rng, draw = random.Random(f"{kind},{seed}"), np.random.default_rng(seed)
    weight_type = rng.choice(("i8", "i8", "i4"))

    def values(*shape: int) -> np.ndarray:  # type: ignore[type-arg]
        lo, hi = dtypes.int_range(weight_type)
        return draw.integers(lo, hi, shape, endpoint=True).astype(np.int8)

    def rescaled(builder: Builder, y: object, channels: int) -> object:
        count = rng.choice((1, channels))
        multiplier = tuple(int(m) for m in draw.integers(1 << 14, 1 << 15, count))
        return builder.op(ops.Rescale(multiplier, (22,), "i8"), y)  # type: ignore[arg-type]

    channels, size = rng.choice((4, 8, 16)), rng.choice((6, 8, 12))
    flat = kind == "linear"
    shape = (1, rng.choice((12, 16, 32, 64))) if flat else (1, channels, size, size)
    ports = [(name, TensorType(shape, "i8")) for name in ("xz" if kind == "add" else "x")]
    builder = Builder(ports, kind)
    x = builder.input(0)
    out = rng.choice((4, 8, 16, 32))
    match kind:
        case "linear":
            bias = builder.const(draw.integers(-4000, 4000, out).astype(np.int32))
            y = builder.op(ops.Linear(0, (0,), "i32"), x, builder.const(values(out, shape[1]), weight_type), bias)
            y = rescaled(builder, y, out)
        case "conv" | "depthwise":
            k, groups = rng.choice((1, 3)) if kind == "conv" else 3, channels if kind == "depthwise" else 1
            made = out if kind == "conv" else channels
            weights = builder.const(values(made, channels // groups, k, k), weight_type)
            pads = (k // 2,) * 4
            conv = ops.Conv((1, 1), pads, (1, 1), groups, 0, (0,), "i32")
            bias = builder.const(draw.integers(-4000, 4000, made).astype(np.int32))
            y = rescaled(builder, builder.op(conv, x, weights, bias), made)
        case "pool":
            y = builder.op(ops.MaxPool((2, 2), (2, 2), (0, 0, 0, 0), (1, 1)), x)
        case "add":
            wide = [builder.op(ops.Cast("i32"), v) for v in (x, builder.input(1))]
            scaled = [builder.op(ops.Rescale((m,), (9,), "i24"), v) for m, v in zip((1500, 2900), wide, strict=True)]
            y = rescaled(builder, builder.op(ops.Add("i26"), *scaled), 1)
        case "table":
            y = builder.op(ops.Lut(tuple(int(v) for v in draw.integers(-128, 128, 256)), "i8"), x)
        case _:
            raise ValueError(kind)
    return builder.finish([("y", y)])  # type: ignore[list-item]


def drawn() -> Iterator[Layer]:
    """All designs, no two alike."""
    for kind in KINDS:
        found, seed = 0, 0
        seen: set[tuple[str, str]] = set()
        while found < EACH:
            seed += 1
            graph, offered = made(kind, seed)
            small = [f for f in offered if f.folding.pe * f.folding.simd <= MOST_LANES]
            form = random.Random(f"{kind},{seed}").choice(small)
            same = (str(graph.kernels[0].type), form.describe())
            if same not in seen:
                seen.add(same)
                found += 1
                yield Layer(kind, f"{kind}_{seed}", graph, form)


def made(kind: str, seed: int) -> tuple[KernelGraph, list[Process]]:
    """A design's kernel, and the forms that the adapter offers for it."""
    program = programs(kind, seed)
    run_pipeline(program, ["accumulators", "decompose", "fuse"])
    graph = kernel_graph(program)
    (kernel,) = graph.kernels
    return graph, processes(kernel, FABRIC, graph.constants, stream_orders(graph))


def layers() -> Iterator[Layer]:
    """The designs that were counted, as far as their forms are still offered."""
    for name, form in forms().items():
        kind, _, seed = name.rpartition("_")
        graph, offered = made(kind, int(seed))
        found = next((f for f in offered if f.describe() == form), None)
        if found is not None:
            yield Layer(kind, name, graph, found)


def emitted(layer: Layer) -> dict[str, bytes]:
    """The layer's SystemVerilog with names of its own: its top is `<name>_top`. Raises NotHardware."""
    module = dataflow.lower(layer.graph, [layer.form], AXIS_BITS, packets=True)
    files = emit(module, layer.graph.constants, layer.name)
    own = {name.rpartition(".")[0] for name in files} - {f"{layer.name}_top"}
    made = {}
    for name, text in files.items():
        for module_name in own:
            text = text.replace(f" {module_name} ", f" {layer.name}_{module_name} ")
            text = text.replace(f'"{module_name}.hex"', f'"{layer.name}_{module_name}.hex"')
        made[name if name.startswith(layer.name) else f"{layer.name}_{name}"] = text.encode()
    return made


def counted(chosen: Sequence[Layer]) -> Iterator[tuple[Layer, Mapping[str, float]]]:
    """What Yosys maps each layer to; those that can't be hardware are left out."""
    files: dict[str, bytes] = {}
    hardware = []
    for layer in chosen:
        try:
            files |= emitted(layer)
        except NotHardware as e:
            print(f"{layer.name}: {e}", file=sys.stderr)
            continue
        hardware.append(layer)
    ports, instances = ["input clk, input rst"], ""
    for layer in hardware:
        wires = []
        for way, wide, port in PORT.findall(files[f"{layer.name}_top.sv"].decode()):
            if port not in ("clk", "rst"):
                ports.append(f"{way} {wide} {layer.name}_{port}")
            wires.append(f".{port}({port if port in ('clk', 'rst') else f'{layer.name}_{port}'})")
        instances += f"  {layer.name}_top {layer.name} ({', '.join(wires)});\n"
    files["designs.sv"] = f"module designs({', '.join(ports)});\n{instances}endmodule\n".encode()
    found = synthesise({**library_files(), **files}, "designs", flow(PART))
    for layer in hardware:
        yield layer, found.instances[layer.name]


def counts(path: Path = COUNTS) -> dict[str, Mapping[str, float]]:
    """What Yosys counted, by the name of a design."""
    with path.open(newline="", encoding="utf-8") as file:
        return {row["name"]: {axis: float(row[axis]) for axis in AXES} for row in csv.DictReader(file)}


def forms(path: Path = COUNTS) -> dict[str, str]:
    """What was counted: the form of each design."""
    with path.open(newline="", encoding="utf-8") as file:
        return {row["name"]: row["form"] for row in csv.DictReader(file)}


@dataclass(frozen=True)
class Errors:
    """Of |model - counted| / counted over designs where it isn't 0; `wrong_zeros`: where only one of both is 0."""

    kind: str
    axis: str
    designs: int
    median: float
    worst: float
    wrong_zeros: int


def errors(kind: str, axis: str, pairs: Sequence[tuple[float, float]]) -> Errors:
    """`pairs`: (model, counted)."""
    found = [abs(a - b) / b for a, b in pairs if b > 0]
    zeros = sum((a > 0) != (b > 0) for a, b in pairs)
    nothing = float("nan")
    return Errors(
        kind, axis, len(found), statistics.median(found) if found else nothing, max(found, default=nothing), zeros
    )


def table(chosen: Sequence[Layer], counted_: Mapping[str, Mapping[str, float]]) -> Iterator[Errors]:
    """By axis, of each kind and of all."""
    for kind in (*KINDS, "all"):
        some = [n for n in chosen if kind in (n.kind, "all") and n.name in counted_]
        for axis in AXES:
            yield errors(kind, axis, [(n.modelled[axis], counted_[n.name][axis]) for n in some])


def show(chosen: Sequence[Layer]) -> None:
    known = counts()
    print(f"{len(known)} layers counted, {len(chosen)} of their forms are still offered")
    for held in (True, False):
        some = [n for n in chosen if n.held_out == held]
        rows, zero = "held out" if held else "others", "zero only in one"
        print(f"{rows:10}{'axis':>7}{'designs':>9}{'median error':>14}{'worst':>9}{zero:>18}")
        for e in table(some, known):
            if e.designs or e.wrong_zeros:
                print(f"{e.kind:10}{e.axis:>7}{e.designs:9d}{e.median:14.1%}{e.worst:9.1%}{e.wrong_zeros:18d}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recount", type=Path, help="draw the designs again, have Yosys count them, write this CSV")
    parser.add_argument("--json", type=Path, help="also write the errors on held-out designs here")
    chosen = parser.parse_args()
    if chosen.recount is None:
        some = list(layers())
        show(some)
        if chosen.json:
            listed = [vars(e) for e in table([n for n in some if n.held_out], counts()) if e.designs]
            chosen.json.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
        return 0
    every = list(drawn())
    with chosen.recount.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "kind", "form", *AXES])
        for kind in KINDS:
            for layer, use in counted([layer for layer in every if layer.kind == kind]):
                writer.writerow([layer.name, kind, layer.form.describe(), *(f"{use.get(a, 0):g}" for a in AXES)])
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

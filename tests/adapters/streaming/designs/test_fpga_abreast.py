"""Windows whose taps come side by side: the geometry of their generator, their bits, their cycles, their text."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from cuvil_hw import ops
from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.streaming.analysis.lines import Lines
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.adapters.streaming.analysis.stage import WindowDim
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.form import Process, processes
from cuvil_hw.adapters.zynq.fabric import FABRICS
from cuvil_hw.adapters.zynq.project import project
from cuvil_hw.dtypes import int_range, to_numpy
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.space import Candidate, Choice, Estimate
from cuvil_hw.types import TensorType as T
from tests.support import fpga_runner
from tests.support.flat_check import unflat
from tests.support.hls_count import additions, count
from tests.support.level2_runner import Interpreted
from tests.support.rtl_runner import simulated

FABRIC = FABRICS["dsp48e2"]
SIMULATED = pytest.mark.needs("verilator", "g++", "make")


def dim(rng: random.Random) -> WindowDim | None:
    size, stride = rng.randint(1, 9), rng.choice([1, 1, 2, 3])
    kernel, dilation = rng.randint(1, 4), rng.choice([1, 1, 2])
    begin, end = rng.randint(0, 2), rng.randint(0, 2)
    span = dilation * (kernel - 1) + 1
    if max(begin, end) >= span or size + begin + end < span:
        return None
    return WindowDim(size, (size + begin + end - span) // stride + 1, kernel, stride, dilation, begin)


def test_a_window_leaves_when_its_last_element_is_there() -> None:
    rng, tried = random.Random(2), 0
    while tried < 200:
        y, x = dim(rng), dim(rng)
        if y is None or x is None or not (made := Lines(y, x, rng.choice([1, 2, 3]))).legal:
            continue
        tried += 1
        words = iter(made.read_by())
        for oy in range(y.out):
            for ox in range(x.out):
                row, column = oy * y.stride - y.pad + y.span - 1, ox * x.stride - x.pad + x.span - 1
                for c in range(made.fold):
                    step = (row * x.size + column) * made.fold + c
                    assert next(words) == min(step + 1, made.words)
                    assert made.first <= step < made.steps
        assert next(words, None) is None
        assert made.steps <= made.words + (y.span - 1) * made.row_words + x.span * made.fold


def windowed(seed: int) -> Program:
    """A convolution or depthwise one, or a pool, of random geometry, with what rescales its sums."""
    rng, values = random.Random(seed), np.random.default_rng(seed)
    while True:
        c, size = rng.choice([1, 2, 3, 6]), (rng.randint(2, 7), rng.randint(2, 7))
        kernel, stride = (rng.randint(1, 3), rng.randint(2, 3)), (rng.choice([1, 2]), rng.choice([1, 1, 2]))
        dilation = rng.choice([(1, 1), (1, 1), (2, 1), (1, 2)])
        pads = tuple(rng.randint(0, k - 1) for k in (*kernel, *kernel))
        spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        if all(n + pads[i] + pads[i + 2] >= s for i, (n, s) in enumerate(zip(size, spans, strict=True))):
            break
    builder = Builder([("x", T((1, c, *size), "i8"))], f"windowed{seed}")
    kind = rng.choice(["conv", "conv", "depthwise", "pool"])

    def const(shape: tuple[int, ...], dtype: str) -> Any:
        return builder.const(values.integers(*int_range(dtype), shape, endpoint=True).astype(to_numpy(dtype)))

    if kind == "pool":
        y = builder.op(ops.MaxPool(kernel, stride, pads, dilation), builder.input(0))
    else:
        out = rng.choice([1, 4, 6]) if kind == "conv" else c
        weight = const((out, c if kind == "conv" else 1, *kernel), "i8")
        bias = builder.const(values.integers(-1000, 1000, out).astype(np.int32))
        op = ops.Conv(stride, pads, dilation, 1 if kind == "conv" else c, rng.choice([0, -7]), (0,), "i32")
        y = builder.op(op, builder.input(0), weight, bias)
    return builder.finish([("y", y)])


def forms_abreast(graph: KernelGraph, rng: random.Random) -> list[Process] | None:
    """A form of each kernel, drawn among those that take several taps where there are some; None where there are
    none."""
    picked, orders = [], stream_orders(graph)
    for kernel in graph.kernels:
        every = processes(kernel, FABRIC, graph.constants, orders)
        picked.append(rng.choice([f for f in every if f.folding.stage.abreast > 1] or every))
    return picked if any(f.folding.stage.abreast > 1 for f in picked) else None


def drawn(seed: int) -> tuple[Program, list[Any], list[Any], KernelGraph, list[Process]]:
    """A program, samples and what they give; its kernels and forms of theirs, none where no form takes several taps."""
    program = windowed(seed)
    inputs = fpga_runner.samples(program, np.random.default_rng(seed), 7)
    wanted = fpga_runner.meaning(program, inputs)
    graph = fpga_runner.graph_of(program)
    return program, inputs, wanted, graph, forms_abreast(graph, random.Random(seed)) or []


def check(seed: int) -> bool:
    program, inputs, wanted, graph, forms = drawn(seed)
    if not forms:
        return False
    module = dataflow.lower(graph, forms, 64, packets=True)
    got, _ = Interpreted(graph, module).run(inputs)
    found = fpga_runner.difference(program, got, wanted)
    assert not found, f"seed {seed}: {[f.describe() for f in forms]}\n{found}"
    assert not unflat(module), f"seed {seed}"
    return True


def test_random_windows_are_the_meaning(full: bool) -> None:
    seeds = 40 if full else 16
    assert sum(check(seed) for seed in range(seeds)) > 0.6 * seeds


@pytest.mark.parametrize(
    ("pe", "taps", "multiplier"), [(2, 3, "dsp"), (4, 9, "lut"), (4, 3, "pair"), (12, 9, "adders")]
)
def test_the_source_multiplies_what_was_chosen(pe: int, taps: int, multiplier: str) -> None:
    """3×3 over two channels to twelve outputs: so many products a step in the text, and the meaning's bits."""
    values = np.random.default_rng(pe)
    builder = Builder([("x", T((1, 2, 6, 5), "i8"))], "taps")
    weight = builder.const(values.integers(-128, 128, (12, 2, 3, 3)).astype(np.int8))
    y = builder.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), 1, 0, (0,), "i32"), builder.input(0), weight)
    program = builder.finish([("y", y)])
    inputs = fpga_runner.samples(program, values, 6)
    wanted = fpga_runner.meaning(program, inputs)
    graph = fpga_runner.graph_of(program)
    (kernel,) = graph.kernels
    every = processes(kernel, FABRIC, graph.constants, stream_orders(graph))
    wide = [f for f in every if f.folding.stage.abreast == taps and f.folding.pe == pe]
    form = next(f for f in wide if f.folding.multiplier == multiplier)
    assert f"o={pe} c=2 taps={taps}" in form.describe()
    module = dataflow.lower(graph, [form], 64, packets=True)
    assert not fpga_runner.difference(program, Interpreted(graph, module).run(inputs)[0], wanted)
    files = project(module, graph, fpga_runner.PROFILE, Golden()).files
    text = {name.rpartition("/")[2]: t.decode() for name, t in files.items() if name.startswith("src/")}
    tables = text.pop("tables.h")
    (source,) = (t for name, t in text.items() if name.endswith(".cpp"))
    functions = count(source, tables)
    made, generator = functions[kernel.name], functions[f"{kernel.name}_window"]
    assert not made.loose
    assert not generator.loose
    assert not generator.multipliers
    products = {m.impl: m.count for m in made.multipliers}
    if multiplier == "adders":
        assert not products
        assert additions(tables)[f"{kernel.name}_sums"] > 0
    else:
        kind = "fabric" if multiplier == "lut" else "dsp"
        assert products == {kind: pe * taps * 2 // (2 if multiplier == "pair" else 1)}
    # The lines of the input in one memory as wide as two rows of a window, the rest in registers.
    (lines,) = [m for m in generator.memories if m.name == "rows"]
    assert (lines.words, lines.bits, lines.count) == (5, 2 * 2 * 8, 1)
    assert f"{9 * 2}> window_word;" in source


@SIMULATED
@pytest.mark.parametrize("seed", [11])
def test_modules_and_ports_that_wait(seed: int) -> None:
    program, inputs, wanted, graph, forms = drawn(seed)
    with simulated(graph, dataflow.lower(graph, forms, 64)) as simulation:
        assert not fpga_runner.difference(program, simulation.run(inputs, 0, 30)[0], wanted)


@pytest.mark.needs("g++")
@pytest.mark.parametrize("seed", [3])
def test_compiled_sources(seed: int) -> None:
    program, inputs, wanted, graph, forms = drawn(seed)
    kernels = zip(graph.kernels, forms, strict=True)
    choice = Choice(tuple((k.name, Candidate(f, Estimate(0.0, 1))) for k, f in kernels), 0.0, 0.0, {}, "spatial")
    with fpga_runner.loaded(graph, choice) as design:
        assert not fpga_runner.difference(program, design.run(inputs)[0], wanted)

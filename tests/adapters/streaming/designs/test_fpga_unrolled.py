"""Layers that are unrolled as a whole: a sample a cycle, in the report, by the simulated sources, and in their text."""

from __future__ import annotations

import itertools
import re
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil
from cuvil_hw import ops
from cuvil_hw.adapters.streaming.analysis import adders
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.form import processes
from cuvil_hw.adapters.zynq.fabric import FABRICS
from cuvil_hw.dtypes import int_range, to_numpy
from cuvil_hw.ir.adders import from_rows
from cuvil_hw.ir.annotations import Role, text_of
from cuvil_hw.ir.flat import breaks
from cuvil_hw.ir.legal import functions, legal
from cuvil_hw.ir.program import Builder
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.schedule.space import Candidate, Choice, Estimate
from cuvil_hw.types import TensorType as T
from tests.support import fpga_runner
from tests.support.hls_count import additions, count
from tests.support.level2_runner import Interpreted
from tests.support.xilinx import ap_types

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++", "torch", "ortools")]

JETS = (16, 64, 32, 32, 5)


def jets(target: str) -> Executable:
    """The MLP of hls4ml's jet tagging, ap_fixed<16,6>, with random weights."""
    import torch

    torch.manual_seed(1)
    layers = [layer for a, b in pairwise(JETS) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1]).eval()
    return cuvil.compile(model, target, example_inputs=torch.zeros(1, 16), precision="fixed<16,6>")


@cache
def unrolled() -> Executable:
    return jets("u250")


def texts_of(program: Executable) -> tuple[str, str]:
    files = {n.rpartition("/")[2]: t.decode() for n, t in program.artifact.files.items() if "/src/" in n}
    (source,) = (t for n, t in files.items() if n.endswith(".cpp"))
    return source, files["tables.h"]


def test_jets_are_tagged_at_one_a_cycle() -> None:
    program = unrolled()
    found: Any = program.report["timing"]
    assert (found["interval"], found["formula"]) == (1, 1)
    assert program.timing().cycles == 1
    x = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32) * 8
    np.testing.assert_array_equal(np.asarray(program(x)), np.asarray(jets("x86_64-linux-gnu")(x)))


def test_a_process_of_one_step_is_a_pipeline_itself() -> None:
    """Tools drop a loop of one step, with the interval that it asks for."""
    source, tables = texts_of(unrolled())
    counted = count(source, tables)
    layers = [n for n in counted if n.startswith("linear_")]
    assert len(layers) == len(JETS) - 1
    for name in layers:
        body = source.split(f"static void {name}(", 1)[1].split("\n}\n", 1)[0]
        assert body.count("\n  #pragma HLS pipeline II=1\n") == 1
        assert len(re.findall(r"#pragma HLS unroll", body)) == len(re.findall(r"\bfor \(", body))
        assert len(body.splitlines()) < 120
    assert "axis_word_to_stream<512, ap_int<16>, 16>" in source
    assert "stream_to_axis_word<512, ap_int<16>, 5>" in source


# ---- products by constants as additions ----------------------------------------------------------------------------


def test_the_source_adds_as_often_as_the_report_says() -> None:
    """No multiplier is left, and sums that several outputs hold are there once: fewer additions than digits."""
    program = unrolled()
    source, tables = texts_of(program)
    counted, added = count(source, tables), additions(tables)
    layers: Any = program.report["layers"]
    for layer, (a, b) in zip(layers, pairwise(JETS), strict=True):
        name = layer["name"]
        assert "multiplier=adders" in layer["schedule"]
        assert layer["use"]["dsp"] == 0
        assert not counted[name].multipliers
        assert not counted[name].loose
        said = re.search(rf"by (\d+) additions\nstatic void {name}\(", source)
        assert said is not None
        assert added[f"{name}_sums"] == int(said[1])
        assert a * b / 2 < int(said[1]) < 2 * a * b
        assert not [m for m in counted[name].memories if "_sums" in m.name]
    assert max(map(len, tables.splitlines())) < 240


@given(st.integers(1, 9), st.integers(1, 12), st.sampled_from([1, 2, 4, 9, 16]), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_graphs_of_additions_are_the_matrix(outputs: int, inputs: int, bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-(1 << bits - 1), 1 << bits - 1, (outputs, inputs)) * (rng.random((outputs, inputs)) < 0.8)
    lo, hi = (-128, 127) if seed % 2 else (0, 255)
    graph = adders.adders(matrix, (lo, hi))
    assert from_rows(graph.rows().tolist()) == graph
    for x in (np.full(inputs, lo), np.full(inputs, hi), rng.integers(lo, hi, inputs, endpoint=True)):
        assert graph.of(x.tolist()) == (matrix @ x).tolist()
    assert len(graph.sums) <= max(adders.digit_count(matrix) - np.count_nonzero(matrix.any(axis=1)), 0)


def test_spans_hold_every_value_and_no_more_than_they_need() -> None:
    graph = adders.adders(np.array([[3, -5], [7, 1]]), (-8, 7))
    seen = [set[int]() for _ in graph.spans]
    for x in itertools.product(range(-8, 8), repeat=2):
        values = list(x)
        for s in graph.sums:
            values.append((values[s.a] << s.a_shift) + s.sign * (values[s.b] << s.b_shift))
        for found, value in zip(seen, values, strict=True):
            found.add(value)
    assert all(lo <= min(s) and max(s) <= hi for s, (lo, hi) in zip(seen, graph.spans, strict=True))
    assert graph.spans[0] == (-8, 7)


def test_equal_rows_are_added_once() -> None:
    row = np.random.default_rng(0).integers(-128, 127, 12)
    once = len(adders.adders(row[None], (-128, 127)).sums)
    assert len(adders.adders(np.stack([row, 2 * row, -row]), (-128, 127)).sums) <= once + 4


@pytest.mark.parametrize("types", ["simulator", pytest.param("xilinx", marks=pytest.mark.slow)])
def test_unrolled_layers_keep_every_bit(types: str) -> None:
    """Random layers as additions: on the types of both, and by the interpreter of level2, as NumPy has them."""
    for seed, kind in enumerate(("i8", "u8", "i16", "i2")):
        draw = np.random.default_rng(seed)
        lo, hi = int_range(kind)
        b = Builder([("x", T((1, 11), kind))])
        weights = draw.integers(*((-1, 2) if kind == "i2" else (-128, 128)), (6, 11), np.int8)
        y = b.op(ops.Linear(3 if kind == "u8" else 0, acc="i32"), b.input(0), b.const(weights, "i8"))
        program = b.finish([("y", y)])
        inputs = [draw.integers(lo, hi, (5, 1, 11), np.int64, endpoint=True).astype(to_numpy(kind))]
        wanted = fpga_runner.meaning(program, inputs)
        graph, picked = fpga_runner.graph_of(program), []
        for k in graph.kernels:
            forms = processes(k, FABRICS["dsp48e2"], graph.constants)
            picked += [(k.name, Candidate(f, Estimate(0.0, 1))) for f in forms if f.folding.multiplier == "adders"][:1]
        assert len(picked) == len(graph.kernels) == 1
        choice = Choice(tuple(picked), 0.0, 0.0, {}, "spatial")
        with fpga_runner.loaded(graph, choice, headers=ap_types() if types == "xilinx" else None) as simulation:
            assert not fpga_runner.difference(program, simulation.run(inputs)[0], wanted)
        module = dataflow.lower(graph, fpga_runner.forms_of(choice), 64, packets=True)
        legal(module)
        assert not [fault for f in functions(module) if text_of(f, Role) == "process" for fault in breaks(f)]
        assert not fpga_runner.difference(program, Interpreted(graph, module).run(inputs)[0], wanted)

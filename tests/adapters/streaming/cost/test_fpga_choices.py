"""What the solver chose stands in the emitted sources: multipliers, memories, widths, counted from the text alone."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import cuvil
from cuvil_hw import ops
from cuvil_hw.adapters.streaming.analysis.fabric import block_rams, multiplier_blocks
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.adapters.streaming.lowering.form import processes
from cuvil_hw.adapters.zynq.fabric import FABRICS
from cuvil_hw.data import folder
from cuvil_hw.dtypes import int_range, to_numpy
from cuvil_hw.ir.program import Builder
from cuvil_hw.schedule.space import Candidate, Choice, Estimate
from cuvil_hw.types import TensorType as T
from tests.adapters.zynq.test_hls_headers import compiled as compiled_program
from tests.adapters.zynq.test_hls_headers import fast_flags, output, xilinx_flags
from tests.support import fpga_runner
from tests.support.fpga_networks import network
from tests.support.hls_count import Counted, count
from tests.support.xilinx import ap_types

pytestmark = [pytest.mark.must_run, pytest.mark.needs("ortools", "onnx")]

MODELS = ["kws_ref_model", pytest.param("ic_resnet", marks=pytest.mark.slow), "tfc_2w2a_qonnx"]
BOARDS = {"pynq-z2": FABRICS["dsp48e1"], "zcu104": FABRICS["dsp48e2"]}


@cache
def emitted(path: Path, target: str) -> tuple[dict[str, object], dict[str, str]]:
    """The report's layers by name, its total of block memories as "", and the texts of src/."""
    program = cuvil.compile(path, target)
    text = {name.rpartition("/")[2]: data.decode() for name, data in program.artifact.files.items() if "/src/" in name}
    (blocks,) = (t["used"] for t in program.report["totals"] if t["axis"] == "bram18")
    return {layer["name"]: layer for layer in program.report["layers"]} | {"": blocks}, text


def compiled(path: Path, target: str) -> tuple[dict[str, object], dict[str, Counted]]:
    """As `emitted`, and what each function of the source asks for."""
    layers, text = emitted(path, target)
    layers = dict(layers)
    (source,) = (t for name, t in text.items() if name.endswith(".cpp"))
    return layers, count(source, text["tables.h"])


def top(functions: dict[str, Counted]) -> Counted:
    """The function that joins the others."""
    (found,) = (f for f in functions.values() if f.fifos)
    return found


@pytest.mark.share(model=3)
@pytest.mark.parametrize("target", BOARDS)
@pytest.mark.parametrize("model", MODELS)
def test_the_source_asks_for_what_the_report_says(models: Path, model: str, target: str) -> None:
    layers, functions = compiled(models / f"{model}.onnx", target)
    fabric, total = BOARDS[target], layers.pop("")
    assert set(layers) < set(functions)
    for name, layer in layers.items():
        names = [n for n in (f"{name}_window", name, f"{name}_epilogue") if n in functions]
        parts = [functions[n] for n in names]
        multipliers = [m for p in parts for m in p.multipliers]
        memories = [m for p in parts for m in p.memories]
        read = {top(functions).calls[n][0] for n in names}
        waiting = [f for f in top(functions).fifos if f.name in read]
        assert not [line for p in parts for line in p.loose], name
        blocks = sum(m.count * multiplier_blocks(fabric, m.a, m.b) for m in multipliers if m.impl == "dsp")
        assert blocks == layer["use"]["dsp"], name  # type: ignore[index]
        rams = sum(m.count * block_rams(fabric, m.words, m.bits) for m in memories if m.impl == "bram")
        assert rams <= layer["use"]["bram18"], name  # type: ignore[index]
        assert waiting or rams == layer["use"]["bram18"], name  # type: ignore[index]
        assert {m.impl for m in memories} <= {"bram", "lutram", "uram"}, name
    # Where throughput needs FIFOs deeper than a layer is priced with, the report's total has them.
    memories = [m for f in functions.values() for m in f.memories]
    asked = sum(m.count * block_rams(fabric, m.words, m.bits) for m in memories if m.impl == "bram")
    asked += sum(block_rams(fabric, f.words, f.bits) for f in top(functions).fifos if f.impl == "bram")
    assert asked <= total  # type: ignore[operator]


@pytest.mark.parametrize("target", BOARDS)
def test_every_fifo_says_what_it_is_made_of(models: Path, target: str) -> None:
    _, functions = compiled(models / "kws_ref_model.onnx", target)
    fifos = top(functions).fifos
    assert any(f.words > 2 for f in fifos)
    for f in fifos:
        wanted = "" if f.words <= 2 else "srl" if f.words <= 32 or f.words * f.bits <= 1024 else "bram"
        assert f.impl == wanted, f.name


def compilers() -> list[list[str]]:
    """Every C++ compiler that is found, but those by a second name."""
    names = ["g++", "clang++", *(f"clang++-{n}" for n in range(14, 22))]
    found = {os.path.realpath(path): [name] for name in reversed(names) if (path := shutil.which(name))}
    return list(found.values())


@pytest.mark.needs("g++")
@pytest.mark.parametrize(("model", "target"), [("kws_ref_model", "zcu104"), ("tfc_2w2a_qonnx", "pynq-z2")])
def test_compilers_have_nothing_to_say_of_a_source(models: Path, tmp_path: Path, model: str, target: str) -> None:
    """On the types of Xilinx, every warning an error; and a layer is short enough to be read."""
    layers, text = emitted(models / f"{model}.onnx", target)
    for name, content in text.items():
        (tmp_path / name).write_text(content)
    (source,) = tmp_path.glob("*.cpp")
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    include = ["-isystem", str(folder("sim") / "xilinx_compat"), "-isystem", str(ap_types()), f"-I{tmp_path}"]
    for compiler in compilers():
        command = [*compiler, "-std=c++14", "-fsyntax-only", *warnings, *include, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(compiler)}\n{done.stderr[:4000]}"
    for name in filter(None, layers):  # the empty name has the report's total
        body = source.read_text().split(f"static void {name}(", 1)[1].split("\n}\n", 1)[0]
        assert len(body.splitlines()) < 120, name


PAIR = r"""
#include <cuvil_hls.h>
#include <cstdio>
int main() {
    long wrong = 0, all = 0;
    for (int x = -256; x < 256; ++x)
        for (int low = -128; low < 128; ++low)
            for (int high = -128; high < 128; high += 5) {
                const cuvil::products<17> made = cuvil::multiply_pair<9, 8, 17>(x, low, high);
                wrong += (int)made.low != x * low || (int)made.high != x * high;
                ++all;
            }
    std::printf("%ld %ld\n", wrong, all);
}
"""


@pytest.mark.needs("g++")
@pytest.mark.parametrize("types", ["simulator", "xilinx"])
def test_one_multiplier_makes_two_products(types: str, tmp_path: Path) -> None:
    flags = xilinx_flags() if types == "xilinx" else fast_flags()
    wrong, total = map(int, output(compiled_program(tmp_path, "pair", PAIR, ["-O2", *flags])).split())
    assert (wrong, total) == (0, 512 * 256 * 52)


@pytest.mark.needs("g++")
@pytest.mark.parametrize("types", ["simulator", pytest.param("xilinx", marks=pytest.mark.slow)])
def test_packed_products_change_no_bit(types: str) -> None:
    """A random network with a pair wherever there may be one, on a family whose blocks have room for 9 by 8 bits."""
    program, _ = network(2)
    inputs = fpga_runner.samples(program, np.random.default_rng(2), 8)
    wanted = fpga_runner.meaning(program, inputs)
    graph, rng, picked, pairs = fpga_runner.graph_of(program), random.Random(2), [], 0
    for k in graph.kernels:
        options = processes(k, BOARDS["zcu104"], graph.constants, stream_orders(graph))
        packed = [o for o in options if o.folding.multiplier == "pair"]
        pairs += bool(packed)
        picked.append((k.name, Candidate(rng.choice(packed or options), Estimate(0.0, 1))))
    assert pairs
    choice = Choice(tuple(picked), 0.0, 0.0, {}, "spatial")
    with fpga_runner.loaded(graph, choice, headers=ap_types() if types == "xilinx" else None) as simulation:
        different = fpga_runner.difference(program, simulation.run(inputs)[0], wanted)
        assert not different, different


def test_two_bit_weights_take_two_bits(models: Path) -> None:
    layers, functions = compiled(models / "tfc_2w2a_qonnx.onnx", "pynq-z2")
    weights = [
        m
        for f in functions.values()
        for m in f.memories
        if m.name.rpartition("_")[0].endswith("_c") or m.name.endswith("_c")
    ]
    bits = sum(m.words * m.bits for m in weights)
    assert bits == 2 * (784 * 64 + 2 * 64 * 64 + 64 * 10)
    assert len(layers) > 4


@pytest.mark.needs("g++")
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2"])
def test_weights_of_one_bit_keep_their_sign(dtype: str) -> None:
    """Level2 has one type for i1 and u1, whose set bit is -1 or 1: a table holds the bit, whatever its exact width."""
    low, high = int_range(dtype)
    weights = np.random.default_rng(0).integers(max(low, -1), min(high, 1), (3, 8), np.int8, endpoint=True)
    b = Builder([("x", T((1, 8), "i8"))])
    y = b.op(ops.Linear(acc="i16"), b.input(0), b.const(weights.astype(to_numpy(dtype)), dtype))
    program = b.finish([("y", y)])
    x = np.random.default_rng(1).integers(-128, 127, (4, 1, 8), np.int8, endpoint=True)
    graph = fpga_runner.graph_of(program)
    picked = tuple(
        (k.name, Candidate(processes(k, BOARDS["pynq-z2"], graph.constants, stream_orders(graph))[0], Estimate(0.0, 1)))
        for k in graph.kernels
    )
    with fpga_runner.loaded(graph, Choice(picked, 0.0, 0.0, {}, "spatial")) as simulation:
        got = simulation.run([x])[0][0]
    np.testing.assert_array_equal(got.reshape(4, 3), x.reshape(4, 8).astype(np.int64) @ weights.T.astype(np.int64))


@pytest.mark.needs("g++")
def test_a_table_of_64_bits_without_a_sign_compiles() -> None:
    b = Builder([("x", T((1, 3), "u64"))])
    y = b.op(ops.Maximum(), b.input(0), b.const(np.array([[1, 2**64 - 1, 2**63]], np.uint64), "u64"))
    program = b.finish([("y", y)])
    x = np.array([[[2**63, 5, 2**64 - 2]]], np.uint64)
    graph = fpga_runner.graph_of(program)
    with fpga_runner.loaded(graph, fpga_runner.random_choice(graph, random.Random(0))) as simulation:
        np.testing.assert_array_equal(simulation.run([x])[0][0].reshape(-1), [2**63, 2**64 - 1, 2**64 - 2])

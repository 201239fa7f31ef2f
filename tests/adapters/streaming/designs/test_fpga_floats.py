"""Floats on streaming targets: order of sums, intervals, cost, testbenches, and what is refused."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvil_hw import api, data, ops
from cuvil_hw.adapters.agilex.fabric import AGILEX7
from cuvil_hw.adapters.registry import load_adapter
from cuvil_hw.adapters.streaming.analysis import cost, fold
from cuvil_hw.adapters.streaming.analysis.classify import classify
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.adapters.streaming.analysis.floats import CORES, FloatCore, cores, recurrence
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.form import processes
from cuvil_hw.adapters.zynq.adapter import ZynqAdapter
from cuvil_hw.adapters.zynq.fabric import FABRICS
from cuvil_hw.adapters.zynq.project import project
from cuvil_hw.compile.golden import golden
from cuvil_hw.compile.partition import split
from cuvil_hw.compile.precision import choose_precision
from cuvil_hw.errors import CuvilError, ProfileError, Unsupported
from cuvil_hw.expr.nodes import Apply, Load
from cuvil_hw.expr.scalar import SCALARS
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.schedule.space import Candidate, Choice, Estimate
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType
from tests.support import fpga_runner
from tests.support.fpga_networks import network
from tests.support.fpga_runner import PROFILE, forms_of, graph_of

ZYNQ = FABRICS["dsp48e1"]
Array = np.ndarray[Any, Any]


def linear(outputs: int, inputs: int, rows: tuple[int, ...] = (1,)) -> Program:
    """Sums of the inputs, once an output."""
    b = Builder([("x", TensorType((*rows, inputs), "f32"))], "sums")
    weights = np.ones((outputs, inputs), np.float32)
    return b.finish([("y", b.op(ops.Linear(), b.input(0), b.const(weights)))])


def in_order(x: Array) -> Array:
    """Sums of the last axis from left to right, each rounded to f32."""
    total = np.zeros(x.shape[:-1], np.float32)
    for n in range(x.shape[-1]):
        total = (total + x[..., n]).astype(np.float32)
    return total


def chosen(program: Program, pick: int) -> tuple[Any, Choice]:
    """Its graph, and its pick-th schedule everywhere."""
    graph = graph_of(program)
    picked = []
    for k in graph.kernels:
        options = processes(k, ZYNQ, graph.constants, stream_orders(graph))
        picked.append((k.name, Candidate(options[pick % len(options)], Estimate(0.0, 1))))
    return graph, Choice(tuple(picked), 0.0, 0.0, {}, "spatial")


@pytest.mark.needs("g++")
@pytest.mark.parametrize(("outputs", "rows", "kind"), [(6, (1,), "dense"), (1, (1,), "dense"), (4, (1, 3), "dense")])
def test_sums_keep_their_order(outputs: int, rows: tuple[int, ...], kind: str) -> None:
    """Of numbers whose sum depends on it; every folding."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(4, *rows, 37)) * 10.0 ** rng.integers(-3, 8, (4, *rows, 37))).astype(np.float32)
    wanted = in_order(x)
    assert (wanted != x.sum(-1, dtype=np.float32)).any()
    (kernel,) = graph_of(linear(outputs, 37, rows)).kernels
    assert classify(kernel).kind == kind
    count = len(list(fold.foldings(classify(kernel), ZYNQ.floats)))
    for pick in range(0, count, 2):
        graph, choice = chosen(linear(outputs, 37, rows), pick)
        with fpga_runner.loaded(graph, choice, ("-O0",)) as simulation:
            (got,), _ = simulation.run([x])
        np.testing.assert_array_equal(got, np.repeat(wanted[..., None], outputs, -1))


# -- intervals and cost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "intervals"), [(1, {1: 5}), (2, {1: 3, 2: 5}), (4, {1: 2, 2: 3, 4: 5}), (8, {1: 1, 2: 2, 4: 3, 8: 5})]
)
def test_a_sum_waits_for_its_adder_unless_others_take_their_turn(outputs: int, intervals: dict[int, int]) -> None:
    """`intervals`: by outputs a step; an addition takes five cycles."""
    (kernel,) = graph_of(linear(outputs, 10)).kernels
    layer = classify(kernel)
    found = {}
    for s in fold.foldings(layer, ZYNQ.floats):
        assert s.lanes[0] == 1
        found[s.lanes[1]] = s.ii
        assert cost.cycles(s) == 10 * outputs // s.lanes[1] * s.ii
    assert found == intervals


def test_the_interval_stands_in_the_source_with_what_it_rests_on() -> None:
    for pick, ii, distance in ((0, 2, 4), (-1, 5, 1)):
        graph, choice = chosen(linear(4, 10), pick)
        source = source_of(graph, choice)
        assert f"#pragma HLS pipeline II={ii}" in source
        promised = re.findall(r"dependence variable=acc type=inter direction=RAW distance=(\d+)", source)
        assert promised == ([str(distance)] if distance > 1 else [])


def source_of(graph: Any, choice: Choice) -> str:
    plan = project(dataflow.lower(graph, forms_of(choice), 64), graph, PROFILE, golden(linear(1, 1)))
    return next(text for name, text in plan.files.items() if name.endswith("sums.cpp")).decode()


def test_integers_have_no_interval_and_no_float_header() -> None:
    for seed in range(4):
        graph = graph_of(network(seed)[0])
        choice = fpga_runner.random_choice(graph, random.Random(seed))
        assert all("ii=" not in c.form.describe() for _, c in choice.picked)
        files = project(dataflow.lower(graph, forms_of(choice), 64), graph, PROFILE, golden(network(seed)[0])).files
        assert "src/cuvil_hls_float.h" not in files
        assert not any(b"hls_math" in text or b"near(" in text for text in files.values())


@pytest.mark.parametrize("pe", [1, 2, 4])
def test_multipliers_and_adders_of_floats(pe: int) -> None:
    (kernel,) = graph_of(linear(4, 10)).kernels
    layer = classify(kernel)
    pick = next(s for s in fold.foldings(layer, ZYNQ.floats) if s.lanes[1] == pe)
    add, mul = ZYNQ.floats["add"], ZYNQ.floats["mul"]
    assert cost.resources(pick, ZYNQ).dsp == pe * (add.dsp + mul.dsp)
    assert cost.resources(pick, AGILEX7).dsp == pe  # one block multiplies and adds


@pytest.mark.parametrize("fabric", [*FABRICS.values(), AGILEX7])
def test_every_operator_has_a_cost(fabric: Fabric) -> None:
    assert set(fabric.floats) == set(CORES)
    x = Load("f32", "x", ())
    for op, row in SCALARS.items():
        if row.cores is not None:
            taken = cores(Apply("f32", op, (x, x)))
            assert set(taken) <= set(CORES)
            assert taken or op in ("neg", "abs", "bitcast")  # wires
    assert cores(Apply("i8", "add", (Load("i8", "x", ()),) * 2)) == ()


def test_a_recurrence_is_what_lies_between_two_steps() -> None:
    table = dict.fromkeys(CORES, FloatCore(0, 0, 0, 7)) | {"add": FloatCore(0, 0, 0, 5)}
    (dot,) = graph_of(linear(2, 9)).kernels
    assert dot.reduce is not None
    assert recurrence(dot.reduce, table) == 5  # the product isn't in it
    b = Builder([("x", TensorType((1, 9), "i8"))])
    (whole,) = graph_of(b.finish([("y", b.op(ops.ReduceSum((1,), True, "i16"), b.input(0)))])).kernels
    assert whole.reduce is not None
    assert recurrence(whole.reduce, table) == 0


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "f64"])
@pytest.mark.parametrize("target", ["pynq-z2", "agilex"])
def test_other_floats_are_refused_with_a_reason(dtype: str, target: str) -> None:
    b = Builder([("x", TensorType((1, 4), dtype))])
    program = b.finish([("y", b.op(ops.Exp(), b.op(ops.Relu(), b.input(0))))])
    profile = load_profile(target)
    with pytest.raises(Unsupported, match=rf"works on {dtype}; of floats the fabric of {profile.name} computes f32"):
        api.divide(program, load_adapter(profile.adapter), profile)


def test_weights_that_padding_would_spoil() -> None:
    b = Builder([("x", TensorType((1, 2, 5, 5), "f32"))], "padded")
    w = np.ones((3, 2, 3, 3), np.float32)
    w[1, 1, 2, 2] = np.inf
    conv = ops.Conv((1, 1), (1, 1, 1, 1), (1, 1))
    graph, choice = chosen(b.finish([("y", b.op(conv, b.input(0), b.const(w)))]), 0)
    with pytest.raises(Unsupported, match="padding is streamed as zeros"):
        dataflow.lower(graph, forms_of(choice), 64)


def test_without_a_precision_a_float_model_is_told_of_both_ways() -> None:
    with pytest.raises(CuvilError, match=r"calibration=.*precision='float32'"):
        choose_precision(linear(2, 3), None, False, load_profile("pynq-z2"))


def test_a_stream_narrower_than_an_element(tmp_path: Path) -> None:
    path = tmp_path / "narrow.yaml"
    lines = ["schema: cuvil-profile/1", "name: narrow", "extends: pynq-z2", "settings: {axi_stream_bits: 16}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ProfileError, match=r"axi_stream_bits.*16 bits can't carry an element of port \w+ \(f32\)"):
        ZynqAdapter().offer(graph_of(linear(2, 3)), load_profile(path))


# -- what the processor runs ------------------------------------------------------------------------------------------


def mixed(ends: bool) -> Program:
    """tanh, int8 layer, tanh, int8 layer, tanh; or all of it in floats."""
    b = Builder([("x", TensorType((1, 4), "f32"))])
    x = b.op(ops.Tanh(), b.input(0))
    for _ in range(2):
        if ends:
            q = b.op(ops.Quantize((0.1,), (0,), "i8"), x)
            total = b.op(ops.Linear(0, (0,), "i20"), q, b.const(np.eye(4, dtype=np.int8)))
            x = b.op(ops.Dequantize((0.1,), (0,)), b.op(ops.Rescale((1 << 20,), (20,), "i8"), total))
        else:
            x = b.op(ops.Linear(), x, b.const(np.eye(4, dtype=np.float32)))
        x = b.op(ops.Tanh(), x)
    return b.finish([("y", b.op(ops.Reshape((4,)), x))])


def nothing(*_: Any) -> str | None:
    return None


def steps(program: Program, float_ends: bool) -> tuple[Sequence[str], Sequence[str]]:
    parts = split(program, nothing, float_ends=float_ends)
    return [s.op for s in parts.prologue.steps], [s.op for s in parts.epilogue.steps]


def test_floats_at_the_ends_of_a_quantized_program_are_the_processors() -> None:
    assert steps(mixed(True), True) == (["tanh", "quantize"], ["dequantize", "tanh", "reshape"])
    assert steps(mixed(True), False) == ([], [])


def test_of_an_all_float_program_the_processor_only_rearranges() -> None:
    assert steps(mixed(False), True) == ([], ["reshape"])


# -- designs ----------------------------------------------------------------------------------------------------------


@pytest.mark.needs("g++")
def test_the_testbench_tells_near_from_far(tmp_path: Path) -> None:
    b = Builder([("x", TensorType((1, 3, 4), "f32")), ("q", TensorType((1, 5), "i8"))], "bench")
    y = b.op(ops.Softmax(2), b.op(ops.Exp(), b.input(0)))
    program = b.finish([("y", y), ("z", b.op(ops.Clamp(-5, 5), b.input(1)))])
    expected = golden(program.clone())
    graph, choice = chosen(program, 0)
    project(dataflow.lower(graph, forms_of(choice), 64), graph, PROFILE, expected).write(tmp_path)
    include = ["-I", str(data.folder("sim") / "hls"), "-I", str(tmp_path / "src")]
    argv = ["g++", "-std=c++14", "-w", *include, "src/bench.cpp", "tb/testbench.cpp", "-o", "bench"]
    subprocess.run(argv, cwd=tmp_path, check=True)

    def run(text: str) -> tuple[int, str]:
        (tmp_path / "tb/golden.txt").write_text(text)
        done = subprocess.run(["./bench"], cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    text = (tmp_path / "tb/golden.txt").read_text()
    lines = text.splitlines()
    assert run(text)[0] == 0
    words = lines[3].split()  # y of the first sample: 12 floats in 6 words
    assert len(words) == 6
    low = int(words[2], 16)
    for change, status in ((2, 0), (1 << 16, 1)):  # of the lower float: units in the last place
        words[2] = f"{low + change:x}"
        code, said = run("\n".join([*lines[:3], " ".join(words), *lines[4:]]))
        assert code == status
        assert said.endswith(f"{status} wrong\n")
    words = lines[4].split()
    words[0] = f"{int(words[0], 16) ^ 1:x}"
    assert run("\n".join([*lines[:4], " ".join(words), *lines[5:]]))[0] == 1  # integers: every bit


@pytest.mark.needs("g++")
def test_a_kernel_whose_result_nobody_reads() -> None:
    b = Builder([("x", TensorType((1, 6), "f32"))], "dead")
    used, unused = b.op(ops.Exp(), b.input(0)), b.op(ops.ReduceSum((1,)), b.input(0))
    graph, choice = chosen(b.finish([("y", used), ("z", unused)]), 0)
    unread = graph.outputs[1]
    buffers = {**graph.buffers, unread: replace(graph.buffers[unread], role="temp")}
    graph = replace(graph, buffers=buffers, outputs=graph.outputs[:1])
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(1, 1, 6)
    with fpga_runner.loaded(graph, choice, ("-O0", "-DCUVIL_SIM_BOUNDED")) as simulation:
        (got,), _ = simulation.run([x])
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-6)

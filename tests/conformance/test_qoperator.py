"""Quantized ONNX without QuantizeLinear pairs: QLinear*, ConvInteger, MatMulInteger and DynamicQuantizeLinear.

Random cases against NumPy integers written apart from the product, on the processor and on a streaming design.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.program import evaluate
from cuvil_hw.passes.pipeline import run_pipeline
from tests.support import fpga_runner
from tests.support.onnx_oracle import runtime, saturates
from tests.support.qdq_oracle import Array, Integers, Oracle, convolve

pytestmark = [pytest.mark.must_run, pytest.mark.needs("cc", "g++")]
CASES = 12  # of each operator, in one model


@dataclass(frozen=True)
class Case:
    """One node: its run-time inputs, constants, the result's type, and what NumPy gives."""

    node: onnx.NodeProto
    inputs: dict[str, Array]
    constants: dict[str, Array]
    want: Array


def whole(rng: np.random.Generator, dtype: str, shape: Sequence[int]) -> Array:
    """Integers over the whole range, the ends often."""
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, tuple(shape), endpoint=True)
    return np.where(rng.random(tuple(shape)) < 0.3, rng.choice([info.min, info.max], tuple(shape)), x).astype(dtype)


def scale(rng: np.random.Generator, shape: Sequence[int] = ()) -> Array:
    return np.asarray(rng.uniform(0.004, 0.1, tuple(shape)), np.float32)


def saturated(q: Array, dtype: str) -> Array:
    return np.clip(q, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)


def spatial(rng: np.random.Generator) -> tuple[Array, dict[str, Any], tuple[int, ...], int]:
    """An input, attributes of a convolution, the shape of its weights, and its groups."""
    c, h, w, k = (int(v) for v in (rng.integers(1, 5), rng.integers(3, 8), rng.integers(3, 8), rng.integers(1, 4)))
    group = c if rng.random() < 0.3 else 1
    pads = [int(v) for v in rng.integers(0, k, 4)]
    strides = [int(v) for v in rng.integers(1, 3, 2)]
    attributes = {"kernel_shape": [k, k], "strides": strides, "pads": pads, "group": group}
    out = c if group == c and c > 1 else int(rng.integers(1, 6))
    x = whole(rng, str(rng.choice(["int8", "uint8"])), (1, c, h, w))
    return x, attributes, (out, c // group, k, k), group


def qlinear_conv(rng: np.random.Generator, n: str) -> Case:
    x, attributes, shape, group = spatial(rng)
    w_dtype = "int8" if x.dtype == np.int8 else str(rng.choice(["int8", "uint8"]))
    w, each = whole(rng, w_dtype, shape), rng.random() < 0.5 and w_dtype == "int8"
    zeros = (0, 0, int(rng.integers(100)))
    xs, ws, ys = scale(rng), scale(rng, (shape[0],) if each else ()), np.float32(scale(rng) * 40)
    xz, yz = whole(rng, x.dtype.name, ()), whole(rng, x.dtype.name, ())
    wz = np.zeros(ws.shape, w_dtype) if each else np.asarray(rng.choice(zeros), w_dtype)
    bias = rng.integers(-5000, 5000, shape[0]).astype(np.int32)
    acc = convolve(x.astype(np.int64) - int(xz), w.astype(np.int64) - int(wz.max()), attributes["strides"],
                   attributes["pads"], group) + bias.reshape(1, -1, 1, 1)  # fmt: skip
    ratios = np.float64(xs) * np.atleast_1d(ws).astype(np.float64) / np.float64(ys)
    constants = {"xs": xs, "xz": xz, "w": w, "ws": ws, "wz": wz, "ys": ys, "yz": yz, "b": bias}
    node = helper.make_node("QLinearConv", [f"{n}{v}" for v in ("x", *constants)], [f"{n}y"], **attributes)
    real = acc * ratios.reshape(1, -1, 1, 1)
    want = saturated(np.rint(real).astype(np.int64) + int(yz), x.dtype.name)
    return Case(node, {f"{n}x": x}, {n + k: v for k, v in constants.items()}, want)


def qlinear_matmul(rng: np.random.Generator, n: str) -> Case:
    m, k, o = (int(v) for v in rng.integers(1, 9, 3))
    dtype = str(rng.choice(["int8", "uint8"]))
    a, b = whole(rng, dtype, (m, k)), whole(rng, dtype, (k, o))
    scales, zeros = [scale(rng), scale(rng), np.float32(scale(rng) * 30)], [whole(rng, dtype, ()) for _ in range(3)]
    acc = (a.astype(np.int64) - int(zeros[0])) @ (b.astype(np.int64) - int(zeros[1]))
    ratio = np.atleast_1d(np.float64(scales[0]) * np.float64(scales[1]) / np.float64(scales[2]))
    names = [f"{n}{v}" for v in ("a", "as", "az", "b", "bs", "bz", "ys", "yz")]
    node = helper.make_node("QLinearMatMul", names, [f"{n}y"])
    constants = dict(zip([names[i] for i in (1, 2, 4, 5, 6, 7)], [scales[0], zeros[0], scales[1], zeros[1], scales[2],
                     zeros[2]], strict=True))  # fmt: skip
    inputs = {names[0]: a}
    (inputs if rng.random() < 0.4 else constants)[names[3]] = b
    want = saturated(np.rint(acc * ratio).astype(np.int64) + int(zeros[2]), dtype)
    return Case(node, inputs, constants, want)


def qlinear_add(rng: np.random.Generator, n: str) -> Case:
    shape, dtype = tuple(int(v) for v in rng.integers(1, 6, 3)), str(rng.choice(["int8", "uint8"]))
    parts = [(whole(rng, dtype, shape), scale(rng), whole(rng, dtype, ())) for _ in range(2)]
    ys, yz = np.float32(scale(rng) * 2), whole(rng, dtype, ())
    reals = [Integers(q.astype(np.int64), np.atleast_1d(np.float64(s)), int(z)) for q, s, z in parts]
    oracle = Oracle(onnx.ModelProto())
    want = oracle.QuantizeLinear([oracle.Add(reals, {}), ys, yz], {}).q.astype(dtype)
    names = [f"{n}{v}" for v in ("a", "as", "az", "b", "bs", "bz", "ys", "yz")]
    node = helper.make_node("QLinearAdd", names, [f"{n}y"], domain="com.microsoft")
    flat = [v for part in parts for v in part] + [ys, yz]
    given = dict(zip(names, flat, strict=True))
    inputs = {name: given.pop(name) for name in (names[0], names[3])}
    return Case(node, inputs, given, want)


def conv_integer(rng: np.random.Generator, n: str) -> Case:
    x, attributes, shape, group = spatial(rng)
    w = whole(rng, x.dtype.name, shape)
    zeros = [whole(rng, x.dtype.name, ()), whole(rng, x.dtype.name, ())]
    acc = convolve(x.astype(np.int64) - int(zeros[0]), w.astype(np.int64) - int(zeros[1]), attributes["strides"],
                   attributes["pads"], group)  # fmt: skip
    node = helper.make_node("ConvInteger", [f"{n}{v}" for v in ("x", "w", "xz", "wz")], [f"{n}y"], **attributes)
    constants = {f"{n}w": w, f"{n}xz": zeros[0], f"{n}wz": zeros[1]}
    return Case(node, {f"{n}x": x}, constants, acc.astype(np.int32))


def matmul_integer(rng: np.random.Generator, n: str) -> Case:
    m, k, o = (int(v) for v in rng.integers(1, 9, 3))
    a, b = (whole(rng, str(rng.choice(["int8", "uint8"])), s) for s in ((m, k), (k, o)))
    az, bz = whole(rng, a.dtype.name, ()), whole(rng, b.dtype.name, (o,) if rng.random() < 0.4 else ())
    acc = (a.astype(np.int64) - int(az)) @ (b.astype(np.int64) - bz.astype(np.int64))
    names = [f"{n}{v}" for v in ("a", "b", "az", "bz")]
    return Case(helper.make_node("MatMulInteger", names, [f"{n}y"]), {names[0]: a},
                {names[1]: b, names[2]: az, names[3]: bz}, acc.astype(np.int32))  # fmt: skip


def model_of(cases: Sequence[Case]) -> onnx.ModelProto:
    def info(name: str, array: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    graph = helper.make_graph(
        [c.node for c in cases], "cases", [info(n, a) for c in cases for n, a in c.inputs.items()],
        [info(c.node.output[0], c.want) for c in cases],
        [numpy_helper.from_array(np.asarray(a), n) for c in cases for n, a in c.constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def on_zynq(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    program = load_onnx(model)
    run_pipeline(program, ["fold", "batch-norm", "integerize", "accumulators"])
    graph = fpga_runner.graph_of(program)
    choice = fpga_runner.random_choice(graph, random.Random(0))
    with fpga_runner.loaded(graph, choice, ("-O0",)) as simulation:
        return [result[0] for result in simulation.run([x[None] for x in inputs])[0]]


@pytest.mark.slow
@pytest.mark.parametrize("make", [qlinear_conv, qlinear_matmul, qlinear_add, conv_integer, matmul_integer])
def test_random_nodes_have_the_bits_of_integer_arithmetic(make: Callable[[np.random.Generator, str], Case]) -> None:
    cases = [make(np.random.default_rng(seed), f"n{seed}_") for seed in range(CASES)]
    model = model_of(cases)
    inputs = {name: a for case in cases for name, a in case.inputs.items()}
    with cuvil.compile(model, "cpu") as program:
        found = {"cpu": program(**inputs), "zynq": on_zynq(model, list(inputs.values()))}
    for target, results in found.items():
        for case, got in zip(cases, results, strict=True):
            assert got.dtype == case.want.dtype
            np.testing.assert_array_equal(got, case.want, err_msg=f"{target}: {case.node.output[0]}")
    if saturates():  # what this test computes itself is all there is to compare with on such a processor
        return
    for case, theirs in zip(cases, runtime(model, inputs), strict=True):  # which rounds through floats
        assert np.abs(case.want.astype(np.int64) - theirs).max() <= (0 if make in (conv_integer, matmul_integer) else 1)


def test_dynamic_quantization_has_the_bits_of_onnx_runtime() -> None:
    rng = np.random.default_rng(0)
    # Not all zeros: ONNX's formula gives the scale 0 then, ONNX Runtime 1; the reals are 0 either way.
    rows = [rng.normal(size=(3, 5)) * s + o for s, o in [(1, 0), (30, 5), (1e-3, 1), (2, -9), (0, 3), (5, 100)]]
    for row in rows:
        x = row.astype(np.float32)
        node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
        kinds = [("y", TensorProto.UINT8, x.shape), ("s", TensorProto.FLOAT, ()), ("z", TensorProto.UINT8, ())]
        graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                                  [helper.make_tensor_value_info(*kind) for kind in kinds])  # fmt: skip
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
        for got, want in zip(evaluate(load_onnx(model), [x]), runtime(model, {"x": x}), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)

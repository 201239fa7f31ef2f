"""Trained models, whole way: compiled, run on the Zynq simulator and on this processor, against independent oracles.

The four quantized models of MLPerf Tiny must give the bits of a NumPy oracle in float64 (qdq_oracle.py), which stays
within one quantization step of ONNX Runtime; float models stay within 1e-4 of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import cuvil
from cuvil_hw.runtime.executable import Executable
from tests.support.qdq_oracle import Array, Oracle

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++")]

QUANTIZED = ["ad_deep_autoencoder", "ic_resnet", "kws_ref_model", "vww_mobilenet_v1"]
FLOAT = ["ad_float", "ic_resnet_float", "kws_float", "vww_96_float", "mnist_conv", "espcn_float"]
SAMPLES = 100


@cache
def quantized(models: Path, name: str) -> onnx.ModelProto:
    """The model up to its last DequantizeLinear: softmax has no integers."""
    model = onnx.load(models / f"{name}.onnx")
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        model.graph.output[0].name = last.input[0]
        model.graph.node.remove(last)
    assert model.graph.node[-1].op_type == "DequantizeLinear"
    return model


def shape_of(model: onnx.ModelProto) -> tuple[int, ...]:
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    assert shape[0] == 1
    return shape[1:]


def input_scale(model: onnx.ModelProto) -> tuple[np.float32, int]:
    """Scale and zero point of the first QuantizeLinear."""
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    first = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in constants)
    return np.float32(constants[first.input[1]]), int(constants[first.input[2]])


@cache
def inputs(models: Path, name: str) -> Array:
    """(100, …): ends of the range, beyond it, zeros, ramps, single elements, borders of quantization, noise."""
    model = quantized(models, name)
    scale, zero = input_scale(model)
    shape, rng = shape_of(model), np.random.default_rng(len(name))
    low, high = np.float32(-128 - zero) * scale, np.float32(127 - zero) * scale
    x = np.empty((SAMPLES, *shape), np.float32)
    flat = x.reshape(SAMPLES, -1)
    flat[0], flat[1], flat[2], flat[3] = low, high, 0, -0.0
    flat[4], flat[5] = low * 1e6 - 1, high * 1e6 + 1
    flat[6] = np.linspace(low, high, flat.shape[1])
    flat[7] = np.where(np.arange(flat.shape[1]) % 2, low, high)
    for n in range(8, 16):
        flat[n] = 0
        flat[n, rng.integers(flat.shape[1])] = rng.choice([low, high])
    for n in range(16, 32):  # half a step between two integers, and the floats just beside it
        middle = (rng.integers(-128, 128, flat.shape[1]) - zero + np.float32(0.5)).astype(np.float32) * scale
        beside = rng.choice([-1, 0, 1], flat.shape[1])
        towards = np.where(beside > 0, np.inf, -np.inf).astype(np.float32)
        flat[n] = np.where(beside == 0, middle, np.nextafter(middle, towards))
    for n in range(32, 64):
        flat[n] = (rng.integers(-128, 128, flat.shape[1]) - zero).astype(np.float32) * scale
    for n in range(64, SAMPLES):
        flat[n] = rng.normal(rng.uniform(low / 2, high / 2), rng.uniform(scale, high / 2), flat.shape[1])
    x.setflags(write=False)
    return x


@cache
def expected(models: Path, name: str) -> tuple[Array, Array]:
    """(integers, f32) of the oracle."""
    parts = [Oracle(quantized(models, name)).run(part) for part in np.array_split(inputs(models, name), 4)]
    return np.concatenate([q for q, _ in parts]), np.concatenate([f for _, f in parts])


def onnx_runtime(model: onnx.ModelProto, x: Array) -> Array:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: sample[None]})[0] for sample in x])


@pytest.fixture(scope="module")
def compiled(models: Path) -> Iterator[Callable[[str, str], Executable]]:
    """compiled(name, target), once each."""
    made: dict[tuple[str, str], Executable] = {}

    def get(name: str, target: str) -> Executable:
        if (name, target) not in made:
            made[name, target] = cuvil.compile(quantized(models, name), target)
        return made[name, target]

    yield get
    for executable in made.values():
        executable.close()


@pytest.mark.slow
@pytest.mark.share(name=2)
@pytest.mark.parametrize("target", ["pynq-z2", "cpu"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_every_bit_of_the_quantized_models(
    models: Path, compiled: Callable[[str, str], Executable], name: str, target: str
) -> None:
    _, wanted = expected(models, name)
    got = compiled(name, target)(inputs(models, name))
    assert got.dtype == np.float32
    assert got.shape == wanted.shape
    wrong = np.argwhere(got != wanted)
    assert len(wrong) == 0, f"{len(wrong)} of {wanted.size} elements, first sample and place {wrong[0]}"


@pytest.mark.slow
@pytest.mark.share(name=2)
@pytest.mark.parametrize("name", QUANTIZED)
def test_the_oracle_agrees_with_onnx_runtime(
    models: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    """ONNX Runtime rounds through floats between layers, so single steps may differ."""
    model = quantized(models, name)
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    step = float(constants[model.graph.node[-1].input[1]])
    usual = inputs(models, name)[32:]  # values that a network is made for, as far as noise can be that
    _, mine = expected(models, name)
    theirs = onnx_runtime(model, usual)
    steps = np.abs(np.rint((mine[32:] - theirs) / step))
    record_property("share_equal", float((steps == 0).mean()))
    print(f"{name}: {(steps == 0).mean():.2%} of the elements are equal, {int(steps.max())} step(s) at most")
    assert steps.max() <= 1
    assert (steps == 0).mean() > 0.9


@pytest.mark.slow
def test_softmax_at_the_end_runs_on_the_processor(models: Path) -> None:
    path = models / "kws_ref_model.onnx"
    x = inputs(models, "kws_ref_model")[32:48]
    with cuvil.compile(path, "pynq-z2") as program:
        got = program(x)
        assert [h["op"] for h in program.report["host"]][-2:] == ["dequantize", "softmax"]
    scores = expected(models, "kws_ref_model")[1][32:48].astype(np.float64)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.share(name=2)
@pytest.mark.parametrize("name", FLOAT)
def test_float_models_on_the_processor(models: Path, name: str) -> None:
    model = onnx.load(models / f"{name}.onnx")
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    rng = np.random.default_rng(1)
    x = np.concatenate([
        np.zeros((1, *shape[1:])), np.ones((1, *shape[1:])), -np.ones((1, *shape[1:])),
        rng.standard_normal((5, *shape[1:])), rng.uniform(0, 1, (4, *shape[1:])),
    ]).astype(np.float32)  # fmt: skip
    with cuvil.compile(models / f"{name}.onnx", "cpu") as program:
        got = np.concatenate([program(sample[None]) for sample in x])
    np.testing.assert_allclose(got, onnx_runtime(model, x), rtol=1e-4, atol=1e-4)


def test_the_oracle_can_fail(models: Path) -> None:
    """Another weight, rounding or zero point in the model changes what the oracle expects."""
    model = onnx.ModelProto()
    model.CopyFrom(quantized(models, "ad_deep_autoencoder"))
    x = inputs(models, "ad_deep_autoencoder")[:8]
    before, _ = Oracle(model).run(x)
    weights = next(i for i in model.graph.initializer if onnx.numpy_helper.to_array(i).ndim == 2)
    array = onnx.numpy_helper.to_array(weights).copy()
    array[0] = -array[0]
    weights.CopyFrom(onnx.numpy_helper.from_array(array, weights.name))
    after, _ = Oracle(model).run(x)
    assert (before != after).any()

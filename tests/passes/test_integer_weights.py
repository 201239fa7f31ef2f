"""Weights that a file holds as integers, beside floats: as narrow in the artifact, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import cuvil
from cuvil_hw.adapters.cpu.adapter import CpuAdapter
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.program import evaluate
from cuvil_hw.passes.pipeline import run_pipeline
from tests.support.onnx_oracle import floats, graph_model, runtime


def net(w: np.ndarray, scale: Any, zero: Any, bias: bool) -> onnx.ModelProto:
    consts = {"w": w, "s": np.float32(scale), "z": np.asarray(zero, w.dtype), "b": floats(w.shape[1])}
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["r"], axis=1)]
    nodes += [helper.make_node("Gemm" if bias else "MatMul", ["x", "r", *(["b"] if bias else [])], ["h"])]
    nodes += [helper.make_node("Tanh", ["h"], ["y"])]
    return graph_model(nodes, {"x": floats(3, w.shape[0])}, ["y"], 21, consts)


def whole(dtype: type, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(0).integers(info.min, info.max, shape, endpoint=True).astype(dtype)


EACH = np.linspace(1e-4, 3e-4, 200).astype(np.float32)
CASES = [(np.int8, 2e-4, 0), (np.int8, EACH, np.zeros(200)), (np.uint8, 2e-4, 128), (np.uint8, EACH, np.full(200, 7)),
         (np.int16, 2e-6, 0), (np.uint16, 2e-6, 32768)]  # fmt: skip


@pytest.mark.needs("cc")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "scale", "zero"), CASES)
def test_linear_layers_keep_integers(dtype: type, scale: Any, zero: Any, bias: bool) -> None:
    w, x = whole(dtype, 300, 200), floats(3, 300)
    model = net(w, scale, zero, bias)
    with cuvil.compile(model, "cpu") as program:
        np.testing.assert_allclose(program(x), runtime(model, {"x": x})[0], rtol=1e-4, atol=1e-5)
        stored = sum(len(data) for name, data in program.artifact.files.items() if "weights" in name)
    # 8 bits less a zero point fit 9, so two bytes unless the zero point is the middle.
    narrow = dtype is np.int8 or (dtype is np.uint8 and np.all(zero == 128))
    assert stored < w.size * (1.1 if narrow else 2.1)


@pytest.mark.needs("cc")
def test_tables_keep_integers() -> None:
    table, ids = whole(np.int8, 500, 64), np.int64([[1, 2, 499], [0, 7, 250]])
    nodes = [helper.make_node("DequantizeLinear", ["t", "s", "z"], ["r"]),
             helper.make_node("Gather", ["r", "ids"], ["y"])]  # fmt: skip
    consts = {"t": table, "s": np.float32(0.02), "z": np.int8(3)}
    model = graph_model(nodes, {"ids": ids}, ["y"], 21, consts)
    with cuvil.compile(model, "cpu") as program:
        np.testing.assert_array_equal(program(ids), runtime(model, {"ids": ids})[0])


def test_the_pass_has_the_meaning_of_floats() -> None:
    model, x = net(whole(np.uint8, 30, 20), EACH[:20], np.full(20, 7), True), floats(3, 30)
    program = load_onnx(model)
    run_pipeline(program, ["fold", "batch-norm", "integer-weights", "fold{dequantize=true}"])
    np.testing.assert_allclose(evaluate(program, [x])[0], runtime(model, {"x": x})[0], rtol=1e-4, atol=1e-5)
    assert "i16" in str(program.module)


def test_other_targets_take_floats() -> None:
    """They have no linear layer of floats and integers."""
    cuvil.compile(net(whole(np.int8, 30, 20), 1e-3, 0, True), "h100").close()


@pytest.mark.needs("cc")
@pytest.mark.parametrize("says", [None, False])
def test_an_adapter_need_not_say_that_it_takes_integers(says: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if says is None:
        monkeypatch.delattr(CpuAdapter, "integer_weights")
    else:
        monkeypatch.setattr(CpuAdapter, "integer_weights", says)
    model, x = net(whole(np.int8, 30, 20), 1e-3, 0, True), floats(3, 30)
    with cuvil.compile(model, "cpu") as program:
        np.testing.assert_allclose(program(x), runtime(model, {"x": x})[0], rtol=1e-4, atol=1e-5)
        assert sum(len(data) for name, data in program.artifact.files.items() if "weights" in name) >= 4 * 30 * 20

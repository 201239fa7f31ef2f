"""Real models against ONNX Runtime. ONNX's own tests are in tests/conformance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.level1 import TensorOp, loc_of
from cuvil_hw.ir.program import Program
from tests.support.onnx_oracle import floats, run, runtime

FLOAT = ["ad_float", "ic_resnet_float", "kws_float", "vww_96_float", "mnist_conv", "espcn_float"]
QUANTIZED = ["ad_deep_autoencoder", "ic_resnet", "kws_ref_model", "vww_mobilenet_v1"]


def compare(models: Path, name: str) -> tuple[Program, list[tuple[np.ndarray, np.ndarray]]]:
    """(program, (ours, ONNX Runtime's) of its first output on three inputs)."""
    proto = onnx.load(models / f"{name}.onnx")
    program = load_onnx(models / f"{name}.onnx")
    pairs = []
    for seed in range(3):
        inputs = {n: floats(*t.shape, seed=seed, scale=(0.3, 1, 4)[seed]) for n, t in program.inputs}
        pairs.append((run(program, inputs)[0], runtime(proto, inputs)[0]))
    return program, pairs


@pytest.mark.parametrize("name", FLOAT)
def test_float_models(models: Path, name: str) -> None:
    program, pairs = compare(models, name)
    for got, want in pairs:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert program.name == name
    assert all(loc_of(o).startswith("onnx node") for o in program.ops() if isinstance(o, TensorOp))


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_models_agree_to_one_step(models: Path, name: str) -> None:
    program, pairs = compare(models, name)
    last = [o.op for o in program.ops() if isinstance(o, TensorOp) and o.spec.mnemonic == "dequantize"][-1]
    step = max(last.scale)  # type: ignore[attr-defined]
    for got, want in pairs:
        assert np.abs(got - want).max() <= step * 1.001

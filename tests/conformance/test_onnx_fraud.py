"""A pipeline of two models, gradient-boosted trees and a scaled network, compiled as one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import compose

import cuvil

MODELS = ["fraud_lgbm", "fraud_mlp"]
SAMPLES = 16


def run(path: Path, **inputs: Any) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    results: list[Any] = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, inputs)
    return results


@pytest.mark.slow
@pytest.mark.needs("cc")
def test_fraud_models_as_one_program(models: Path) -> None:
    """Labels equal ONNX Runtime's, probabilities within 1e-6 of it, NaN routed as in its trees."""
    parts = [onnx.load(models / f"{name}.onnx") for name in MODELS]
    (scaler,) = [n for n in parts[1].graph.node if n.op_type == "Scaler"]
    offset, scale = (np.float32(a.floats) for a in sorted(scaler.attribute, key=lambda a: a.name))
    whole, other = (compose.add_prefix(p, prefix) for p, prefix in zip(parts, ("trees_", "net_"), strict=True))
    for field in ("node", "input", "output", "initializer"):
        getattr(whole.graph, field).extend(getattr(other.graph, field))
    whole.ir_version = 8
    for opset in whole.opset_import:
        opset.version = opset.version if opset.domain else 18
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(SAMPLES, 23)) * 2 / scale + offset).astype(np.float32)
    holes = np.where(rng.random(x.shape) < 0.1, np.float32(np.nan), x)
    compiled = cuvil.compile(whole, "cpu", shapes={"trees_x": x.shape, "net_X": x.shape})
    with compiled:
        got = compiled(trees_x=holes, net_X=x)
    want = run(models / "fraud_lgbm.onnx", x=holes) + run(models / "fraud_mlp.onnx", X=x)
    for have, expected in zip(got, want, strict=True):
        assert have.dtype == expected.dtype
        np.testing.assert_allclose(have, expected.reshape(have.shape), rtol=0, atol=1e-6)

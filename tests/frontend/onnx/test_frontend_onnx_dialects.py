"""ai.onnx.ml against ONNX Runtime, also on real models. QONNX is in tests/conformance/test_qonnx.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from cuvil_hw.errors import Unsupported
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.program import evaluate
from tests.support.onnx_oracle import floats

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def model(
    op: str, outputs: Sequence[str], x: Any, *operands: str, domain: str = "ai.onnx.ml", **attributes: Any
) -> Any:
    node = helper.make_node(op, ["x", *operands], list(outputs), domain=domain, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", kind, np.shape(x))],
                              [onnx.ValueInfoProto(name=o) for o in outputs])  # fmt: skip
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid(domain, 3 if domain == "ai.onnx.ml" else 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def agrees(proto: onnx.ModelProto, x: Any, rtol: float = 1e-6) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    want = session.run(None, {"x": x})
    got = evaluate(load_onnx(proto), [x])
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w.reshape(g.shape), rtol=rtol, atol=1e-6)
    return got


def trees(
    rng: np.random.Generator, prefix: str, ids: int, modes: Sequence[str], positive: bool = False
) -> dict[str, Any]:
    """Three random trees of depth 3 on four features, whose thresholds are values that samples really have."""
    columns: dict[str, list[Any]] = {k: [] for k in (
        "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes", "nodes_truenodeids",
        "nodes_falsenodeids", "nodes_missing_value_tracks_true", f"{prefix}_treeids", f"{prefix}_nodeids",
        f"{prefix}_ids", f"{prefix}_weights")}  # fmt: skip
    for tree in range(3):
        for node in range(15):
            leaf = node >= 7
            mode = "LEAF" if leaf else str(rng.choice(modes))
            children = (0, 0) if leaf else (2 * node + 1, 2 * node + 2)
            feature, threshold = int(rng.integers(4)), float(rng.integers(-2, 3))
            row = (tree, node, feature, threshold, mode, *children, int(rng.integers(2)))
            for key, value in zip(columns, row, strict=False):
                columns[key].append(value)
            if leaf:
                weight = float(rng.normal())
                for key, value in zip(list(columns)[8:], (tree, node, int(rng.integers(ids)), weight), strict=True):
                    columns[key].append(abs(value) if positive and key.endswith("weights") else value)
    return columns


def samples(rng: np.random.Generator) -> Any:
    """Many features equal to thresholds, a hair beside them, NaN, infinite."""
    x = rng.integers(-3, 4, (200, 4)).astype(np.float32)
    x = np.where(rng.random(x.shape) < 0.2, np.nextafter(x, np.float32(rng.choice([-9, 9]))), x)
    special = rng.choice(np.float32([np.nan, np.inf, -np.inf, -0.0]), x.shape)
    return np.where(rng.random(x.shape) < 0.2, special, x).astype(np.float32)


@pytest.mark.parametrize("mode", [*MODES, "mixed"])
def test_tree_regressors(mode: str) -> None:
    """Thresholds compared and NaN routed as ONNX Runtime does, for every kind of comparison."""
    rng = np.random.default_rng(len(mode))
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        columns = trees(rng, "target", 1, MODES if mode == "mixed" else [mode])
        columns |= {"n_targets": 1, "aggregate_function": aggregate}
        x = samples(rng)
        agrees(model("TreeEnsembleRegressor", ["y"], x, **columns), x)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [True, False])
def test_tree_classifiers(classes: int, post: str, positive: bool) -> None:
    rng = np.random.default_rng(classes)
    columns = trees(rng, "class", 1 if classes == 2 else 3, ["BRANCH_LEQ"], positive)
    x = samples(rng)
    proto = model("TreeEnsembleClassifier", ["label", "scores"], x, **columns, post_transform=post,
                  classlabels_int64s=[7, 3, 5][:classes])  # fmt: skip
    if classes == 2 and positive and post == "LOGISTIC":
        with pytest.raises(Unsupported, match="LOGISTIC"):
            load_onnx(proto)
        return
    agrees(proto, x)


def test_other_ml_operators() -> None:
    x = floats(6, 4)
    agrees(model("Scaler", ["y"], x, offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 2.0, 0.1, 3.0]), x)
    for norm in ("MAX", "L1", "L2"):
        positive = np.abs(x)  # ONNX Runtime's MAX takes no magnitudes
        agrees(model("Normalizer", ["y"], x, norm=norm), positive)
    agrees(model("Binarizer", ["y"], x, threshold=0.5), x)
    whole = np.int64([[1, 5], [2, 9]])
    agrees(model("LabelEncoder", ["y"], whole, keys_int64s=[1, 2, 1], values_floats=[0.5, 2.5, 9.0],
                 default_float=-3.0), whole)  # fmt: skip
    agrees(model("LinearRegressor", ["y"], x, coefficients=floats(8).tolist(), intercepts=[0.5, -1.0], targets=2), x)
    for post in ("NONE", "LOGISTIC", "SOFTMAX"):
        agrees(model("LinearClassifier", ["l", "s"], x, coefficients=floats(12).tolist(), intercepts=[0.5, -1.0, 0.1],
                     classlabels_ints=[3, 1, 2], post_transform=post), x)  # fmt: skip


@pytest.mark.parametrize(("name", "inputs"), [("fraud_lgbm", "x"), ("fraud_mlp", "X")])
def test_fraud_models(models: Path, name: str, inputs: str) -> None:
    rng = np.random.default_rng(0)
    (scaler,) = [n for n in onnx.load(models / "fraud_mlp.onnx").graph.node if n.op_type == "Scaler"]
    offset, scale = (np.float32(a.floats) for a in sorted(scaler.attribute, key=lambda a: a.name))
    x = (rng.normal(size=(64, 23)) * 2 / scale + offset).astype(np.float32)
    if name == "fraud_lgbm":
        x = np.where(rng.random(x.shape) < 0.1, np.float32(np.nan), x)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(models / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
    want = session.run(None, {inputs: x})
    got = evaluate(load_onnx(models / f"{name}.onnx", shapes={inputs: x.shape}), [x])
    np.testing.assert_array_equal(got[0], want[0].reshape(-1))
    np.testing.assert_allclose(got[1], want[1], atol=1e-6)

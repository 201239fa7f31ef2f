"""Real models against ONNX Runtime, and ONNX's own node tests for every operator that the front end takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.frontend.onnx.table import CONVERTERS
from cuvil_hw.ir.level1 import TensorOp, loc_of
from cuvil_hw.ir.program import Program, evaluate
from tests.unit.onnx_oracle import floats, run, runtime

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


@pytest.mark.parametrize(
    ("name", "op"), [("espcn_qonnx", "onnx.brevitas.Quant ×8"), ("fraud_lgbm", "ai.onnx.ml.TreeEnsembleClassifier ×1")]
)
def test_models_that_are_refused(models: Path, name: str, op: str) -> None:
    with pytest.raises(Unsupported, match=op):
        load_onnx(models / f"{name}.onnx")


@lru_cache
def node_cases() -> dict[str, list[Any]]:
    """ONNX's node tests by operator: those with one node, which the front end has a converter for."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases themselves divide by zero
        cases = load_model_tests(kind="node")
    found: dict[str, list[Any]] = {}
    for case in cases:
        nodes = case.model.graph.node if case.model is not None else []
        if len(nodes) == 1 and (nodes[0].domain, nodes[0].op_type) in CONVERTERS:
            found.setdefault(nodes[0].op_type, []).append(case)
    return found


def as_array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def variants(case: Any) -> Iterator[tuple[onnx.ModelProto, dict[str, Any]]]:
    """The test as it is, and with all inputs but the first as constants, as in real models (a shape is always one)."""
    model, given = case.model, dict(zip((i.name for i in case.model.graph.input), case.data_sets[0][0], strict=True))
    yield model, given
    live = 0 if model.graph.node[0].op_type == "ConstantOfShape" else 1
    if len(given) > live:
        fixed = onnx.ModelProto()
        fixed.CopyFrom(model)
        for info in model.graph.input[live:]:
            value = given[info.name]
            tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value))
            fixed.graph.initializer.add().CopyFrom(tensor)
            fixed.graph.initializer[-1].name = info.name
        yield fixed, given


def passes(model: onnx.ModelProto, given: dict[str, Any], case: Any) -> bool:
    """False where the model is refused; AssertionError where the result is wrong."""
    shapes = {i.name: as_array(given[i.name]).shape for i in model.graph.input}
    for tensor in model.graph.initializer:
        shapes.pop(tensor.name, None)
    try:
        program = load_onnx(model, shapes=shapes)
    except CuvilError:
        return False
    inputs = [as_array(given[n]).astype(to_numpy(t.dtype)) for n, t in program.inputs]
    for got, expected in zip(evaluate(program, inputs), case.data_sets[0][1], strict=True):
        want = as_array(expected)
        want = want.astype(got.dtype) if want.dtype.name in ("int4", "uint4") else want
        assert got.dtype == want.dtype, case.name
        assert got.shape == want.shape, case.name
        np.testing.assert_allclose(got, want, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-6), err_msg=case.name)
    return True


@pytest.mark.parametrize("op", sorted({op for domain, op in CONVERTERS if not domain}))
def test_onnx_node_tests(op: str) -> None:
    """No case may give a wrong result, and at least one must be taken."""
    outcomes = [passes(model, given, case) for case in node_cases().get(op, []) for model, given in variants(case)]
    print(f"{op}: {sum(outcomes)} of {len(outcomes)} pass, the others are refused")
    assert any(outcomes)

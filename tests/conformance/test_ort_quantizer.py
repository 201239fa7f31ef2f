"""Networks as ONNX Runtime's quantizer writes them, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat

import cuvil
from cuvil_hw import api
from cuvil_hw.compile import numbers
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.program import evaluate
from cuvil_hw.target.profile import load_profile
from tests.support.onnx_oracle import saturates
from tests.support.ort_models import NETWORKS, Arrays, dynamics, exported, quantized, results, statics

pytestmark = [
    pytest.mark.needs("cc"),
    pytest.mark.skipif(saturates(), reason="ONNX Runtime's 8-bit products saturate on this processor"),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ort")
    return {name: exported(name, folder) for name in NETWORKS}


def samples(name: str) -> list[Arrays]:
    rng = np.random.default_rng(7)
    return [NETWORKS[name][1](rng) for _ in range(3)]


def meant(path: Path, given: list[Arrays]) -> list[np.ndarray]:
    """By the program that every target gets, evaluated in NumPy."""
    program = load_onnx(path)
    numbers.simplify(program)
    numbers.make_integer(program, api.choose_precision(program, None, False, load_profile("cpu")))
    return [evaluate(program, [sample[n] for n, _ in program.inputs])[0] for sample in given]


def step_of_output(path: Path) -> float:
    """The scale of the DequantizeLinear that gives the result; 0 where floats do."""
    graph = onnx.load(path).graph
    (last,) = [n for n in graph.node if graph.output[0].name in n.output]
    if last.op_type != "DequantizeLinear":
        return 0.0
    return float(next(numpy_helper.to_array(t) for t in graph.initializer if t.name == last.input[1]))


def close(got: list[np.ndarray], want: list[np.ndarray], step: float) -> None:
    """Within one step of the output: ONNX Runtime rounds in floats."""
    a, b = np.concatenate([g.reshape(-1) for g in got]), np.concatenate([w.reshape(-1) for w in want])
    assert np.abs(a - b).max() <= step * 1.01 + 2e-6 * np.abs(b).max()


@pytest.mark.parametrize("form", list(QuantFormat), ids=lambda f: f.name)
@pytest.mark.parametrize("name", list(NETWORKS))
def test_static_quantization(sources: dict[str, Path], name: str, form: QuantFormat) -> None:
    given = samples(name)
    for arguments in statics(form).values():
        path = quantized(name, sources[name], arguments)
        close(meant(path, given), results(path, given), step_of_output(path))


@pytest.mark.parametrize("name", list(NETWORKS))
def test_dynamic_quantization(sources: dict[str, Path], name: str) -> None:
    given = samples(name)
    for arguments in dynamics().values():
        path = quantized(name, sources[name], arguments)
        for got, want in zip(meant(path, given), results(path, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(NETWORKS))
def test_compiled(sources: dict[str, Path], name: str) -> None:
    """One model of each kind, on the processor."""
    given = samples(name)
    kinds: list[dict[str, Any]] = [
        statics(QuantFormat.QDQ)["QUInt8-QInt8-False"],
        statics(QuantFormat.QOperator)["QInt8-QInt8-True"],
        dynamics()["QInt8-True-False"],
    ]
    for arguments in kinds:
        path = quantized(name, sources[name], arguments)
        with cuvil.compile(path, "cpu") as program:
            close([program(**sample) for sample in given], results(path, given), step_of_output(path))

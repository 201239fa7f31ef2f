"""int8 is at least as near to float as ONNX Runtime's quantize_static: some of the networks that
benchmarks/quantized_against_ort.py runs all of."""

from __future__ import annotations

import pytest

from tests.support.quantized_networks import network, onnx_runtime, ours, sqnr


@pytest.mark.share(name=2)
@pytest.mark.parametrize(
    "name", ["mlp, tanh", "cnn, batch norm", "cnn, average pools", "depthwise", "residual", "gru", "attention, causal"]
)
def test_int8_is_as_near_to_float_as_onnx_runtimes(name: str) -> None:
    net = network(name)
    assert sqnr(net.wanted, ours(net)) >= sqnr(net.wanted, onnx_runtime(net))

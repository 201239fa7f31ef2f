"""Networks of the QONNX dialect whose layers must be integers on the device: signs, thresholds, every rounding mode.

The `qonnx` package's execution says what is right.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import cuvil
from tests.conformance.test_qonnx import DOMAIN, MODES, Array, executed

pytestmark = [pytest.mark.must_run, pytest.mark.needs("cc", "g++", "qonnx")]


class Network:
    """One chain of nodes from x (1, inputs)."""

    def __init__(self, seed: int, inputs: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs, self.width, self.last = inputs, inputs, "x"

    def const(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def op(self, kind: str, *more: Any, of: str = "", domain: str = "", **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        inputs = [of or self.last, *map(self.const, more)]
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name

    def then(self, kind: str, *more: Any, **attributes: Any) -> None:
        self.last = self.op(kind, *more, **attributes)

    def layer(self, outputs: int, binary: bool) -> None:
        w = self.const(self.rng.normal(size=(self.width, outputs)))
        if binary:
            q = self.op("BipolarQuant", 0.5, of=w, domain=DOMAIN)
        else:
            q = self.op("Quant", 0.25, 0, 3, of=w, domain=DOMAIN, signed=1, narrow=1, rounding_mode="ROUND")
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node("MatMul", [self.last, q], [name]))
        self.last, self.width = name, outputs

    def norm(self) -> None:
        n = self.width
        gain = self.rng.uniform(0.5, 2, n) * self.rng.choice([-1, 1, 1], n)
        shift, mean, variance = self.rng.normal(size=n), self.rng.normal(size=n) * 2, self.rng.uniform(0.5, 1.5, n)
        self.then("BatchNormalization", gain, shift, mean, variance)

    def save(self, path: Path) -> None:
        self.nodes[-1].output[0] = "y"
        ends = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, n))
            for name, n in (("x", self.inputs), ("y", self.width))
        ]
        graph = helper.make_graph(self.nodes, "net", ends[:1], ends[1:], self.constants)
        opsets = [helper.make_opsetid("", 15), helper.make_opsetid(DOMAIN, 1)]
        onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)


def signs() -> Network:
    """One bit for weights and activations, batch norms of either sign between."""
    net = Network(0, 49)
    net.then("Mul", 2.0)
    net.then("Sub", 1.0)
    net.then("BipolarQuant", 1.0, domain=DOMAIN)
    for outputs in (24, 16):
        net.layer(outputs, binary=True)
        net.norm()
        net.then("BipolarQuant", 1.0, domain=DOMAIN)
    net.layer(10, binary=True)
    net.norm()
    return net


def thresholds() -> Network:
    """MultiThreshold per channel and per tensor, with bias (signed results), and of one threshold."""
    net = Network(1, 20)
    net.then("Quant", 0.25, 0, 4, domain=DOMAIN, signed=1, narrow=0, rounding_mode="ROUND")
    for outputs, (count, scale, bias) in zip((12, 9, 11), ((3, 1.0, 0.0), (7, 0.5, -2.0), (1, 2.0, -1.0)), strict=True):
        net.layer(outputs, binary=False)
        rows = outputs if count != 7 else 1
        steps = np.sort(net.rng.integers(-24, 24, (rows, count)) / 8, axis=1)
        net.then("MultiThreshold", steps, domain=DOMAIN, out_dtype="INT8", out_scale=scale, out_bias=bias)
    net.layer(5, binary=False)
    return net


def modes() -> Network:
    """Every mode, on sums that often lie between two steps."""
    net = Network(2, 16)
    net.then("Quant", 0.25, 0, 4, domain=DOMAIN, signed=1, narrow=0, rounding_mode="FLOOR")
    for mode in MODES:
        net.layer(12, binary=False)
        zero, signed = (3, 0) if mode in ("HALF_EVEN", "UP") else (0, 1)
        net.then("Quant", 0.5, zero, 5, domain=DOMAIN, signed=signed, narrow=0, rounding_mode=mode)
    net.layer(6, binary=False)
    return net


@pytest.mark.parametrize("make", [signs, thresholds, modes])
def test_layers_are_integers_on_the_device_and_right(make: Callable[[], Network], tmp_path: Path) -> None:
    path, net = tmp_path / "net.onnx", make()
    net.save(path)
    x: Array = np.random.default_rng(5).uniform(-1.5, 1.5, (40, 1, net.inputs)).astype(np.float32)
    want = executed(path, x)
    assert len(np.unique(want)) >= 20
    for target, interface in (("cpu", "hw"), ("pynq-z2", "sim")):
        with cuvil.compile(path, target, interface=interface) as program:
            got = np.stack([program(sample) for sample in x])
            report = program.report
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=target)
        layers = [layer for layer in report["layers"] if "linear" in layer["ops"]]
        assert len(layers) == sum(n.op_type == "MatMul" for n in net.nodes), target
        if target == "pynq-z2":
            assert all(layer["output"].rpartition("x")[2].startswith(("i", "u")) for layer in report["layers"])
            assert {step["op"] for step in report["host"]} <= {"quantize", "dequantize", "mul", "sub", "add"}

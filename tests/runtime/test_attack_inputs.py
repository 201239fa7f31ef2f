"""Device inputs that nothing depends on, once constants are known: read to their end, and no error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import cuvil

RNG = np.random.default_rng(0)


class Gated(nn.Module):
    """The first output is the same whatever `x` is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x) * 0.0 + 1.0, self.layer(y)


@pytest.mark.parametrize("interface", ["sim", "sim-count"])
def test_quantized_input_without_effect(interface: str) -> None:
    torch.manual_seed(0)
    model = Gated().eval()
    x, y = RNG.standard_normal((2, 600, 5)).astype(np.float32)
    with cuvil.compile(
        model, "zynq", (x[:1], y[:1]), calibration=(x, y), precision="int8", interface=interface
    ) as program:
        first, second = program(x, y)
    assert np.array_equal(first, np.ones_like(x))
    want = model(torch.from_numpy(x), torch.from_numpy(y))[1].detach().numpy()
    assert np.abs(second - want).max() < 0.05


@pytest.mark.parametrize("target", ["zynq", "cpu"])
def test_constant_program_with_an_integer_input(target: str) -> None:
    value = np.arange(4, dtype=np.int8)[None]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["y"])],
        "constant",
        [helper.make_tensor_value_info("x", TensorProto.INT8, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [1, 4])],
        [numpy_helper.from_array(value, "c")],
    )
    program = cuvil.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), target)
    assert np.array_equal(program(np.zeros((3, 4), np.int8)), np.repeat(value, 3, 0))

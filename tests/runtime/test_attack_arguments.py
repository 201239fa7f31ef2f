"""Arguments of `compile` of the wrong kind: CuvilError that names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import cuvil


def model() -> Any:
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2]), ("s", [2]), ("k", []))]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("y", "sN")]
    nodes = [helper.make_node("Add", ["x", "s"], ["sN"]), helper.make_node("Mul", ["sN", "k"], ["y"])]
    graph = helper.make_graph(nodes, "g", ports, outs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"state": ["s"]}, "state is a list, expected outputs by input"),
        ({"state": "s"}, "state is a str, expected outputs by input"),
        ({"constants": {"k": 1e300}}, "constants.'k'. has values beyond the range of f32"),
        ({"max_trips": "3"}, "max_trips is '3'; a loop's bound"),
        ({"max_trips": 2.5}, "max_trips is 2.5; a loop's bound"),
    ],
)
def test_onnx(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(cuvil.CuvilError, match=says):
        cuvil.compile(model(), "cpu", **arguments)


def test_infinite_constants_are_meant() -> None:
    program = cuvil.compile(model(), "cpu", constants={"k": np.inf}, interface="null")
    assert program.inputs[-1].name == "s"


@pytest.mark.parametrize("dtype", ["U1", "S3", object, np.longdouble, "M8[s]"])
def test_examples_that_are_no_numbers(dtype: Any) -> None:
    with pytest.raises(cuvil.CuvilError, match=r"example input .* has dtype"):
        cuvil.compile(nn.Linear(3, 2), "cpu", example_inputs={"input": np.zeros((2, 3), dtype)})


def test_examples_that_are_numbers() -> None:
    for dtype in (">f4", np.float32):
        program = cuvil.compile(nn.Identity(), "cpu", example_inputs=np.zeros((2, 3), dtype), interface="null")
        assert program(torch.zeros(2, 3)).shape == (2, 3)

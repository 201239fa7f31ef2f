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
        ({"constants": {"k": [[1], [2, 3]]}}, r"constants\['k'\] is no array"),
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


def function(x: Any) -> Any:
    return x * 2


class Other:
    pass


B = cuvil.Dim("B", max=8)
KINDS = [
    ({"name": 5}, "name is an int; a program's name has 1 to 200 characters"),
    ({"name": ""}, "name is 0 characters"),
    ({"shapes": (B, 3)}, "shapes is a tuple, expected a shape for each input"),
    ({"shapes": [(B, 3)]}, "shapes is a list, expected a shape for each input"),
    ({"shapes": B}, "shapes is a Dim, expected a shape for each input"),
    ({"constraints": 5}, "constraints is an int, expected text such as"),
    ({"constraints": None}, "constraints is None, expected text such as"),
    ({"constraints": {"B": 1}}, "constraints is a dict, expected text such as"),
    ({"constants": 5}, "constants is an int, expected numbers or arrays by input"),
    ({"constants": (("k", 1),)}, "constants is a tuple, expected numbers or arrays by input"),
    ({"state": 5}, "state is an int, expected outputs by input"),
    ({"max_trips": 0}, "max_trips is 0; a loop's bound"),
    ({"max_trips": True}, "max_trips is True; a loop's bound"),
    ({"opt_level": "2"}, "opt_level is '2'; there are 0"),
    ({"opt_level": 2.0}, r"opt_level is 2\.0; there are 0"),
    ({"opt_level": [2]}, r"opt_level is \[2\]; there are 0"),
    ({"interface": ["null"]}, "interface is a list, expected a name such as"),
    ({"progress": "yes"}, "progress is a str, expected a function"),
    ({"dump": 5}, "dump is an int, expected the path of a folder"),
]


@pytest.mark.parametrize(("arguments", "says"), KINDS)
def test_wrong_kinds(arguments: dict[str, Any], says: str) -> None:
    """Of a module compiled ahead, an ONNX model, and where it is taken a function, before anything is traced."""
    with pytest.raises(cuvil.CuvilError, match=says):
        cuvil.compile(nn.Linear(3, 2), "cpu", example_inputs=torch.zeros(2, 3), **arguments)
    with pytest.raises(cuvil.CuvilError, match=says):
        cuvil.compile(model(), "cpu", **arguments)
    if not {*arguments} & {"shapes", "constraints", "constants"}:
        with pytest.raises(cuvil.CuvilError, match=says):
            cuvil.compile(function, **arguments)


@pytest.mark.parametrize("given", [5, "text", [], {"input": 5}, [1, 2], Other()])
def test_calibration_of_the_wrong_kind(given: Any) -> None:
    with pytest.raises(cuvil.InputError, match="calibration"):
        cuvil.compile(nn.Linear(3, 2), "cpu", torch.zeros(2, 3), given, "int8")


def test_functions_say_what_is_for_models() -> None:
    for shapes in ({"shapes": {"x": (B, 3)}}, {"shapes": {"x": (2, 3)}}, {"constraints": "B > 1"}):
        for examples in ({}, {"example_inputs": torch.zeros(2, 3)}):
            with pytest.raises(cuvil.CuvilError, match=r"compiled for each combination.*write @cuvil.compile without"):
                cuvil.compile(function, "cpu", **examples, **shapes)
    with pytest.raises(cuvil.CuvilError, match="are Python values in its code"):
        cuvil.compile(function, "cpu", constants={"x": 3})


def test_several_targets_and_check() -> None:
    for targets in (5, None, b"cpu", {"cpu": 1}):
        with pytest.raises(cuvil.CuvilError, match=r"targets is .*, expected names of targets"):
            cuvil.compile_all(model(), targets)  # type: ignore[arg-type]
    with pytest.raises(cuvil.CuvilError, match="done is an int, expected a function"):
        cuvil.compile_all(model(), ["cpu"], done=5)  # type: ignore[arg-type]
    with pytest.raises(cuvil.CuvilError, match="state is an int, expected outputs by input"):
        cuvil.compile_all(model(), ["cpu"], state=5)  # type: ignore[arg-type]
    with pytest.raises(cuvil.CuvilError, match="shapes is a list, expected a shape for each input"):
        cuvil.check(model(), shapes=[(2,)])  # type: ignore[arg-type]
    with pytest.raises(cuvil.CuvilError, match="targets is an int, expected names"):
        cuvil.check(model(), 5)  # type: ignore[arg-type]

"""Batches of ONNX files: nameless ones are opened, fixed ones are overridden where the operators allow it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil
from cuvil_hw.errors import CuvilError
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.program import evaluate
from cuvil_hw.runtime.dynamic import DynamicExecutable

W = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def net(batch: Any, extents: list[int] | None = None, across: bool = False) -> onnx.ModelProto:
    """x (batch, 4) · W. `extents`: of a Reshape before it; `across`: rows depend on one another."""
    nodes = [helper.make_node("Reshape", ["x", "extents"], ["r"])] if extents is not None else []
    nodes += [helper.make_node("MatMul", ["r" if nodes else "x", "w"], ["p"])]
    nodes += [helper.make_node("Softmax", ["p"], ["y"], axis=0)] if across else [helper.make_node("Relu", ["p"], ["y"])]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.int64(extents or [0]), "extents")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)


@pytest.mark.needs("cc")
@pytest.mark.parametrize("batch", [None, 1, 2])
def test_a_batch_without_name_or_fixed_can_be_opened(batch: int | None) -> None:
    """A nameless one was "fixed to 1 by the file"."""
    with cuvil.compile(net(batch), "cpu", shapes={"x": {0: cuvil.Dim("B", 1, 4)}}) as program:
        assert isinstance(program, DynamicExecutable)
        for n in (1, 3, 4):
            np.testing.assert_allclose(program(rows(n)), np.maximum(rows(n) @ W, 0), atol=1e-5)


def test_a_fixed_batch_is_overridden() -> None:
    program = load_onnx(net(1), shapes={"x": (5, 4)})
    assert program.outputs[0][1].shape == (5, 3)
    assert program.notes["contradictions"] == ()
    np.testing.assert_allclose(evaluate(program, [rows(5)])[0], np.maximum(rows(5) @ W, 0), atol=1e-5)
    load_onnx(net(1, [-1, 4]), shapes={"x": (5, 4)})
    with pytest.raises(CuvilError, match=r"the model fixes it to \(1, 4\)"):
        load_onnx(net(1), shapes={"x": (1, 5)})


@pytest.mark.parametrize("extents", [[1, 4], [1, -1]])
def test_a_batch_that_operators_hold_as_a_constant_is_named_as_the_cause(extents: list[int]) -> None:
    with pytest.raises(CuvilError) as caught:
        load_onnx(net(1, extents), shapes={"x": (5, 4)})
    assert "the file fixes the batch to 1 and 5 was asked for" in "\n".join(caught.value.__notes__)


def test_an_output_that_keeps_the_fixed_batch_is_an_error() -> None:
    model = net(1)
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0))
    model.graph.node.append(helper.make_node("Expand", ["s", "three"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.int64([1, 3]), "three"))
    with pytest.raises(CuvilError, match=r"output 'y' is \(1, 3\): the file fixes the batch to 1 and 5 was asked for"):
        load_onnx(model, shapes={"x": (5, 4)})


def test_inputs_with_the_same_fixed_batch_are_given_together() -> None:
    model = net(2)
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3]))
    model.graph.node[-1].op_type = "Add"
    model.graph.node[-1].input.append("z")
    with pytest.raises(CuvilError, match=r"batch of 'x' 5, where the file fixes 2; give the shape of 'z'"):
        load_onnx(model, shapes={"x": (5, 4)})
    assert load_onnx(model, shapes={"x": (5, 4), "z": (5, 3)}).outputs[0][1].shape == (5, 3)
    with pytest.raises(CuvilError, match="different extents"):
        load_onnx(model, shapes={"x": (5, 4), "z": (6, 3)})


@pytest.mark.needs("cc")
def test_the_command_line_compiles_all_of_few_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--dim batch=1:3` made a program for one size, and the artifact ran no other where rows depend on one another."""
    from cuvil_hw.cli.main import main as command

    path, made = tmp_path / "net.onnx", tmp_path / "net.cuvil"
    onnx.save(net("batch", across=True), path)
    assert command(["compile", str(path), "-t", "cpu", "--dim", "batch=1:3", "-o", str(made)]) == 0
    assert "the artifact runs" not in capsys.readouterr().out
    with cuvil.load(made) as program:
        for n in (1, 2, 3):
            e = np.exp(rows(n) @ W)
            np.testing.assert_allclose(program(rows(n)), e / e.sum(0), rtol=1e-4, atol=1e-6)
    assert command(["compile", str(path), "-t", "cpu", "--dim", "batch=1:30", "-o", str(made)]) == 0
    assert "the artifact runs batch=" in capsys.readouterr().out
    onnx.save(net(1), path)
    assert command(["compile", str(path), "-t", "cpu", "--dim", "batch=1:3"]) != 0
    assert "it names no dimension; open one by its axis" in " ".join(capsys.readouterr().err.split())

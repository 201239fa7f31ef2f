"""Ops that users register: meaning, loops, versions, both front ends, several targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import cuvil
from cuvil_hw.errors import CuvilError, Unsupported
from cuvil_hw.expr.nodes import Tensor, const, unary
from cuvil_hw.ir.level1 import TensorOp
from cuvil_hw.ir.program import Builder, evaluate, parse
from cuvil_hw.ops.base import ShapeError, from_json, infer, registry, to_json
from cuvil_hw.ops.integer import Dequantize, Quantize
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.types import TensorType
from tests.support.op_checks import check

X = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)


def reference(x: np.ndarray, b: float) -> np.ndarray:
    """A smooth ReLU."""
    return (x + np.sqrt(x * x + x.dtype.type(b))) * x.dtype.type(0.5)


def lowering(x: Tensor, b: float) -> Tensor:
    c, half = const(b, x.dtype), const(0.5, x.dtype)
    return Tensor(x.type, lambda *i: (x[i] + unary("sqrt", x[i] * x[i] + c)) * half)


def shape(x: TensorType, b: float) -> TensorType:
    assert b > 0, "b must be positive"
    return x


def register(**changes: Any) -> Any:
    rules: dict[str, Any] = {
        "shape": shape, "reference": reference, "lowering": lowering, "attributes": {"b": 4.0}, "elementwise": True,
        "onnx": "mine::SquarePlus",
    }  # fmt: skip
    return cuvil.register_op("square_plus", **{**rules, **changes})


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    known = dict(registry)
    yield
    for name in set(registry) - set(known):
        del registry[name]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x, b: Tensor(x.type, lambda *i: x[i] * const(b, "f64")), "TypeError: mul of f32 and f64"),
        (lambda x, b: x.nope, "AttributeError"),
        (lambda x, b: None, "returned None; return a Tensor"),
    ],
    ids=["element", "at once", "nothing"],
)
def test_what_a_lowering_raises_is_told_with_the_ops_name(wrong: Any, said: str) -> None:
    register(lowering=wrong)
    with pytest.raises(CuvilError, match=f"op square_plus: its lowering .*{said}"):
        cuvil.compile(onnx_model(), "cpu")


def onnx_model(version: int = 1, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("SquarePlus", ["x"], ["y"], domain="mine", name="act", **attributes)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", version)]
    return helper.make_model(helper.make_graph([node], "m", ends[:1], ends[1:]), opset_imports=opsets)


def test_an_op_like_any_other() -> None:
    op = register()
    check(op(2.0), X)
    check(op(), X.astype(np.float64))
    assert op.mnemonic == "square_plus"
    assert op().b == 4.0


@pytest.mark.parametrize("target", ["cpu", "h100", "mlu370"])
def test_onnx_on_targets(target: str) -> None:
    register()
    program = cuvil.compile(onnx_model(b=2.0), target)
    assert "cuvil.level1.square_plus" in program.ir
    np.testing.assert_allclose(program(X), reference(X, 2.0), rtol=1e-6)


def test_torch() -> None:
    @torch.library.custom_op("cuvil_tests::square_plus", mutates_args=())
    def square_plus(x: torch.Tensor, b: float) -> torch.Tensor:
        return (x + torch.sqrt(x * x + b)) / 2

    @square_plus.register_fake
    def _(x: torch.Tensor, b: float) -> torch.Tensor:
        return torch.empty_like(x)

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return square_plus(x, 3.0) + 1

    with pytest.raises(Unsupported, match="square_plus"):
        cuvil.compile(Net(), "cpu", X)
    register(torch="cuvil_tests::square_plus", onnx=())
    np.testing.assert_allclose(cuvil.compile(Net(), "cpu", X)(X), reference(X, 3.0) + 1, rtol=1e-6)


def test_by_decomposition_with_two_results() -> None:
    def halves(emit: Any, x: Any) -> Any:
        from cuvil_hw.ops import Abs, Neg

        return emit.op(Abs(), x), emit.op(Neg(), x)

    op = cuvil.register_op(
        "both_ways", shape=lambda x: (x, x), reference=lambda x: (np.abs(x), -x), decomposition=halves,
        onnx="mine::BothWays",
    )  # fmt: skip
    check(op(), X)
    node = helper.make_node("BothWays", ["x"], ["y", "z"], domain="mine")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in "xyz"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    model = helper.make_model(helper.make_graph([node], "m", ends[:1], ends[1:]), opset_imports=opsets)
    y, z = cuvil.compile(model, "cpu")(X)
    np.testing.assert_array_equal(y, np.abs(X))
    np.testing.assert_array_equal(z, -X)


def test_a_model_of_another_version_is_refused() -> None:
    register(version=2)
    assert cuvil.compile(onnx_model(version=2), "cpu")(X).shape == X.shape
    with pytest.raises(Unsupported, match=r"needs version 3 of it, version 2 is registered"):
        cuvil.compile(onnx_model(version=3), "cpu")


def test_text_and_host_steps_of_another_version_are_refused() -> None:
    op = register(version=2)
    builder = Builder([("x", TensorType((2, 8), "f32"))])
    program = builder.finish([("y", builder.op(op(), builder.input(0)))])
    text, step = program.text(), to_json(op())
    np.testing.assert_array_equal(evaluate(parse(text), [X])[0], reference(X, 4.0))
    assert from_json("square_plus", step) == op()
    register(version=3, replace=True)
    with pytest.raises(CuvilError, match=r"version 2 of this op is needed, version 3 is registered"):
        parse(text)
    with pytest.raises(CuvilError, match=r"needed in version 2, version 3 is registered"):
        from_json("square_plus", step)


def test_an_artifact_remembers_the_version_of_host_steps(tmp_path: Any) -> None:
    """On pynq-z2 floats after the last dequantize run in NumPy."""
    register(version=2)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("SquarePlus", ["h"], ["y"], domain="mine")]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8]) for n in "xy"]
    weights = [onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 2)]
    model = helper.make_model(helper.make_graph(nodes, "m", ends[:1], ends[1:], weights), opset_imports=opsets)
    path = tmp_path / "m.cuvil"
    program = cuvil.compile(model, "pynq-z2", calibration=X)
    program.save(path)
    np.testing.assert_allclose(cuvil.load(path)(X[:1]), reference(X[:1], 4.0), atol=0.05)
    register(version=1, replace=True)
    with pytest.raises(CuvilError, match="needed in version 2, version 1 is registered"):
        cuvil.load(path)(X[:1])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 0}, "integer from 1"),
        ({"lowering": None}, "one of them"),
        ({"decomposition": lowering}, "one of them"),
        ({"attributes": {"b": object()}}, "attribute b"),
        ({"attributes": {"infer": 1}}, "can't be called"),
        ({"attributes": {"version": 1}}, "can't be called"),
        ({"torch": "square_plus"}, "namespace::name"),
        ({"onnx": "ai.onnx::Relu"}, "domain of yours"),
    ],
)
def test_wrong_registrations(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CuvilError, match=text):
        register(**changes)
    assert "square_plus" not in registry


@pytest.mark.parametrize("name", ["Square", "a.b", "", "1x", "lambda"])
def test_wrong_names(name: str) -> None:
    with pytest.raises(CuvilError, match="op name"):
        cuvil.register_op(name, shape=shape, reference=reference, lowering=lowering)


@pytest.mark.parametrize("pointwise", [True, False])
def test_a_pointwise_op_between_quantized_tensors_is_a_table(pointwise: bool) -> None:
    op = register(pointwise=pointwise)
    builder = Builder([("x", TensorType((1, 256), "i8"))])
    y = builder.op(op(2.0), builder.op(Dequantize((0.05,), (7,)), builder.input(0)))
    program = builder.finish([("y", builder.op(Quantize((0.04,), (-100,), "i8"), y))])
    x = np.arange(-128, 128, dtype=np.int8)[None]
    want = evaluate(program, [x])[0]
    run_pipeline(program, ["integerize"])
    found = [o.spec.mnemonic for o in program.ops() if isinstance(o, TensorOp)]
    assert found == (["lut"] if pointwise else ["dequantize", "square_plus", "quantize"])
    np.testing.assert_array_equal(evaluate(program, [x])[0], want)


def test_names_are_taken_once() -> None:
    register()
    with pytest.raises(CuvilError, match="replace=True"):
        register()
    with pytest.raises(CuvilError, match="stands for op 'square_plus'"):
        cuvil.register_op("other", shape=shape, reference=reference, lowering=lowering, onnx="mine::SquarePlus")
    with pytest.raises(CuvilError, match="exists already"):
        cuvil.register_op("relu", shape=shape, reference=reference, lowering=lowering, replace=True)


def test_errors_of_the_users_functions_name_the_op() -> None:
    op = register()
    with pytest.raises(ShapeError, match=r"square_plus: .* b must be positive"):
        infer(op(-1.0), [TensorType((2,), "f32")])
    wrong = register(reference=lambda x, b: x.astype(np.float64), replace=True)
    with pytest.raises(CuvilError, match=r"reference returned float64\[2, 8\], its shape rule says"):
        wrong().evaluate(X)
    none = register(shape=lambda x, b: None, replace=True)
    with pytest.raises(ShapeError, match="return a TensorType"):
        infer(none(), [TensorType((2,), "f32")])


def test_attributes_that_the_op_has_not() -> None:
    register()
    with pytest.raises(Unsupported, match="attribute c is not one"):
        cuvil.compile(onnx_model(c=1.0), "cpu")


def test_none_for_an_attribute_is_refused() -> None:
    @torch.library.custom_op("cuvil_tests::maybe_plus", mutates_args=())
    def maybe_plus(x: torch.Tensor, b: float | None = None) -> torch.Tensor:
        return x.clone()

    @maybe_plus.register_fake
    def _(x: torch.Tensor, b: float | None = None) -> torch.Tensor:
        return torch.empty_like(x)

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return maybe_plus(x)

    register(torch="cuvil_tests::maybe_plus", onnx=())
    with pytest.raises(Unsupported, match="argument b is None"):
        cuvil.compile(Net(), "cpu", X)


@pytest.mark.parametrize(
    ("default", "taken", "refused"),
    [
        (1, [np.int64(2), -(2**63)], [None, 1.5, "x", 2**63]),
        (1.5, [2, np.float32(0.5), 1 << 64], [None, "1", object()]),
        (True, [0, np.False_, np.int64(1)], [None, 2, 0.5, "True"]),
        ("a", ["", np.str_("x")], [None, 1, b"1"]),
        ((1, 2), [[1, 0], ()], [None, 1, "12", (None,), [2**63]]),
        ((1.0, 2.0), [[1, np.float32(2)]], [None, 1.0, "12", (None,)]),
    ],
)
def test_values_of_attributes_are_checked_where_an_op_is_made(default: Any, taken: Any, refused: Any) -> None:
    def same(x: Any, b: Any) -> Any:
        return x

    op = cuvil.register_op(
        "same", shape=same, reference=same, decomposition=lambda _, x, b: x, attributes={"b": default}
    )
    for value in taken:
        builder = Builder([("x", TensorType((2, 8), "f32"))])
        text = builder.finish([("y", builder.op(op(b=value), builder.input(0)))]).text()
        assert parse(text).text() == text
    for value in refused:
        with pytest.raises(CuvilError, match=r"op same: attribute b is .*; it takes "):
            op(b=value)

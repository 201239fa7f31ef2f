"""BFLOAT16 in ONNX models, against f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ml_dtypes = pytest.importorskip("ml_dtypes")

import cuvil  # noqa: E402
from cuvil_hw import dtypes  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402

helper, BFLOAT16 = onnx.helper, onnx.TensorProto.BFLOAT16
DRAW = np.random.default_rng(7)


def weights(*shape: int) -> Any:
    return (DRAW.normal(size=shape) / 2).astype(ml_dtypes.bfloat16)


def model(nodes: list[Any], x: tuple[int, ...], y: tuple[int, ...], **constants: Any) -> Any:
    ports = [helper.make_tensor_value_info(n, BFLOAT16, shape) for n, shape in (("x", x), ("y", y))]
    stored = [helper.make_tensor(n, BFLOAT16, a.shape, a.tobytes(), raw=True) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "bf16", ports[:1], ports[1:], stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made)
    return made


def near(have: Any, want: Any) -> None:
    """The bound of docs/numerics.md."""
    step = 2.0**-7
    np.testing.assert_array_less(np.abs(have.astype(np.float64) - want), step * (np.abs(want) + np.abs(want).max()))


@pytest.mark.must_run
@pytest.mark.needs("gcc", "g++")
@pytest.mark.parametrize("target", ["cpu", "h100"])
def test_a_network(target: str) -> None:
    w, b, v = weights(16, 32), weights(32), weights(32, 5)
    made = model(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
            helper.make_node("Gelu", ["h"], ["g"]),
            helper.make_node("MatMul", ["g", "v"], ["s"]),
            helper.make_node("Softmax", ["s"], ["p"], axis=-1),
            helper.make_node("Transpose", ["p"], ["y"], perm=[1, 0]),
        ],
        (3, 16),
        (5, 3),
        w=w,
        b=b,
        v=v,
    )
    x = weights(3, 16)
    torch = pytest.importorskip("torch")
    h = x.astype(np.float64) @ w.astype(np.float64) + b.astype(np.float64)
    g = torch.nn.functional.gelu(torch.from_numpy(h)).numpy()
    want = torch.softmax(torch.from_numpy(g @ v.astype(np.float64)), -1).numpy().T
    with cuvil.compile(made, target) as program:
        assert [p.dtype for p in (*program.inputs, *program.outputs)] == ["bf16", "bf16"]
        assert {dtypes.from_numpy(a.dtype) for a in program.artifact.constants().values()} == {"bf16"}
        got = program(x)
        assert got.dtype == ml_dtypes.bfloat16
        near(got, want)


def test_a_node_of_several_ops_is_rounded_once() -> None:
    """Sum of three: 256 + 1 + 1 is 258 in f32 and in bf16, but 256 + 1 is no bf16."""
    made = model([helper.make_node("Sum", ["x", "one", "one"], ["y"])], (1,), (1,), one=np.ones(1, ml_dtypes.bfloat16))
    x = dtypes.convert([256.0], "bf16")
    assert dtypes.numbers(evaluate(load(made), [x])[0]).tolist() == [258.0]


def test_casts_and_constants() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", BFLOAT16, (1,), [0.1])),
        helper.make_node("Cast", ["c"], ["d"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["f", "d"], ["s"]),
        helper.make_node("Cast", ["s"], ["t"], to=BFLOAT16),
        helper.make_node("Constant", [], ["pads"], value_ints=[1, 1]),
        helper.make_node("Pad", ["t", "pads", "fill"], ["y"]),
    ]
    made = model(nodes, (3,), (5,), fill=np.asarray(-2.5, ml_dtypes.bfloat16))
    x = np.asarray([1.0, -3.0, 0.1], ml_dtypes.bfloat16)
    tenth = np.float32(ml_dtypes.bfloat16(0.1))
    want = np.concatenate([[-2.5], x.astype(np.float32) + tenth, [-2.5]]).astype(ml_dtypes.bfloat16)
    got = evaluate(load(made), [x.view(dtypes.BF16)])[0]
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


def test_statistics_of_a_layer_norm_are_f32() -> None:
    norm = helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean"])
    made = model([norm], (2, 4), (2, 4), s=weights(4))
    made.graph.output.append(helper.make_tensor_value_info("mean", onnx.TensorProto.FLOAT, [2, 1]))
    assert [kind.dtype for _, kind in load(made).outputs] == ["bf16", "f32"]

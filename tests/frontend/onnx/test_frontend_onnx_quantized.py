"""Single quantized operators of ONNX and of ONNX Runtime's quantizer, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

import cuvil
from cuvil_hw.errors import Unsupported
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.passes.pipeline import run_pipeline
from tests.support.onnx_oracle import floats, graph_model, halved, run, runtime

F = np.float32
DOMAINS = {"MatMulInteger": "", "ConvInteger": "", "DynamicQuantizeLinear": "", "MatMul": "", "Pad": "", "Clip": ""}


def whole(*shape: int, dtype: type = np.uint8, seed: int = 0) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def both(
    op: str, operands: Sequence[Any], live: Sequence[int], outputs: int = 1, **attributes: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ours, ONNX Runtime's) of one node. `live`: positions of operands that are the model's inputs; None: absent."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(operands)]
    given = {n: np.asarray(a) for n, a in zip(names, operands, strict=True) if n}
    inputs: Mapping[str, np.ndarray] = {f"x{i}": given.pop(f"x{i}") for i in live}
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], "the_node",
                            domain=DOMAINS.get(op, "com.microsoft"), **attributes)  # fmt: skip
    model = graph_model([node], inputs, list(node.output), 17, given)
    return list(zip(run(load_onnx(model), inputs), runtime(model, inputs), strict=True))


def agree(op: str, operands: Sequence[Any], live: Sequence[int], steps: int = 0, **attributes: Any) -> None:
    """Equal types and shapes, integers within `steps`."""
    for got, want in both(op, operands, live, **attributes):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if np.issubdtype(want.dtype, np.floating):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        else:
            assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max() <= steps


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_elementwise(dtype: type) -> None:
    z = dtype(3)
    agree("QLinearMul", [whole(2, 3, 4, dtype=dtype), F(0.02), z, whole(4, dtype=dtype, seed=1), F(0.05), dtype(9),
                         F(0.1), dtype(1)], [0, 3], steps=1)  # fmt: skip
    agree("QLinearAdd", [whole(2, 3, 4, dtype=dtype), F(0.02), z, whole(3, 1, dtype=dtype), F(0.05), z, F(0.1), z], [0],
          steps=1)  # fmt: skip
    x = whole(2, 30, dtype=dtype)
    agree("QLinearSigmoid", [x, F(0.03), z, F(1 / 256), dtype(0)], [0])
    agree("QLinearLeakyRelu", [x, F(0.03), z, F(0.02), dtype(9)], [0], alpha=0.3)


@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (11, 1)])
def test_softmax(opset: int, axis: int) -> None:
    """ONNX Runtime takes exponentials from a table of its own: within one step."""
    x = whole(2, 5, 6)
    agree("QLinearSoftmax", [x, F(0.04), np.uint8(100), F(1 / 256), np.uint8(0)], [0], steps=1, opset=opset, axis=axis)


@pytest.mark.parametrize("last", [0, 1])
def test_pools(last: int) -> None:
    x = whole(1, 7, 6, 3) if last else whole(1, 3, 7, 6)
    place = [x, F(0.02), np.uint8(120), F(0.03), np.uint8(100)]
    agree("QLinearGlobalAveragePool", place, [0], steps=1, channels_last=last)
    for include in (0, 1):
        agree("QLinearAveragePool", place, [0], steps=1, channels_last=last, kernel_shape=[3, 2], strides=[2, 2],
              pads=[1, 0, 1, 1], count_include_pad=include)  # fmt: skip
    agree("QLinearAveragePool", place, [0], steps=1, channels_last=last, kernel_shape=[2, 2], strides=[2, 2],
          ceil_mode=1)  # fmt: skip


def test_concat_and_where() -> None:
    a, b = whole(2, 3), whole(2, 5, seed=1)
    agree("QLinearConcat", [F(0.05), np.uint8(7), a, F(0.02), np.uint8(3), b, F(0.09), np.uint8(200)], [2, 5], axis=1)
    x, y = whole(2, 3), whole(3, seed=1)
    agree("QLinearWhere", [np.array([[True], [False]]), x, F(0.02), np.uint8(3), y, F(0.09), np.uint8(200), F(0.1),
                           np.uint8(1)], [0, 1, 4])  # fmt: skip


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("real", [False, True])
def test_gemm(turned: int, each: bool, real: bool) -> None:
    b = halved(whole(*((5, 8) if turned else (8, 5)), dtype=np.int8))
    scale = np.linspace(0.01, 0.03, 5, dtype=F) if each else F(0.02)
    zero = np.zeros(5, np.int8) if each else np.int8(2)
    c = whole(5, dtype=np.int16).astype(np.int32)
    for bias in (c, None):
        operands = [whole(3, 8), F(0.04), np.uint8(11), b, scale, zero, bias]
        operands += [] if real else [F(0.9), np.uint8(100)]
        agree("QGemm", operands, [0], transB=turned)
    agree("QGemm", [whole(8, 3), F(0.04), np.uint8(11), b, scale, zero, c, F(0.9), np.uint8(100)], [0], transA=1,
          transB=turned, alpha=0.5, steps=1)  # fmt: skip


def test_integer_products_with_zero_points_of_each_call() -> None:
    a, b = whole(3, 6), halved(whole(6, 4, dtype=np.int8))
    agree("MatMulInteger", [a, b, np.uint8(7), np.int8(-3)], [0, 2, 3])
    agree("MatMulInteger", [a, b, np.uint8(7), whole(4, dtype=np.int8, seed=2)], [0, 1, 2])
    agree("MatMulInteger", [whole(2, 3, 6), whole(2, 6, 4, seed=3), np.uint8(255), np.uint8(0)], [0, 1, 2, 3])
    agree("MatMulInteger", [whole(3, 70), whole(70, 4), np.uint8(200), np.uint8(3)], [0, 2])
    x, w = whole(1, 4, 6, 5), whole(8, 2, 3, 3, dtype=np.uint8, seed=1)
    agree("ConvInteger", [x, w, np.uint8(7), np.uint8(3)], [0, 2], pads=[1, 1, 0, 1], group=2, strides=[2, 1])


@pytest.mark.parametrize("live", [[0], [0, 2, 4]])
def test_products_of_integers_to_floats(live: list[int]) -> None:
    a, b, bias = whole(2, 3, 6), halved(whole(6, 4, dtype=np.int8)), floats(4)
    each = np.linspace(0.01, 0.03, 4, dtype=F)
    for scale, zero in ((F(0.02), np.int8(3)), (each, whole(4, dtype=np.int8, seed=2))):
        agree("MatMulIntegerToFloat", [a, b, F(0.1), scale, np.uint8(9), zero, bias], live)
        agree("DynamicQuantizeMatMul", [floats(2, 3, 6), b, scale, zero, bias], [0])


def test_dynamic_quantization_of_zeros() -> None:
    """ONNX's own text has the scale 0 there, ONNX Runtime 1."""
    for x in (np.zeros((2, 3), F), F([[0.0, 1e-30]]), F([[-3.0, -2.0]]), F([[3e38, -3e37]])):
        for got, want in both("DynamicQuantizeLinear", [x], [0], outputs=3):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("each", [False, True])
def test_dynamic_lstm(direction: str, each: bool) -> None:
    """Weights are transposed; scales for each direction, or each column. Backwards, ONNX Runtime aligns sequences of
    different lengths at their ends before it takes a step's range, so lengths are equal there."""
    d, h, k = 1 + (direction == "bidirectional"), 5, 6
    x, b = floats(4, 2, k), floats(d, 8 * h, scale=0.1)
    w, r = halved(whole(d, k, 4 * h, dtype=np.int8)), halved(whole(d, h, 4 * h, dtype=np.int8, seed=1))
    shape = (d, 4 * h) if each else (d,)
    scales = np.linspace(0.004, 0.009, int(np.prod(shape)), dtype=F).reshape(shape)
    zeros = np.zeros(shape, np.int8)
    lengths = np.int32([4, 3 if direction == "forward" else 4])
    operands = [x, w, r, b, lengths, floats(d, 2, h), floats(d, 2, h, seed=3), None, scales, zeros,
                scales[..., ::-1].copy(), zeros]  # fmt: skip
    for got, want in both("DynamicQuantizeLSTM", operands, [0, 5], 3, hidden_size=h, direction=direction):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def quantize(name: str, value: Any, scale: float, zero: Any) -> tuple[list[Any], dict[str, Any]]:
    """Q and DQ nodes on a constant."""
    nodes = [helper.make_node("QuantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_q"]),
             helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [f"{name}_r"])]  # fmt: skip
    return nodes, {name: F(value), f"{name}_s": F(scale), f"{name}_z": zero}


@pytest.mark.parametrize("value", [0.0, 0.53, -3.0])
def test_a_dequantized_constant_is_a_number(value: float) -> None:
    """Pads' values and Clip's bounds, which ONNX Runtime's quantizer sends through a Q and a DQ."""
    x = floats(1, 2, 3, 3)
    parts = [quantize("fill", value, 0.1, np.int8(3)), quantize("top", 0.77, 0.02, np.uint8(9))]
    nodes = [n for made, _ in parts for n in made]
    consts = {k: v for _, made in parts for k, v in made.items()} | {"pads": np.int64([0, 0, 1, 1, 0, 0, 0, 2])}
    nodes += [helper.make_node("Pad", ["x", "pads", "fill_r"], ["p"])]
    nodes += [helper.make_node("Clip", ["p", "", "top_r"], ["y"])]
    model = graph_model(nodes, {"x": x}, ["y"], 17, consts)
    np.testing.assert_array_equal(run(load_onnx(model), {"x": x})[0], runtime(model, {"x": x})[0])


@pytest.mark.parametrize("op", ["QEmbedLayerNormalization", "QOrderedMatMul", "QMoE"])
def test_other_operators_are_refused_by_name(op: str) -> None:
    node = helper.make_node(op, ["x0"], ["y0"], "the_node", domain="com.microsoft")
    with pytest.raises(Unsupported, match=rf"com\.microsoft\.{op} ×1 at the_node"):
        load_onnx(graph_model([node], {"x0": whole(2, 3)}, ["y0"], 17))


def layer(
    w: np.ndarray, scales: tuple[Any, Any, Any], bias: Any = None, dtype: type = np.int8, stored: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    """Q → DQ → Gemm (DQ weight, bias) → Q → DQ as nodes and constants. `scales`: of x, w (or of its columns), y."""
    consts = {"xs": F(scales[0]), "xz": dtype(0), "w": w, "ws": F(scales[1]), "ys": F(scales[2]), "yz": dtype(0),
              "wz": np.zeros(np.shape(scales[1]), w.dtype)}  # fmt: skip
    nodes = [helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
             helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xr"]),
             helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wr"], axis=1)]  # fmt: skip
    if stored:
        consts |= {"b": bias, "bs": F(scales[0]) * F(scales[1]), "bz": np.zeros(np.shape(scales[1]), np.int32)}
        nodes += [helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["br"], axis=0)]
    elif bias is not None:
        consts["br"] = bias
    nodes += [helper.make_node("Gemm", ["xr", "wr", *(["br"] if bias is not None else [])], ["g"]),
              helper.make_node("QuantizeLinear", ["g", "ys", "yz"], ["yq"]),
              helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"])]  # fmt: skip
    return nodes, consts


def integers(nodes: list[Any], consts: dict[str, Any], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(ours as an integer program, ONNX Runtime's)."""
    model = graph_model(nodes, {"x": x}, ["y"], 21, consts)
    program = load_onnx(model)
    run_pipeline(program, ["fold", "batch-norm", "integerize", "accumulators"])
    return run(program, {"x": x})[0], runtime(model, {"x": x})[0]


@pytest.mark.parametrize("scale", [0.0, [0.1, 0.0, 0.2], [0.0, 0.0, 0.0]], ids=str)
@pytest.mark.parametrize("bias", ["none", "float", "integer"])
def test_a_scale_of_zero(scale: Any, bias: str) -> None:
    """A dead channel: its weights stand for zeros. A float bias beside it ended in ZeroDivisionError."""
    x, w = floats(5, 4), whole(4, 3, dtype=np.int8)
    given = {"none": None, "float": F([1, -2, 0.66]), "integer": np.int32([100, -9, 7])}[bias]
    each = np.broadcast_to(F(scale), 3) if bias == "integer" else scale
    got, want = integers(*layer(w, (0.1, each, 0.2), given, stored=bias == "integer"), x)
    np.testing.assert_array_equal(got[:, 1], want[:, 1])
    assert np.abs(got - want).max() < 0.201
    assert (np.abs(got - want) > 0.1).mean() < 0.1  # ties, which ONNX Runtime rounds in floats


def test_activations_of_scale_zero() -> None:
    x = floats(2, 3, 4)
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
             helper.make_node("DequantizeLinear", ["q", "none", "z"], ["r"], axis=1),
             helper.make_node("Add", ["r", "one"], ["a"]),
             helper.make_node("QuantizeLinear", ["a", "s", "z"], ["aq"]),
             helper.make_node("DequantizeLinear", ["aq", "s", "z"], ["y"])]  # fmt: skip
    for none, zero in ((F(0), np.int8(3)), (F([0.1, 0, 0.2]), np.int8([1, 2, 3]))):
        consts = {"s": F(0.1), "z": np.int8(3), "none": none, "one": F(1)}
        nodes[1].input[2] = "zn"
        got, want = integers(nodes, consts | {"zn": zero}, x)
        np.testing.assert_allclose(got, want, atol=0.1001)
        assert np.abs(got - want).mean() < 0.02


@pytest.mark.parametrize("scale", [np.nan, np.inf, -0.1, [0.1, np.nan, 0.1], [0.1, -0.1, 0.1]], ids=str)
def test_other_scales_are_refused_by_name(scale: Any) -> None:
    x, w = floats(5, 4), whole(4, 3, dtype=np.int8)
    nodes, consts = layer(w, (0.1, scale, 0.2))
    nodes[2].name = "the_weights"
    with pytest.raises(Unsupported, match="at the_weights: dequantize: scales must be finite and not negative"):
        load_onnx(graph_model(nodes, {"x": x}, ["y"], 21, consts))
    nodes, consts = layer(w, (np.max(np.abs(scale)) if np.ndim(scale) else scale, 0.1, 0.2))
    nodes[0].name = "the_inputs"
    if not 0 < consts["xs"] < np.inf:
        with pytest.raises(Unsupported, match="at the_inputs: quantize: scales must be positive and finite"):
            load_onnx(graph_model(nodes, {"x": x}, ["y"], 21, consts))


@pytest.mark.parametrize("columns", [400, 4096])
def test_wide_activations_and_a_float_bias(columns: int) -> None:
    """Sums of 33 bits and more beside a bias needed "an accumulator of 49 bits"."""
    x, w, bias = floats(3, columns), whole(columns, 5, dtype=np.int8), F([3.3, -2, 0.51, 1e-3, -77.7])
    got, want = integers(*layer(w, (2e-4, 0.003, 0.004), bias, np.int16), x)
    assert np.abs(got - want).max() <= 0.004 * 1.01
    assert (got != want).mean() < 0.4


@pytest.mark.needs("cc")
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_products_of_wide_integers_wrap(dtype: type) -> None:
    """int64 products of run-time operands needed "an accumulator of 130 bits"."""
    a, b, c = whole(3, 4, dtype=dtype), whole(4, 5, dtype=dtype, seed=1), whole(5, dtype=dtype)
    nodes = [helper.make_node("MatMul", ["a", "b"], ["m"]), helper.make_node("Gemm", ["a", "w", "c"], ["g"])]
    model = graph_model(nodes, {"a": a, "b": b}, ["m", "g"], 17, {"w": b, "c": c})
    with cuvil.compile(model, "cpu") as program, np.errstate(over="ignore"):
        for got, want in zip(program(a, b), (a @ b, a @ b + c), strict=True):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, want)
    cuvil.compile(model, "h100").close()

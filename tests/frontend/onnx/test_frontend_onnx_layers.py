"""Converters of layers and of data movement against ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.level1 import ConstOp, TensorOp
from tests.support.onnx_oracle import agree, check, floats, graph_model, halved, ints, mnemonics, node_model, run


def test_conv_ranks_groups_dilations_pads() -> None:
    check("Conv", floats(1, 3, 9), floats(4, 3, 3), floats(4), const=[1, 2], strides=[2], pads=[1, 2])
    check("Conv", floats(2, 4, 7, 8), floats(6, 2, 3, 2), const=[1], group=2, dilations=[2, 1], pads=[0, 1, 2, 3])
    check("Conv", floats(1, 4, 7, 6), floats(4, 1, 3, 3), floats(4), const=[1, 2], group=4, pads=[1, 0, 1, 1])
    check("Conv", floats(1, 2, 4, 5, 6), floats(3, 2, 2, 3, 2), floats(3), const=[1], pads=[1, 0, 0, 0, 1, 1])
    check("Conv", floats(1, 2, 5, 5), floats(3, 2, 3, 3))  # weights that are an input of the model


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_auto_pad(auto_pad: str, stride: int) -> None:
    w = floats(2, 3, 3, 2)
    check("Conv", floats(1, 3, 7, 8), w, const=[1], auto_pad=auto_pad, strides=[stride] * 2, kernel_shape=[3, 2])
    kernel: dict[str, Any] = {"auto_pad": auto_pad, "strides": [stride] * 2, "kernel_shape": [3, 2]}
    check("MaxPool", -np.abs(floats(1, 3, 7, 8)), opset=12, **kernel)
    check("AveragePool", floats(1, 3, 7, 8), opset=19, **kernel)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(
    "geometry", [(17, 2, 2, 1, 1), (5, 3, 2, 0, 1), (4, 1, 2, 0, 0), (7, 3, 3, 1, 0), (6, 4, 3, 2, 2)]
)
def test_pools(geometry: tuple[int, int, int, int, int], ceil_mode: int, include: int) -> None:
    size, kernel, stride, lo, hi = geometry
    attrs = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [lo, lo, hi, hi], "ceil_mode": ceil_mode}
    x = floats(1, 2, size, size)
    model = node_model("AveragePool", [x], {**attrs, "count_include_pad": include}, 19, set(), 1)
    got = run(load_onnx(model), {"x0": x})[0]
    assert got.shape[2:] == (pooled_extent(*geometry, ceil_mode),) * 2
    np.testing.assert_allclose(got, average(x, geometry, got.shape[2], include), rtol=1e-4, atol=1e-5)
    model = node_model("MaxPool", [-np.abs(x)], attrs, 12, set(), 1)
    got = run(load_onnx(model), {"x0": -np.abs(x)})[0]
    assert got.shape[2:] == (pooled_extent(*geometry, ceil_mode),) * 2
    check("MaxPool", -np.abs(x), opset=12, **attrs)


def pooled_extent(size: int, kernel: int, stride: int, lo: int, hi: int, ceil_mode: int) -> int:
    """Windows by counting: those that fit, and with ceil_mode those that start inside the input or the begin pad."""
    starts = itertools.count(0, stride)
    padded = size + lo + hi
    if ceil_mode:
        return sum(1 for s in itertools.islice(starts, 50) if s < size + lo and s - stride + kernel < padded)
    return sum(1 for s in itertools.islice(starts, 50) if s + kernel <= padded)


def average(x: np.ndarray, geometry: tuple[int, int, int, int, int], out: int, include: int) -> np.ndarray:
    size, kernel, stride, lo, hi = geometry
    y = np.zeros((*x.shape[:2], out, out), np.float64)
    for i, j in itertools.product(range(out), repeat=2):
        cells = [range(o * stride - lo, o * stride - lo + kernel) for o in (i, j)]
        inside = [[p for p in c if 0 <= p < size] for c in cells]
        counted = [[p for p in c if -lo <= p < size + hi] if include else n for c, n in zip(cells, inside, strict=True)]
        total = x[:, :, inside[0]][:, :, :, inside[1]].sum((2, 3), dtype=np.float64)
        y[:, :, i, j] = total / (len(counted[0]) * len(counted[1]))
    return y


def test_pools_of_other_ranks_and_dilation() -> None:
    check("MaxPool", floats(2, 3, 11), opset=12, kernel_shape=[3], dilations=[2], strides=[2])
    check("MaxPool", floats(1, 2, 5, 6, 7), kernel_shape=[2, 3, 2])
    check("MaxPool", ints(1, 2, 6, 6, dtype=np.int8), opset=12, kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    check("AveragePool", floats(1, 2, 9), opset=19, kernel_shape=[3], dilations=[2], pads=[1, 2])
    check("GlobalAveragePool", floats(2, 3, 4, 5))
    check("GlobalMaxPool", floats(2, 3, 4))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)])
def test_gemm(trans_a: int, trans_b: int, bias: tuple[int, ...] | None) -> None:
    a, b = floats(*((4, 3) if trans_a else (3, 4))), floats(*((5, 4) if trans_b else (4, 5)), seed=1)
    c = [] if bias is None else [floats(*bias, seed=2)]
    attrs = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}
    constant = check("Gemm", a, b, *c, opset=13, const=[1, 2], **attrs)
    assert mnemonics(constant)[trans_a] == "linear"
    check("Gemm", a, b, *c, opset=13, **attrs)  # everything known only at run time
    check("Gemm", a, b, *c, opset=13, const=[1], transA=trans_a, transB=trans_b)


MATMULS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((4,), (2, 4, 3)),
]


@pytest.mark.parametrize("shapes", MATMULS)
@pytest.mark.parametrize("const", [[], [1]])
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, ...]], const: list[int]) -> None:
    check("MatMul", floats(*shapes[0]), floats(*shapes[1], seed=1), const=const)
    check("MatMul", ints(*shapes[0]), ints(*shapes[1], seed=1), const=const)


def test_normalisations() -> None:
    x, c = floats(2, 6, 3, 4), [np.abs(floats(6, seed=i)) + 0.5 for i in range(4)]
    for opset in (8, 9, 14, 15):
        check("BatchNormalization", x, *c, opset=opset, const=[1, 2, 3, 4], epsilon=1e-3)
    check("InstanceNormalization", x, c[0], c[1], const=[1, 2])
    check("LayerNormalization", x, floats(4), floats(4), opset=17, const=[1, 2])
    check("LayerNormalization", x, floats(3, 4), opset=17, axis=-2, epsilon=1e-2)
    check("LayerNormalization", x, floats(4), floats(4), opset=17, outs=3)
    check("GroupNormalization", x, c[0], c[1], opset=21, num_groups=3)


def test_group_norm_of_opset_18_scales_per_group() -> None:
    x, scale, bias = floats(2, 6, 3), floats(3), floats(3, seed=1)
    model = node_model("GroupNormalization", [x, scale, bias], {"num_groups": 3}, 18, {1, 2}, 1)
    want = ReferenceEvaluator(model).run(None, {"x0": x})[0]
    np.testing.assert_allclose(run(load_onnx(model), {"x0": x})[0], want, rtol=1e-4, atol=1e-5)


def test_reshape_family() -> None:
    x = floats(2, 3, 4)
    for target in ([0, -1], [4, 6], [-1], [2, 0, 2, 2], [1, 2, 3, 4]):
        check("Reshape", x, np.array(target), const=[1])
    for axis in (-1, 0, 1, 3):
        check("Flatten", x, opset=13, axis=axis)
    check("Transpose", x)
    check("Transpose", x, perm=[1, 2, 0])
    y = floats(1, 3, 1)
    for opset in (7, 11):
        check("Squeeze", y, opset=opset, axes=[0])
        check("Unsqueeze", y, opset=opset, axes=[0, 4])
    check("Squeeze", y, opset=13)
    check("Squeeze", y, np.array([-1]), opset=13, const=[1])
    check("Unsqueeze", y, np.array([-1, 1]), opset=13, const=[1])


def test_reshape_allowzero_of_empty_tensors() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "a"], ["m"], allowzero=1),
        helper.make_node("Reshape", ["m", "b"], ["y"], allowzero=1),
    ]
    consts = {"a": np.array([4, 2, 0]), "b": np.array([0, 0, 4])}
    x = np.zeros((0, 8, 2), np.float32)
    assert run(load_onnx(graph_model(nodes, {"x": x}, ["y"], 14, consts)), {"x": x})[0].shape == (0, 0, 4)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([1], [-1], [1], [1]),
        ([-1], [-99], [1], [-1]),
        ([0, 4], [99, 0], [0, -1], [2, -2]),
        ([5], [1], [2], [1]),
        ([np.iinfo(np.int64).max], [np.iinfo(np.int64).min], [2], [-1]),
    ],
)
def test_slice(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> None:
    x = floats(3, 4, 6)
    check("Slice", x, *(np.array(v) for v in (starts, ends, axes, steps)), opset=13, const=[1, 2, 3, 4])
    if steps == [1]:
        check("Slice", x, opset=9, starts=starts, ends=ends, axes=[a % 3 for a in axes])


def test_split() -> None:
    x = floats(6, 4)
    check("Split", x, opset=11, outs=3)
    check("Split", x, opset=11, outs=2, axis=1, split=[1, 3])
    check("Split", x, np.array([1, 5]), opset=13, const=[1], outs=2)
    check("Split", x, opset=18, outs=4, num_outputs=4)  # the last part is smaller


def test_concat_tile_expand_gather() -> None:
    check("Concat", floats(2, 3), floats(1, 3), floats(4, 3), axis=0)
    check("Concat", floats(2, 3), axis=-1)
    check("Tile", floats(2, 3), np.array([2, 3]), const=[1])
    check("Expand", floats(3, 1), np.array([2, 1, 4]), const=[1])
    check("Gather", floats(4, 3), np.array([[0, -1], [2, 1]]), const=[1])
    check("Gather", floats(4, 3), np.array(2), const=[1], axis=1)
    check("Gather", floats(4, 3), np.array([-1, 0]), axis=1)
    check("OneHot", ints(2, 3, lo=-2, hi=4, dtype=np.int64), np.array(4), floats(2), const=[1], axis=1)
    check("Trilu", floats(3, 4), np.array(1), const=[1], opset=14, upper=0)
    check("ConstantOfShape", np.array([2, 3]), const=[0], value=numpy_helper.from_array(np.array([7], np.int32)))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("pads", [[0, 1, 2, 1], [1, 0, 0, 0], [0, -1, 1, -1]])
def test_pad(mode: str, pads: list[int]) -> None:
    x = floats(3, 5)
    check("Pad", x, opset=10, pads=pads, mode=mode)
    check("Pad", x, np.array(pads), np.float32(1.5), opset=13, const=[1, 2], mode=mode)
    check("Pad", x, np.array([2, 1]), None, np.array([-1]), opset=18, const=[1, 3], mode=mode)
    check("Pad", ints(3, 5), np.array(pads), np.int32(-7), opset=13, const=[1, 2], mode=mode)


def test_pad_wraps_around() -> None:
    check("Pad", floats(3, 5), np.array([1, 2, 3, 0]), opset=19, const=[1], mode="wrap")


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode: str) -> None:
    check("DepthToSpace", floats(1, 12, 2, 3), opset=13, blocksize=2, mode=mode)
    check("SpaceToDepth", floats(1, 3, 4, 6), opset=13, blocksize=2)


def test_shape_and_size_are_constants() -> None:
    x = floats(2, 3, 4)
    for op, attrs in (("Shape", {}), ("Shape", {"start": 1, "end": -1}), ("Size", {})):
        program = check(op, x, opset=15, **attrs)
        assert [type(o) for o in program.ops()][:-1] == [ConstOp]


def test_constant_forms() -> None:
    for attrs in ({"value_float": 1.5}, {"value_ints": [1, 2]}, {"value": numpy_helper.from_array(np.eye(2))}):
        check("Constant", opset=13, **attrs)


@pytest.mark.parametrize(("dtype", "opset"), [(np.int8, 13), (np.uint8, 10), (np.int16, 21), (np.uint16, 21)])
def test_quantize_dequantize(dtype: type, opset: int) -> None:
    x, zero = np.append(floats(3, 4, scale=60), np.float32([[0.25, 0.75, -0.25, 1e6]]), 0), np.array(3, dtype)
    check("QuantizeLinear", x, np.float32(0.5), zero, opset=opset, const=[1, 2])
    q = ints(4, 3, lo=0, hi=100, dtype=dtype)
    check("DequantizeLinear", q, np.float32(0.5), zero, opset=opset, const=[1, 2])
    if opset > 10:
        scales, zeros = np.float32([0.5, 0.25, 2]), np.array([3, 0, 5], dtype)
        check("QuantizeLinear", floats(3, 4), scales, zeros, opset=opset, const=[1, 2], axis=-2)
        check("DequantizeLinear", q, scales, zeros, opset=opset, const=[1, 2], axis=1)
    check("DequantizeLinear", ints(5, hi=1000), np.float32(0.01), opset=opset, const=[1])


def test_dequantized_weights_stay_integers() -> None:
    w, scale = ints(4, 3, dtype=np.int8), np.float32([0.1, 0.2, 0.3])
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wf"], axis=1),
        helper.make_node("MatMul", ["x", "wf"], ["y"]),
    ]
    program = agree(graph_model(nodes, {"x": floats(2, 4)}, ["y"], 13, {"w": w, "s": scale}), {"x": floats(2, 4)})
    ops = [o for o in program.ops() if isinstance(o, ConstOp | TensorOp)]
    assert [o.name.rpartition(".")[2] for o in ops] == ["const", "dequantize", "linear"]
    stored = program.constants[ops[0].handle.data]  # type: ignore[union-attr]
    np.testing.assert_array_equal(stored, w.T)
    assert stored.dtype == np.int8


def test_integer_operators() -> None:
    x, w = ints(1, 2, 5, 5, lo=0, hi=256, dtype=np.uint8), ints(3, 2, 3, 3, lo=0, hi=256, dtype=np.uint8, seed=1)
    check("ConvInteger", x, w, np.uint8(7), np.uint8(9), opset=13, const=[1, 2, 3], pads=[1, 1, 1, 1])
    a, b = ints(3, 4, lo=0, hi=256, dtype=np.uint8), halved(ints(4, 5, dtype=np.int8, lo=-128, hi=128))
    check("MatMulInteger", a, b, np.uint8(3), np.int8([1, -2, 3, 0, 5]), opset=13, const=[1, 2, 3])
    # Pair sums of 16 bits would saturate here, as ONNX Runtime's do on some processors.
    model = node_model("MatMulInteger", [np.full((1, 8), 255, np.uint8), np.full((8, 1), 127, np.int8)], {}, 13, {1})
    assert run(load_onnx(model), {"x0": np.full((1, 8), 255)})[0].tolist() == [[255 * 127 * 8]]


def test_qlinear_conv_with_zero_points_per_channel() -> None:
    x, w = ints(1, 1, 2, 2, lo=0, hi=255, dtype=np.uint8), np.array([[[[130]]], [[[120]]], [[[200]]]], np.uint8)
    zeros, scales = np.uint8([128, 121, 130]), np.float32([0.5, 0.25, 0.125])
    args = [x, np.float32(0.5), np.uint8(3), w, scales, zeros, np.float32(0.75), np.uint8(10), ints(3)]
    model = node_model("QLinearConv", args, {}, 13, set(range(1, 9)), 1)
    weights = (w.astype(np.float64)[:, 0] - zeros.reshape(3, 1, 1)) * scales.reshape(3, 1, 1)
    real = (x.astype(np.float64) - 3) * 0.5 * weights
    real = real + (args[8] * 0.5 * scales).reshape(3, 1, 1)
    want = np.clip(np.rint(real / 0.75) + 10, 0, 255)
    np.testing.assert_array_equal(run(load_onnx(model), {"x0": x})[0], want.astype(np.uint8))


def test_qlinear_matmul() -> None:
    a, b = ints(2, 4, lo=0, hi=255, dtype=np.uint8), ints(4, 3, lo=-128, hi=128, dtype=np.int8)
    args = [a, np.float32(0.5), np.uint8(3), b, np.float32(0.25), np.int8(-1), np.float32(4), np.uint8(128)]
    check("QLinearMatMul", *args, opset=13, const=range(1, 8))


def test_operators_of_onnx_runtime() -> None:
    a, b = ints(2, 3, lo=0, hi=255, dtype=np.uint8), ints(3, lo=0, hi=255, dtype=np.uint8)
    scales = [np.float32(0.5), np.uint8(3), b, np.float32(0.25), np.uint8(100), np.float32(0.75), np.uint8(9)]
    check("QLinearAdd", a, *scales, opset=13, const=[1, 2, 4, 5, 6, 7], domain="com.microsoft")
    check("Gelu", floats(3, 4), opset=13, domain="com.microsoft")


def test_four_bit_constants() -> None:
    """Packed int4 weights are read and dequantized exactly."""
    packed = helper.make_tensor("w", TensorProto.INT4, [5], [-8, 7, 3, -1, 0])
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"])
    model = graph_model([node], {}, ["y"], 21, {"s": np.float32(0.5)})
    model.graph.initializer.append(packed)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [5]))
    program = load_onnx(model)
    np.testing.assert_array_equal(run(program, {})[0], np.float32([-4, 3.5, 1.5, -0.5, 0]))

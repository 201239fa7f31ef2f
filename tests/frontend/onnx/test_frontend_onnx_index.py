"""Converters of recurrent layers, interpolation, indexing, Einsum, control flow and signals against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cuvil_hw.errors import Unsupported
from cuvil_hw.frontend.onnx import load_onnx
from tests.support.onnx_oracle import agree, check, floats, graph_model, ints, mnemonics, node_model

EMPTY = np.zeros(0, np.float32)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def weights(kind: str, directions: int, features: int = 3, hidden: int = 4) -> list[np.ndarray]:
    """W, R, B"""
    wide = GATES[kind] * hidden
    shapes = (directions, wide, features), (directions, wide, hidden), (directions, 2 * wide)
    return [floats(*s, seed=n, scale=0.5) for n, s in enumerate(shapes)]


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_directions_states_and_lengths(kind: str, direction: str) -> None:
    d = 1 + (direction == "bidirectional")
    x, state = floats(5, 2, 3), floats(d, 2, 4, seed=9)
    outs = 3 if kind == "LSTM" else 2
    attrs: dict[str, Any] = {"hidden_size": 4, "direction": direction}
    check(kind, x, *weights(kind, d), outs=outs, const=[1, 2, 3], opset=14, **attrs)
    states = [state, floats(d, 2, 4, seed=8)][: 2 if kind == "LSTM" else 1]
    lengths = np.int32([3, 5])
    check(kind, x, *weights(kind, d), lengths, *states, outs=outs, const=[1, 2, 3], opset=14, **attrs)


def test_recurrent_options() -> None:
    x = floats(4, 2, 3)
    lstm: dict[str, Any] = {"outs": 3, "const": [1, 2, 3], "opset": 14, "hidden_size": 4}
    peepholes = floats(1, 12, seed=5)
    check("LSTM", x, *weights("LSTM", 1), None, None, None, peepholes, **lstm)
    check("LSTM", x, *weights("LSTM", 1), clip=0.3, **lstm)
    names = ["HardSigmoid", "Softsign", "ScaledTanh"]
    check(
        "LSTM",
        x,
        *weights("LSTM", 1),
        activations=names,
        activation_alpha=[0.3, 0.5],
        activation_beta=[0.4, 0.6],
        **lstm,
    )
    gru: dict[str, Any] = {"outs": 2, "const": [1, 2, 3], "opset": 14, "hidden_size": 4}
    check("GRU", x, *weights("GRU", 1), linear_before_reset=1, **gru)
    check("RNN", x, *weights("RNN", 1), activations=["Affine"], activation_alpha=[0.5], activation_beta=[0.1], **gru)
    with pytest.raises(Unsupported, match="activation 'Swish'"):
        load_onnx(
            node_model("RNN", [x, *weights("RNN", 1)], {"activations": ["Swish"], "hidden_size": 4}, 14, {1, 2, 3})
        )


@pytest.mark.parametrize(
    "name", ["Elu", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Affine", "Softsign"]
)
def test_activations_of_recurrent_layers(name: str) -> None:
    given = [floats(4, 2, 3), *weights("RNN", 1)]
    alpha = {} if name == "Softsign" else {"activation_alpha": [0.7]}
    beta = {"activation_beta": [0.3]} if name in ("ScaledTanh", "HardSigmoid", "Affine") else {}
    attrs: dict[str, Any] = {"hidden_size": 4, "activations": [name]}
    check("RNN", *given, outs=2, const=[1, 2, 3], opset=14, **attrs, **alpha, **beta)
    if name in ("ThresholdedRelu", "ScaledTanh", "Affine"):
        with pytest.raises(Unsupported, match="its default is not agreed upon"):
            load_onnx(node_model("RNN", given, attrs, 14, {1, 2, 3}, 2))
    else:
        check("RNN", *given, outs=2, const=[1, 2, 3], opset=14, **attrs)


TRANSFORMS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize(mode: str, transform: str) -> None:
    x = floats(1, 2, 5, 6)
    attrs = {"mode": mode, "coordinate_transformation_mode": transform}
    for scales in ([1, 1, 2, 3], [1, 1, 0.6, 0.5], [1, 1, 1.7, 0.9])[: 1 if transform == "align_corners" else 3]:
        check("Resize", x, EMPTY, np.float32(scales), const=[1, 2], opset=13, **attrs)
    check("Resize", x, None, None, np.int64([1, 2, 3, 11]), const=[3], opset=13, **attrs)


def test_resize_options() -> None:
    x, up = floats(1, 1, 4, 5), np.float32([1, 1, 2.5, 1.5])
    for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
        check("Resize", x, None, up, const=[2], opset=13, mode="nearest", nearest_mode=rounding)
    check("Resize", x, None, up, const=[2], opset=13, mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)
    for mode in ("linear", "cubic"):
        check("Resize", x, None, np.float32([1, 1, 0.5, 0.6]), const=[2], opset=18, mode=mode, antialias=1)
    check("Resize", x, None, None, np.int64([9, 7]), const=[3], opset=18, mode="linear", axes=[2, 3])
    roi = np.float32([0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2])
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    check("Resize", x, roi, None, np.int64([1, 1, 6, 7]), const=[1, 3], opset=13, **crop)
    check("Resize", ints(1, 1, 4, 5, dtype=np.int32), None, up, const=[2], opset=13, mode="nearest")
    for scales in ([1, 1, 2, 3], [1, 1, 0.5, 0.2], [1, 1, 1.5, 2.5]):
        check("Resize", x, np.float32(scales), const=[1], opset=10, mode="nearest")
    with pytest.raises(Unsupported, match="open before opset 11"):
        load_onnx(node_model("Resize", [x, np.float32([1, 1, 0.6, 1])], {"mode": "nearest"}, 10, {1}))
    check("Upsample", x, np.float32([1, 1, 2, 3]), const=[1], opset=9, mode="linear")
    check("Upsample", x, np.float32([1, 1, 2, 3]), const=[1], opset=9, mode="nearest")


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose(groups: int) -> None:
    x, w, b = floats(2, 4, 5, 4), floats(4, 3, 3, 2), floats(3 * groups)
    check("ConvTranspose", x, w, b, const=[1, 2], group=groups, strides=[2, 3], pads=[1, 0, 0, 1], dilations=[1, 2])
    check("ConvTranspose", x, w, const=[1], group=groups, strides=[2, 3], output_padding=[1, 2])
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        check("ConvTranspose", x, w, const=[1], group=groups, strides=[2, 2], auto_pad=auto)
    check("ConvTranspose", x, w, const=[1], group=groups, strides=[2, 2], output_shape=[10, 8])


def test_top_k_cumsum_scatter_and_pools() -> None:
    x = floats(3, 7)
    x[0, :4] = 1.5
    check("TopK", x, np.int64([4]), const=[1], outs=2, axis=1)
    check("TopK", x, np.int64([2]), const=[1], outs=2, axis=0, largest=0)
    check("TopK", x, outs=2, k=3, axis=-1, opset=9)
    check("CumSum", x, np.int64(-1), const=[1], reverse=1, exclusive=1)
    check("Hardmax", x, opset=11, axis=0)
    check("GatherElements", x, ints(3, 2, lo=-7, hi=7, dtype=np.int64), axis=1)
    check("GatherND", x, ints(4, 2, lo=0, hi=3, dtype=np.int64))
    check(
        "ScatterElements",
        x,
        ints(3, 2, lo=0, hi=7, dtype=np.int64),
        floats(3, 2, seed=3),
        axis=1,
        reduction="add",
        opset=16,
    )
    check("ScatterND", x, ints(4, 1, lo=0, hi=3, dtype=np.int64), floats(4, 7, seed=3), reduction="mul", opset=16)
    check("Compress", x, np.array([True, False, True]), const=[1], axis=0)
    check("LpPool", floats(1, 2, 6, 6), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0], p=3)
    check("GlobalLpPool", floats(1, 2, 6, 6), p=1)
    check("LRN", floats(1, 5, 3, 3), size=3, alpha=0.2, beta=0.6, bias=2.0)
    check("MaxPool", floats(1, 2, 6, 6), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0], outs=2, opset=12)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("ij->ji", [(2, 3)]),
        ("ii->i", [(3, 3)]), ("ii", [(3, 3)]), ("...ij,...jk", [(2, 3, 4), (2, 4, 5)]), ("i,j->ij", [(2,), (3,)]),
        ("ij,ij->", [(2, 3), (2, 3)]), ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
        ("i...,j->...j", [(2, 3), (4,)]), ("ijj,jk->k", [(2, 3, 3), (3, 2)]),
    ],
)  # fmt: skip
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    check("Einsum", *(floats(*s, seed=n) for n, s in enumerate(shapes)), equation=equation, opset=12)


def test_einsum_of_integers_and_refusals() -> None:
    check("Einsum", ints(2, 3, dtype=np.int64), ints(3, 4, dtype=np.int64), equation="ij,jk->ik", opset=12)
    for equation, said in (("ij->k", "no operand has the index 'k'"), ("ij->ii", "repeats"), ("ijk->i", "doesn't fit")):
        node = helper.make_node("Einsum", ["x"], ["y"], equation=equation)
        graph = helper.make_graph(
            [node], "g", [helper.make_tensor_value_info("x", 1, [2, 3])], [onnx.ValueInfoProto(name="y")]
        )
        with pytest.raises(Unsupported, match=said):
            load_onnx(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 12)]))


def value(name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def test_an_if_with_a_run_time_condition_takes_both_branches() -> None:
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [value(op, [3])]) for op in ("Neg", "Abs")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    for condition in (True, False):
        given = {"x": floats(3), "c": np.array(condition)}
        program = agree(graph_model([node], given, ["y"], 13), given)
        assert mnemonics(program).count("where") == 1


def loop(steps: int | None) -> onnx.ModelProto:
    """s = s · x, collecting s, `steps` times."""
    body = helper.make_graph(
        [helper.make_node("Mul", ["s", "x"], ["t"]), helper.make_node("Identity", ["c"], ["d"]),
         helper.make_node("Identity", ["t"], ["all"])],
        "body", [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("s", [3])],
        [value("d", [], TensorProto.BOOL), value("t", [3]), value("all", [3])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "scan"], body=body)
    if steps is None:
        return graph_model([node], {"x": floats(3), "n": np.array(2)}, ["y", "scan"], 13)
    return graph_model([node], {"x": floats(3)}, ["y", "scan"], 13, {"n": np.array(steps)})


def test_loops_of_known_length_stay_loops() -> None:
    for steps in (4, 5000):
        program = agree(loop(steps), {"x": floats(3) if steps == 4 else np.array([1, 1.0001, -0.5], np.float32)})
        assert mnemonics(program).count("mul") == 1
        assert "loop_begin" in mnemonics(program)
    with pytest.raises(Unsupported, match="its trip count and condition must be constant"):
        load_onnx(loop(None))


def test_loops_whose_steps_differ_are_unrolled() -> None:
    """The number of the step decides a shape here: x without its first i + 1 elements, summed."""
    body = helper.make_graph(
        [helper.make_node("Add", ["i", "one"], ["j"]), helper.make_node("Slice", ["x", "j", "end"], ["part"]),
         helper.make_node("ReduceSum", ["part"], ["sum"], keepdims=0), helper.make_node("Add", ["s", "sum"], ["t"]),
         helper.make_node("Identity", ["c"], ["d"])],
        "body", [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("s", [])],
        [value("d", [], TensorProto.BOOL), value("t", [])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "s0"], ["y"], body=body)
    constants = {"n": np.array(3), "one": np.array([1]), "end": np.array([9])}
    given = {"x": floats(5), "s0": np.array(0.5, np.float32)}
    program = agree(graph_model([node], given, ["y"], 13, constants), given)
    assert mnemonics(program).count("reduce_sum") == 3
    assert "loop_begin" not in mnemonics(program)


def test_scan() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Mul", ["t", "e"], ["p"])],
        "body", [value("s", [2]), value("e", [2])], [value("t", [2]), value("p", [2])],
    )  # fmt: skip
    for back in (0, 1):
        directions = {"scan_input_directions": [back], "scan_output_directions": [back]}
        axes = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_output_axes": [1]}
        node = helper.make_node("Scan", ["s0", "xs"], ["y", "ys"], body=body, **directions, **axes)
        given = {"s0": floats(2), "xs": floats(2, 5)}
        agree(graph_model([node], given, ["y", "ys"], 13), given)


def test_fourier_transforms() -> None:
    x = floats(2, 9, 1)
    for attrs in ({}, {"onesided": 1}):
        check("DFT", x, opset=17, axis=1, **attrs)
        check("DFT", x, np.int64(6), const=[1], opset=17, axis=1, **attrs)
        check("DFT", x, np.int64(12), const=[1], opset=17, axis=1, **attrs)
    check("DFT", floats(2, 8, 2), opset=17, axis=1, inverse=1)
    check("STFT", floats(2, 32, 1), np.int64(5), floats(8), const=[1], opset=17)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantization_with_scales_known_at_run_time(dtype: type) -> None:
    x = floats(2, 3, 4, scale=20.0)
    for scale, zero in ((np.float32(0.3), dtype(3)), (np.float32([0.1, 0.2, 3.0]), np.array([1, 2, 3], dtype))):
        check("QuantizeLinear", x, scale, zero, opset=13, axis=1)
        check("DequantizeLinear", ints(2, 3, 4, lo=0, hi=100, dtype=dtype), scale, zero, opset=13, axis=1)
    assert "quantize" not in mnemonics(check("DynamicQuantizeLinear", x, outs=3, opset=11))

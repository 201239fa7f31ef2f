"""Small valid ONNX models of many kinds, for fuzz_onnx.py to damage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
Make = Callable[[], onnx.ModelProto]


def values(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(seed)
    made = draw.standard_normal(shape) if np.dtype(dtype).kind == "f" else draw.integers(0, 4, shape)
    return np.asarray(made, dtype)


def ints(*numbers: int) -> np.ndarray[Any, Any]:
    return np.asarray(numbers, np.int64)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, Any],
    opset: int,
) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    graph = helper.make_graph(
        list(nodes), "g", infos, [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid(d, v) for d, v in (("", opset), ("ai.onnx.ml", 3 if opset < 24 else 5),
              ("com.microsoft", 1), ("qonnx.custom_op.general", 1))]  # fmt: skip
    return helper.make_model(graph, ir_version=8 if opset < 24 else 11, opset_imports=opsets)


def one(op: str, *operands: Any, opset: int = 17, const: Sequence[int] = (), outs: int = 1, **attrs: Any) -> Make:
    """A model of one operator and a Relu or Abs before it; the operands `const` are constants."""

    def make() -> onnx.ModelProto:
        names = ["" if a is None else f"x{i}" for i, a in enumerate(operands)]
        given = {n: np.asarray(a) for n, a in zip(names, operands, strict=True) if n}
        constants = {n: a for n, a in given.items() if int(n[1:]) in const}
        live = {n: a for n, a in given.items() if n not in constants}
        node = helper.make_node(op, names, [f"y{i}" for i in range(outs)], name="node", **attrs)
        return model([node], live, list(node.output), constants, opset)

    return make


def qdq() -> onnx.ModelProto:
    """Q, DQ around a convolution and a linear layer, as ONNX Runtime writes them."""
    s, z = np.float32(0.05), np.int8(3)
    constants = {
        "s": s, "z": z, "w": values(4, 3, 3, 3, dtype=np.int8), "ws": np.full(4, 0.02, np.float32),
        "wz": np.zeros(4, np.int8), "b": np.arange(4, dtype=np.int32), "bs": np.full(4, 0.001, np.float32),
        "bz": np.zeros(4, np.int32), "shape": ints(1, -1), "v": values(2, 16, dtype=np.int8), "vs": np.float32(0.1),
        "vz": np.int8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["db"], axis=0),
        helper.make_node("Conv", ["d", "dw", "db"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q2"]),
        helper.make_node("DequantizeLinear", ["q2", "s", "z"], ["d2"]),
        helper.make_node("Reshape", ["d2", "shape"], ["f"]),
        helper.make_node("DequantizeLinear", ["v", "vs", "vz"], ["dv"]),
        helper.make_node("Gemm", ["f", "dv"], ["g"], transB=1),
        helper.make_node("QuantizeLinear", ["g", "s", "z"], ["q3"]),
        helper.make_node("DequantizeLinear", ["q3", "s", "z"], ["y"]),
    ]
    return model(nodes, {"x": values(1, 3, 4, 4)}, ["y"], constants, 13)


def network() -> onnx.ModelProto:
    """Convolution, batch norm, pool, depthwise convolution, residual, mean, softmax: a keyword spotter in small."""
    constants = {
        "w": values(4, 1, 3, 3), "b": values(4), "g": values(4), "m": values(4), "v": np.ones(4, np.float32),
        "dw": values(4, 1, 3, 3), "axes": ints(2, 3), "fw": values(4, 3), "fb": values(3),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], epsilon=1e-5),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Conv", ["r", "dw"], ["d"], group=4, pads=[1, 1, 1, 1], dilations=[1, 1]),
        helper.make_node("Add", ["d", "r"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=0),
        helper.make_node("ReduceMean", ["p", "axes"], ["e"], keepdims=0),
        helper.make_node("MatMul", ["e", "fw"], ["f"]),
        helper.make_node("Add", ["f", "fb"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"], axis=-1),
    ]
    return model(nodes, {"x": values(1, 1, 8, 6)}, ["y"], constants, 18)


def attention() -> onnx.ModelProto:
    constants = {"q": values(4, 4), "k": values(4, 4), "mask": np.where(np.tri(3) > 0, 0, -np.inf).astype(np.float32),
                 "scale": np.float32(0.5), "g": values(4), "b": values(4)}  # fmt: skip
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "q"], ["h"]),
        helper.make_node("MatMul", ["n", "k"], ["i"]),
        helper.make_node("Transpose", ["i"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["h", "t"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["m"]),
        helper.make_node("Add", ["m", "mask"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"], axis=2),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    return model(nodes, {"x": values(1, 3, 4)}, ["y"], constants, 17)


def shapes() -> onnx.ModelProto:
    """Shape arithmetic as exporters write it."""
    constants = {"one": ints(1), "two": ints(2), "zero": ints(0), "start": np.int64(0), "step": np.int64(1),
                 "n": np.int64(6), "depth": np.int64(4), "onoff": values(2)}  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "one", "two", "zero"], ["c"]),
        helper.make_node("Concat", ["one", "c"], ["t"], axis=0),
        helper.make_node("ConstantOfShape", ["t"], ["z"], value=numpy_helper.from_array(np.float32([2]))),
        helper.make_node("Add", ["x", "z"], ["a"]),
        helper.make_node("Range", ["start", "n", "step"], ["r"]),
        helper.make_node("Cast", ["r"], ["f"], to=FLOAT),
        helper.make_node("Add", ["a", "f"], ["b"]),
        helper.make_node("OneHot", ["one", "depth", "onoff"], ["h"], axis=-1),
        helper.make_node("ReduceSum", ["h"], ["hs"], keepdims=0),
        helper.make_node("EyeLike", ["z"], ["eye"], k=1),
        helper.make_node("Add", ["b", "eye"], ["e"]),
        helper.make_node("Add", ["e", "hs"], ["y"]),
    ]
    return model(nodes, {"x": values(2, 6)}, ["y"], constants, 13)


def loop() -> onnx.ModelProto:
    names = {"i": (TensorProto.INT64, []), "going": (TensorProto.BOOL, []), "s": (FLOAT, [2])}
    inputs = [helper.make_tensor_value_info(n, k, s) for n, (k, s) in names.items()]
    outputs = [helper.make_tensor_value_info(n, k, s) for n, k, s in
               (("go", TensorProto.BOOL, []), ("t", FLOAT, [2]), ("u", FLOAT, [2]))]  # fmt: skip
    nodes = [helper.make_node("Identity", ["going"], ["go"]), helper.make_node("Add", ["s", "x"], ["t"]),
             helper.make_node("Relu", ["t"], ["u"])]  # fmt: skip
    body = helper.make_graph(nodes, "body", inputs, outputs)
    node = helper.make_node("Loop", ["n", "yes", "x"], ["y", "all"], body=body)
    return model([node], {"x": values(2)}, ["y", "all"], {"n": np.int64(3), "yes": np.bool_(True)}, 13)


def scan() -> onnx.ModelProto:
    info = [helper.make_tensor_value_info(n, FLOAT, [2]) for n in ("s", "e", "t", "u")]
    nodes = [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Neg", ["t"], ["u"])]
    body = helper.make_graph(nodes, "body", info[:2], info[2:])
    node = helper.make_node("Scan", ["s0", "x"], ["y", "all"], body=body, num_scan_inputs=1, scan_input_axes=[0],
                            scan_output_axes=[1], scan_input_directions=[1])  # fmt: skip
    return model([node], {"x": values(3, 2)}, ["y", "all"], {"s0": values(2)}, 13)


def branch() -> onnx.ModelProto:
    branches = {}
    for side, op in (("then", "Neg"), ("else", "Abs")):
        out = helper.make_tensor_value_info(op, FLOAT, [3])
        branches[f"{side}_branch"] = helper.make_graph([helper.make_node(op, ["x"], [op])], side, [], [out])
    node = helper.make_node("If", ["c"], ["y"], **branches)
    return model([node], {"x": values(3), "c": np.array(True)}, ["y"], {}, 13)


TREE = {
    "nodes_treeids": [0] * 5 + [1] * 3, "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0], "nodes_values": [0.5, -0.2, 0, 0, 0, 0.1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [0] * 8,
}  # fmt: skip
LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2], "ids": [0, 1, 0, 1, 0],
          "weights": [0.5, 1.0, -1.0, 2.0, 0.25]}  # fmt: skip


def trees(op: str, prefix: str, **attrs: Any) -> onnx.ModelProto:
    leaves = {f"{prefix}_{k}": v for k, v in LEAVES.items()}
    outputs = ["y"] if prefix == "target" else ["label", "y"]
    node = helper.make_node(op, ["x"], outputs, domain="ai.onnx.ml", **TREE, **leaves, **attrs)
    return model([node], {"x": values(2, 3)}, outputs, {}, 13)


def ensemble() -> onnx.ModelProto:
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=2, aggregate_function=1, post_transform=0,
        tree_roots=[0, 2], nodes_modes=numpy_helper.from_array(np.array([0, 1, 6], np.uint8)),
        nodes_featureids=[0, 1, 2], nodes_splits=numpy_helper.from_array(np.float32([0.5, 1.5, 2])),
        nodes_truenodeids=[1, 0, 2], nodes_trueleafs=[0, 1, 1], nodes_falsenodeids=[1, 2, 0],
        nodes_falseleafs=[1, 1, 1], leaf_targetids=[0, 1, 0],
        leaf_weights=numpy_helper.from_array(np.float32([5.5, 2.25, 1])),
        membership_values=numpy_helper.from_array(np.float32([1, 2, np.nan])),
    )  # fmt: skip
    return model([node], {"x": values(2, 3)}, ["y"], {}, 24)


def external() -> onnx.ModelProto:
    """Its weights would lie in the model's own file."""
    found = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": values(4)}, ["y"], {"w": values(4)}, 13)
    weight = found.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "m.onnx"), ("offset", "8"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    return found


def function() -> onnx.ModelProto:
    found = model([helper.make_node("Twice", ["x"], ["y"], domain="own")], {"x": values(4)}, ["y"], {}, 17)
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    found.functions.append(helper.make_function("own", "Twice", ["a"], ["b"], body, found.opset_import))
    found.opset_import.append(helper.make_opsetid("own", 1))
    return found


IMAGE = values(1, 2, 6, 6)
UINT8 = np.uint8
MODELS: tuple[Make, ...] = (
    network,
    qdq,
    attention,
    shapes,
    loop,
    scan,
    branch,
    ensemble,
    external,
    function,
    partial(trees, "TreeEnsembleRegressor", "target", n_targets=2, aggregate_function="SUM", base_values=[0.5, 1.0]),
    partial(trees, "TreeEnsembleClassifier", "class", classlabels_int64s=[0, 1, 2], base_values=[0.1, 0.2, 0.3]),
    one("Conv", IMAGE, values(4, 1, 3, 3), const=(1,), group=2, auto_pad="SAME_UPPER", strides=[2, 1]),
    one(
        "ConvTranspose", IMAGE, values(2, 3, 3, 3), const=(1,), strides=[2, 2], output_padding=[1, 1], dilations=[1, 1]
    ),
    one("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], dilations=[1, 1], outs=2),
    one("AveragePool", IMAGE, kernel_shape=[2, 3], strides=[2, 2], count_include_pad=1, ceil_mode=1, opset=19),
    one("LpPool", IMAGE, kernel_shape=[2, 2], p=2, opset=18),
    one("Pad", IMAGE, ints(0, 0, 1, 1, 0, 0, 2, 2), np.float32(0.5), const=(1, 2), mode="constant"),
    one("Pad", IMAGE, ints(0, 0, 1, 1, 0, 0, 2, 2), const=(1,), mode="reflect"),
    one(
        "Resize",
        IMAGE,
        None,
        np.float32([1, 1, 1.5, 2]),
        const=(2,),
        mode="linear",
        opset=18,
        coordinate_transformation_mode="half_pixel",
    ),
    one(
        "Resize",
        IMAGE,
        None,
        None,
        ints(1, 2, 9, 4),
        const=(3,),
        mode="cubic",
        cubic_coeff_a=-0.5,
        antialias=1,
        opset=18,
    ),
    one(
        "Resize",
        IMAGE,
        np.float32([0, 0, 1, 1]),
        None,
        ints(8, 4),
        const=(1, 3),
        mode="nearest",
        opset=18,
        axes=[2, 3],
        coordinate_transformation_mode="tf_crop_and_resize",
        keep_aspect_ratio_policy="stretch",
    ),
    one(
        "LSTM", values(4, 1, 3), values(1, 8, 3), values(1, 8, 2), values(1, 16), const=(1, 2, 3), hidden_size=2, outs=3
    ),
    one(
        "GRU",
        values(4, 1, 3),
        values(2, 6, 3),
        values(2, 6, 2),
        const=(1, 2),
        hidden_size=2,
        direction="bidirectional",
        linear_before_reset=1,
        outs=2,
    ),
    one(
        "RNN",
        values(4, 1, 3),
        values(1, 2, 3),
        values(1, 2, 2),
        const=(1, 2),
        hidden_size=2,
        activations=["Relu"],
        outs=2,
    ),
    one("Gather", values(5, 4), ints(0, 2, -1), const=(1,), axis=0),
    one("GatherND", values(5, 4), values(3, 1, dtype=np.int64), const=(1,), batch_dims=0),
    one("GatherElements", values(5, 4), values(2, 4, dtype=np.int64), const=(1,), axis=0),
    one(
        "ScatterElements", values(5, 4), values(2, 4, dtype=np.int64), values(2, 4), const=(1,), axis=0, reduction="add"
    ),
    one("ScatterND", values(5, 4), values(2, 1, dtype=np.int64), values(2, 4), const=(1,), reduction="mul"),
    one("TensorScatter", values(1, 2, 6, 4), values(1, 2, 2, 4), ints(1), const=(2,), mode="linear", axis=-2, opset=24),
    one(
        "Col2Im",
        values(1, 4, 9),
        ints(4, 4),
        ints(2, 2),
        const=(1, 2),
        strides=[1, 1],
        dilations=[1, 1],
        pads=[0, 0, 0, 0],
        opset=18,
    ),
    one("Slice", values(6, 5), ints(0, 1), ints(6, 5), ints(0, 1), ints(2, 1), const=(1, 2, 3, 4)),
    one("Tile", values(2, 3), ints(2, 3), const=(1,)),
    one("Expand", values(2, 1), ints(3, 2, 4), const=(1,)),
    one("Split", values(6, 4), ints(2, 4), const=(1,), axis=0, outs=2),
    one("Unsqueeze", values(3, 4), ints(0, 3), const=(1,)),
    one("TopK", values(3, 6), ints(2), const=(1,), axis=-1, largest=1, outs=2),
    one("CumSum", values(3, 4), np.int64(1), const=(1,), reverse=1),
    one("Einsum", values(2, 3, 4), values(2, 4, 5), equation="bij,bjk->bik"),
    one("DepthToSpace", values(1, 8, 2, 3), blocksize=2, mode="CRD"),
    one("SpaceToDepth", values(1, 2, 4, 6), blocksize=2),
    one("Flatten", IMAGE, axis=2),
    one("Transpose", values(2, 3, 4), perm=[2, 0, 1]),
    one("Concat", values(2, 3), values(2, 5), axis=1),
    one("Gemm", values(2, 3), values(4, 3), values(4), const=(1, 2), alpha=0.5, beta=2.0, transB=1),
    one("ArgMax", values(3, 4), axis=1, keepdims=0, select_last_index=1),
    one("ReduceL2", values(3, 4, 2), ints(1), const=(1,), keepdims=1, opset=18),
    one("Clip", values(3, 4), np.float32(-1), np.float32(0.5), const=(1, 2)),
    one("LRN", IMAGE, size=3, alpha=0.1, beta=0.5, bias=1.0),
    one("InstanceNormalization", IMAGE, values(2), values(2), const=(1, 2), epsilon=1e-3),
    one("GroupNormalization", values(1, 4, 3, 3), values(4), values(4), const=(1, 2), num_groups=2, opset=21),
    one("Softmax", values(2, 3, 4), axis=1),
    one("GridSample", IMAGE, values(1, 3, 3, 2), mode="linear", padding_mode="border", align_corners=1, opset=20),
    one(
        "RoiAlign",
        IMAGE,
        np.float32([[0, 0, 3, 3]]),
        ints(0),
        const=(1, 2),
        output_height=2,
        output_width=2,
        sampling_ratio=2,
        mode="avg",
    ),
    one("DFT", values(1, 8, 1), None, np.int64(1), const=(2,), onesided=1, opset=20),
    one("STFT", values(1, 32, 1), np.int64(8), values(16), np.int64(16), const=(1, 2, 3)),
    one(
        "MelWeightMatrix",
        np.int64(4),
        np.int64(16),
        np.int64(8000),
        np.float32(0),
        np.float32(4000),
        const=(0, 1, 2, 3, 4),
    ),
    one("HannWindow", np.int64(8), const=(0,), periodic=1),
    one("NonZero", values(3, 3), const=(0,)),
    one("Unique", values(8), const=(0,), sorted=1, axis=0),
    one("Compress", values(3, 4), np.bool_([1, 0, 1]), const=(1,), axis=0),
    one(
        "QLinearConv",
        values(1, 2, 4, 4, dtype=UINT8),
        np.float32(0.1),
        UINT8(3),
        values(3, 2, 3, 3, dtype=UINT8),
        np.float32(0.2),
        UINT8(1),
        np.float32(0.5),
        UINT8(2),
        values(3, dtype=np.int32),
        const=range(1, 9),
    ),
    one(
        "QLinearMatMul",
        values(2, 3, dtype=UINT8),
        np.float32(0.1),
        UINT8(3),
        values(3, 2, dtype=UINT8),
        np.float32(0.2),
        UINT8(1),
        np.float32(0.5),
        UINT8(2),
        const=range(1, 8),
    ),
    one("MatMulInteger", values(2, 3, dtype=UINT8), values(3, 2, dtype=UINT8), UINT8(3), UINT8(1), const=(1, 2, 3)),
    one("ConvInteger", values(1, 2, 4, 4, dtype=UINT8), values(3, 2, 3, 3, dtype=UINT8), UINT8(3), const=(1, 2)),
    one("DynamicQuantizeLinear", values(2, 3), outs=3),
    one(
        "Quant",
        values(2, 3),
        np.float32(0.25),
        np.float32(0),
        np.float32(4),
        const=(1, 2, 3),
        domain="qonnx.custom_op.general",
        signed=1,
        narrow=0,
        rounding_mode="ROUND",
    ),
    one("BipolarQuant", values(2, 3), np.float32(0.25), const=(1,), domain="qonnx.custom_op.general"),
    one("Mod", values(2, 3, dtype=np.int32), values(2, 3, dtype=np.int32), fmod=0),
    one("BitShift", values(2, 3, dtype=UINT8), values(2, 3, dtype=UINT8), direction="LEFT"),
    one("Cast", values(2, 3), to=TensorProto.INT8),
    one("Where", np.bool_([[1, 0, 1]]), values(2, 3), values(2, 1)),
    one("Trilu", values(4, 4), np.int64(1), const=(1,), upper=0),
    one("CenterCropPad", values(5, 6), ints(3, 8), const=(1,), axes=[0, 1], opset=18),
    one("Gelu", values(3, 4), approximate="tanh", opset=20),
    one("Attention", values(1, 2, 3, 4), values(1, 2, 3, 4), values(1, 2, 3, 4), opset=23, is_causal=1, softcap=1.5),
    one(
        "RotaryEmbedding",
        values(1, 2, 3, 4),
        values(8, 2),
        values(8, 2),
        values(1, 3, dtype=np.int64),
        const=(1, 2, 3),
        opset=23,
    ),
    one("ReverseSequence", values(4, 3), ints(1, 2, 3), const=(1,), batch_axis=1, time_axis=0),
    one("EyeLike", values(3, 4), k=1, dtype=1),
    one(
        "MaxUnpool",
        values(1, 1, 2, 2),
        np.arange(4).reshape(1, 1, 2, 2) * 3,
        ints(1, 1, 4, 4),
        const=(1, 2),
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    one("NonMaxSuppression", values(1, 4, 4), values(1, 1, 4), np.int64(2), np.float32(0.5), const=(0, 1, 2, 3)),
)

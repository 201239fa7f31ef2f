"""The models that `tools/replay.py` compiles, torch modules, ONNX graphs and Python functions: small and fixed.

Weights and data are multiples of 1/8 or 1/16 from seeded NumPy generators: sums of them are exact in float32, whatever
order a library adds them in, so that calibration gives the same scales on every machine. Nothing is imported from the
package here: older revisions are replayed with these definitions too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto as T
from onnx import helper as oh
from onnx import numpy_helper
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
IMAGE, ROW = (1, 4, 8, 8), (1, 12)


def exact(rng: np.random.Generator, *shape: int, step: float = 1 / 8) -> Array:
    """f32 multiples of `step` in [-8, 8] · step."""
    return (rng.integers(-8, 9, shape) * step).astype(np.float32)


def settled(model: nn.Module) -> nn.Module:
    """In eval mode, weights multiples of 1/16 up to 1/2, variances of batch norms powers of 4."""
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("running_var"):
                value.copy_(torch.from_numpy(np.asarray(4.0 ** rng.integers(-1, 2, value.shape))))
            elif value.is_floating_point() and not name.endswith("kept"):
                value.copy_(torch.from_numpy(exact(rng, *value.shape, step=1 / 16)))
    return model.eval()


class Of(nn.Module):
    """A function of tensors and modules."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors, *self.parts)


def conv(out: int = 4, size: int = 3, into: int = 4, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(into, out, size, **{"padding": size // 2, **options})


def linear(*sizes: int) -> nn.Sequential:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def digits() -> nn.Module:
    return nn.Sequential(
        conv(6, into=1), nn.ReLU(), nn.MaxPool2d(2), conv(8, into=6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip


def depthwise() -> nn.Module:
    norms = [nn.BatchNorm2d(4, eps=0), nn.BatchNorm2d(6, eps=0)]
    return nn.Sequential(conv(groups=4, bias=False), norms[0], nn.ReLU6(), conv(6, 1, bias=False), norms[1], nn.ReLU6())


def gate(x: Tensor, part: nn.Module, scale: nn.Module) -> Tensor:
    y = part(x)
    return y * torch.sigmoid(scale(y.mean((2, 3), keepdim=True)))


def unet(x: Tensor, down: nn.Module, middle: nn.Module, up: nn.Module) -> Tensor:
    skip = torch.relu(down(x))
    below = torch.relu(middle(F.max_pool2d(skip, 2)))
    y: Tensor = up(torch.cat([F.interpolate(below, scale_factor=2.0, mode="nearest"), skip], 1))
    return y


def attention(x: Tensor, into: nn.Module, out: nn.Module) -> Tensor:
    q, k, v = (t.reshape(1, 6, 2, 4).transpose(1, 2) for t in into(x).split(8, -1))
    y: Tensor = out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 6, 8))
    return y


def activations(x: Tensor) -> Tensor:
    soft = F.softplus(x) + F.mish(x) + F.selu(x) + F.elu(x) + F.silu(x) + torch.erf(x)
    hard = F.hardsigmoid(x) + F.hardswish(x) + F.leaky_relu(x, 0.125) + F.relu6(x) + torch.sign(x)
    return soft + hard + F.gelu(x) + F.gelu(x, approximate="tanh") + torch.sigmoid(x)


def scalars(x: Tensor) -> Tensor:
    p = x.abs() + 0.5
    y = torch.exp(-p) + torch.log(p) + torch.sqrt(p) + torch.reciprocal(p) + p**1.5 + torch.fmod(x, 0.75)
    y = y + torch.floor(x) + torch.ceil(x) + torch.round(x) + torch.clamp(x, -0.5, 0.75)
    return torch.where(torch.isnan(y) | (x > 0.5) & (x <= 0.9), torch.maximum(x, y), torch.minimum(x, y) / p)


def trigonometry(x: Tensor) -> Tensor:
    u = x / 4
    y = torch.sin(x) + torch.cos(x) + torch.tan(u) + torch.asin(u) + torch.acos(u) + torch.atan(x)
    return y + torch.sinh(x) + torch.cosh(x) + torch.tanh(x) + torch.asinh(x) + torch.acosh(u + 2) + torch.atanh(u)


def norms(x: Tensor, *parts: nn.Module) -> Tensor:
    for part in parts:
        x = part(x)
    return x


def reductions(x: Tensor) -> tuple[Tensor, ...]:
    sums = x.sum(1) + x.mean(1) + x.amax(1) + x.amin(1) + x.prod(1)
    return sums, x.argmax(2), x.argmin(-1), F.log_softmax(x, 1), torch.softmax(x, 2), x.cumsum(1), x.cumprod(2)


def sorting(x: Tensor) -> tuple[Tensor, ...]:
    values, order = torch.topk(x, 3)
    return values, order, torch.sort(x, descending=True).values


def indexing(x: Tensor, table: nn.Module) -> Tensor:
    rows: Tensor = table((x * 2).abs().to(torch.int64).clamp(0, 6))
    return rows.transpose(1, 2)[:, ::2] + rows.gather(1, rows.argmax(1, keepdim=True))[..., :5]


def warped(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, align_corners=False) + F.interpolate(x, (4, 4), mode="bilinear")


def views(x: Tensor, part: nn.Module) -> Tensor:
    y = F.pixel_shuffle(part(x), 2)
    return F.pad(y, (1, 0, 2, 0)).transpose(2, 3)[:, :, 1:-1:2].flip(1).reshape(1, 2, -1)


def pools(x: Tensor) -> tuple[Tensor, ...]:
    overlapping = F.max_pool2d(x, 3, 2, 1)
    padded = F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
    return overlapping + padded, F.adaptive_avg_pool2d(x, 1), F.max_pool2d(x, 2, 1, dilation=2)


class Infinite(nn.Module):
    """A padded convolution one of whose weights is infinite: products with the zeros of pads are NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        one = torch.zeros(4, 4, 3, 3)
        one[0, 1, 0, 0] = torch.inf
        return F.conv2d(x, self.weight + one, padding=1)


class Recurrent(nn.Module):
    """`kind`: nn.LSTM or nn.GRU."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.cells, self.head = kind(4, 6, batch_first=True, **options), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.cells(x)[0][..., -1, :6])
        return y


class Counter(nn.Module):
    """A running sum, kept between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4)
        self.register_buffer("kept", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.kept: Tensor
        self.kept.mul_(0.5).add_(self.layer(x))
        return torch.relu(self.kept)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str]]],
    constants: Mapping[str, Array] | None = None,
    **domains: int,
) -> onnx.ModelProto:
    """An ONNX model of opset 21 from types and shapes by name."""

    def ports(kinds: Mapping[str, tuple[int, Sequence[int | str]]]) -> list[onnx.ValueInfoProto]:
        return [oh.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in kinds.items()]

    initial = [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()]
    made = oh.make_graph(nodes, "graph", ports(inputs), ports(outputs), initial)
    opsets = [oh.make_opsetid("", 21), *(oh.make_opsetid(d.replace("_", "."), v) for d, v in domains.items())]
    return oh.make_model(made, opset_imports=opsets, ir_version=10)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """`inputs`, `outputs`: names between spaces; "-" for one left out."""
    return oh.make_node(kind, [n.replace("-", "") for n in inputs.split()], outputs.split(), **attributes)


def whole(*shape: int, dtype: str = "int8", seed: int = 5, most: int = 60) -> Array:
    low = 0 if dtype[0] == "u" else -most
    return np.random.default_rng(seed).integers(low, most + 1, shape).astype(dtype)


def qdq() -> onnx.ModelProto:
    """Convolution, ReLU, addition and an average as quantizers write them: scales that are no powers of two, zero
    points, weights of one scale a channel."""
    each = np.array([0.011, 0.023, 0.007, 0.031], np.float32)
    x, y = np.float32(0.043), np.float32(0.091)
    constants = {
        "s": x, "z": np.uint8(117), "ys": y, "yz": np.uint8(9),
        "w": whole(4, 4, 3, 3), "ws": each, "wz": np.zeros(4, np.int8),
        "b": whole(4, dtype="int32", most=900), "bs": each * x,
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x s z", "xq"), node("DequantizeLinear", "xq s z", "xd"),
        node("DequantizeLinear", "w ws wz", "wd", axis=0), node("DequantizeLinear", "b bs -", "bd", axis=0),
        node("Conv", "xd wd bd", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"),
        node("QuantizeLinear", "r ys yz", "rq"), node("DequantizeLinear", "rq ys yz", "rd"),
        node("Add", "rd xd", "a"), node("QuantizeLinear", "a ys yz", "aq"), node("DequantizeLinear", "aq ys yz", "ad"),
        node("GlobalAveragePool", "ad", "g"), node("QuantizeLinear", "g ys yz", "y"),
    ]  # fmt: skip
    return graph(nodes, {"x": (T.FLOAT, IMAGE)}, {"y": (T.UINT8, (1, 4, 1, 1))}, constants)


def qoperator() -> onnx.ModelProto:
    scales = {"s": np.float32(0.05), "t": np.float32(0.07), "w1": np.float32(0.02)}
    constants = {**scales, "z": np.uint8(120), "v": np.uint8(100), "w": whole(12, 5), "wz": np.int8(0)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("QLinearMatMul", "q s z w w1 wz t v", "m"),
        node("DequantizeLinear", "m t v", "y"),
    ]
    return graph(nodes, {"x": (T.FLOAT, ROW)}, {"y": (T.FLOAT, (1, 5))}, constants)


def bits() -> onnx.ModelProto:
    nodes = [
        node("BitwiseAnd", "a b", "c"), node("BitwiseXor", "c a", "d"), node("BitwiseNot", "d", "e"),
        node("BitwiseOr", "e b", "f"), node("BitShift", "f two", "g", direction="RIGHT"),
        node("BitShift", "g two", "h", direction="LEFT"), node("Mod", "h seven", "i"), node("Div", "i two", "j"),
        node("Max", "j two", "k"), node("Min", "k b", "y"), node("Less", "a b", "l"), node("Not", "l", "n"),
        node("And", "l n", "o"), node("Xor", "o l", "m"),
    ]  # fmt: skip
    constants = {"two": np.uint32(2), "seven": np.uint32(7)}
    kind = (T.UINT32, (3, 5))
    return graph(nodes, {"a": kind, "b": kind}, {"y": kind, "m": (T.BOOL, (3, 5))}, constants)


def widths() -> onnx.ModelProto:
    """Sums, products and conversions of 8 to 64 bits."""
    nodes = [
        node("Cast", "a", "b", to=T.INT16), node("Mul", "b b", "c"), node("Cast", "c", "d", to=T.INT64),
        node("Mul", "d d", "e"), node("Sub", "e d", "f"), node("Neg", "f", "g"), node("Abs", "g", "h"),
        node("Cast", "h", "i", to=T.UINT8), node("Cast", "h", "j", to=T.DOUBLE), node("Sqrt", "j", "k"),
        node("MatMulInteger", "a w", "m"),
    ]  # fmt: skip
    outputs = {"h": (T.INT64, (3, 4)), "i": (T.UINT8, (3, 4)), "k": (T.DOUBLE, (3, 4)), "m": (T.INT32, (3, 5))}
    return graph(nodes, {"a": (T.INT8, (3, 4))}, outputs, {"w": whole(4, 5)})


def scattered() -> onnx.ModelProto:
    nodes = [
        node("GatherND", "x at", "g"), node("ScatterND", "x at g", "s", reduction="add"),
        node("GatherElements", "s rows", "e", axis=0), node("ScatterElements", "x rows e", "t", axis=0),
        node("Gather", "t one", "y", axis=1), node("CumSum", "y zero", "c", reverse=1), node("Tile", "c twice", "z"),
    ]  # fmt: skip
    constants = {
        "at": np.array([[1, 2], [3, 0]]), "rows": whole(2, 3, dtype="uint8", most=3).astype(np.int64),
        "one": np.array([2, 0]), "zero": np.int64(0), "twice": np.array([2, 1]),
    }  # fmt: skip
    return graph(nodes, {"x": (T.FLOAT, (4, 3))}, {"z": (T.FLOAT, (8, 2))}, constants)


def branches() -> onnx.ModelProto:
    """A loop of three trips around a choice that depends on the sum so far."""

    def branch(nodes: Sequence[onnx.NodeProto], name: str) -> onnx.GraphProto:
        return oh.make_graph(nodes, name, [], [oh.make_tensor_value_info("r" + name, T.FLOAT, (1, 12))])

    body = [
        node("ReduceSum", "v", "total", keepdims=0), node("Greater", "total limit", "big"),
        node("If", "big", "next", then_branch=branch([node("Mul", "v half", "rless")], "less"),
             else_branch=branch([node("Add", "v half", "rmore")], "more")),
        node("Identity", "go", "goes"),
    ]  # fmt: skip
    ports = [("i", T.INT64, ()), ("go", T.BOOL, ()), ("v", T.FLOAT, ROW)]
    results = [("goes", T.BOOL, ()), ("next", T.FLOAT, ROW)]
    loop = oh.make_graph(
        body, "body", [oh.make_tensor_value_info(*p) for p in ports], [oh.make_tensor_value_info(*r) for r in results]
    )
    constants = {"trips": np.int64(3), "yes": np.bool_(True), "limit": np.float32(1), "half": np.float32(0.5)}
    nodes = [node("Loop", "trips yes x", "y", body=loop)]
    return graph(nodes, {"x": (T.FLOAT, ROW)}, {"y": (T.FLOAT, ROW)}, constants)


def filter_() -> onnx.ModelProto:
    nodes = [node("Concat", "state x", "all", axis=1), node("Slice", "all from to axis", "new"),
             node("MatMul", "all w", "y")]  # fmt: skip
    constants = {"from": np.array([4]), "to": np.array([12]), "axis": np.array([1]),
                 "w": exact(np.random.default_rng(4), 12, 2)}  # fmt: skip
    inputs = {"x": (T.FLOAT, (1, 4)), "state": (T.FLOAT, (1, 8))}
    return graph(nodes, inputs, {"y": (T.FLOAT, (1, 2)), "new": (T.FLOAT, (1, 8))}, constants)


def forest() -> onnx.ModelProto:
    """Two trees of depth 2 and 1 over three features."""
    trees = [(0, 0, "BRANCH_LEQ", 0, 0.25, 1, 2), (0, 1, "BRANCH_LEQ", 1, -0.5, 3, 4), (0, 2, "LEAF", 0, 0, 0, 0),
             (0, 3, "LEAF", 0, 0, 0, 0), (0, 4, "LEAF", 0, 0, 0, 0), (1, 0, "BRANCH_LEQ", 2, 0.125, 1, 2),
             (1, 1, "LEAF", 0, 0, 0, 0), (1, 2, "LEAF", 0, 0, 0, 0)]  # fmt: skip
    leaves = [(t, n) for t, n, mode, *_ in trees if mode == "LEAF"]
    names = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    columns = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*trees, strict=True), strict=True)}
    columns["nodes_values"] = [float(v) for v in columns["nodes_values"]]
    regressor = node(
        "TreeEnsembleRegressor", "x", "y", domain="ai.onnx.ml", n_targets=1, **columns,
        target_treeids=[t for t, _ in leaves], target_nodeids=[n for _, n in leaves],
        target_ids=[0] * len(leaves), target_weights=[(i + 1) / 8 for i in range(len(leaves))],
    )  # fmt: skip
    return graph([regressor], {"x": (T.FLOAT, (1, 3))}, {"y": (T.FLOAT, (1, 1))}, ai_onnx_ml=3)


def polynomial(x: Array) -> Array:
    y = np.zeros_like(x)
    for k in range(4):
        y = y * x + np.float32(k)
    return np.where(x > 0, y, -x)


def halved(x: Array) -> Array:
    while x.sum() > 1:
        x = x / 2
    return x

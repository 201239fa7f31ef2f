"""Converters of operators that ONNX Runtime's optimizer fuses: activations inside layers, sums inside normalisations,
embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.linear import gemm, product
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Value
from cuvil_hw.frontend.onnx.shape import cut
from cuvil_hw.frontend.onnx.window import conv_value


def activated(n: OnnxNode, y: Value, parameters: Sequence[float | None]) -> Value:
    """y after the activation that the node names, with the node's parameters, or their defaults."""
    name = n.attr("activation", "")

    def number(i: int, default: float) -> float:
        given = parameters[i] if i < len(parameters) else None
        return float(np.float32(default if given is None else given))

    match name:
        case "":
            return y
        case "Relu":
            return n.emit(e.Relu(), y)
        case "Sigmoid":
            return n.emit(e.Sigmoid(), y)
        case "Tanh":
            return n.emit(e.Tanh(), y)
        case "LeakyRelu":
            return n.emit(e.LeakyRelu(number(0, 0.01)), y)
        case "HardSigmoid":
            return n.emit(e.HardSigmoid(number(0, 0.2), number(1, 0.5)), y)
        case "Clip":
            return n.emit(e.Clamp(number(0, -np.inf), number(1, np.inf)), y)
    n.refuse(f"activation {name!r}")


def fused_conv(n: OnnxNode, version: int) -> Value:
    y = conv_value(n, n[0], n[1], n.get(2))
    return activated(n, n.binary(e.Add(), y, n[3]) if n.has(3) else y, n.attr("activation_params", ()) or ())


def _alpha_beta(n: OnnxNode) -> Sequence[float | None]:
    return [n.attr(f"activation_{k}") for k in ("alpha", "beta")]


def fused_gemm(n: OnnxNode, version: int) -> Value:
    return activated(n, gemm(n, version), _alpha_beta(n))


def fused_matmul(n: OnnxNode, version: int) -> Value:
    """alpha · A' · B', each transposed in its last two dimensions if the node says so."""
    if n.integer("transBatchA", 0) or n.integer("transBatchB", 0):
        n.refuse("transposed batches")

    def operand(i: int, name: str) -> Value:
        x = n[i]
        turned = n.integer(name, 0) and x.rank > 1
        return n.transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2)) if turned else x

    y, alpha = product(n, operand(0, "transA"), operand(1, "transB")), n.number("alpha", 1.0)
    y = y if alpha == 1 else n.emit(e.Mul(), y, n.like(alpha, y))
    return activated(n, y, _alpha_beta(n))


def normalised(n: OnnxNode, x: Value, scale: Value, shift: Value | None = None, simple: bool = False) -> Value:
    """Layer or (`simple`) RMS normalisation over the last dimension; an epsilon that isn't given is 1e-12."""
    eps, axis = n.number("epsilon", 1e-12), x.rank - 1
    if not simple:
        return n.emit(e.LayerNorm(axis, eps), x, scale, *([shift] if shift is not None else []))
    mean = n.emit(e.ReduceMean((axis,), True), n.emit(e.Mul(), x, x))
    root = n.emit(e.Sqrt(), n.emit(e.Add(), mean, n.like(eps, mean)))
    return n.binary(e.Mul(), n.binary(e.Div(), x, root), scale)


def skip_norm(simple: bool) -> Converter:
    """Normalisation of x + skip + bias; the sum is the fourth result."""

    def convert(n: OnnxNode, version: int) -> Sequence[Value]:
        if any(n.wanted[1:3]):
            n.refuse("mean and deviation, which only training uses")
        at = 3 if simple else 4
        total = n.binary(e.Add(), n[0], n[1])
        total = n.binary(e.Add(), total, n[at]) if n.has(at) else total
        return normalised(n, total, n[2], None if simple else n.get(3), simple), total, total, total

    return convert


def bias_of(n: OnnxNode) -> Value:
    return n.binary(e.Add(), n[0], n[1]) if n.has(1) else n[0]


def fast_gelu(n: OnnxNode, version: int) -> Value:
    return n.emit(e.Gelu(approximate="tanh"), bias_of(n))


def bias_gelu(n: OnnxNode, version: int) -> Value:
    return n.emit(e.Gelu(), bias_of(n))


def quick_gelu(n: OnnxNode, version: int) -> Value:
    x = n[0]
    return n.emit(e.Mul(), x, n.emit(e.Sigmoid(), n.emit(e.Mul(), x, n.like(n.number("alpha", 1.702), x))))


def embed(n: OnnxNode, ids: Value, segments: Value | None, tables: Sequence[Value | None], scale: Value, shift: Value,
          mask: Value | None, places: Value | None) -> Sequence[Value]:  # fmt: skip
    """(normalised sum of words, positions and segments, ones of the mask in each row, the sum)."""
    words, positions, kinds = tables
    assert words is not None
    total = n.emit(e.Gather(0), words, ids)
    if positions is not None:
        part = n.emit(e.Gather(0), positions, places) if places is not None else None
        if part is None:
            part = cut(n, positions, (0, 0), (ids.shape[1], positions.shape[1]))
        total = n.binary(e.Add(), total, part)
    if kinds is not None:
        if segments is None:
            n.refuse("a table of segments without segments")
        total = n.binary(e.Add(), total, n.emit(e.Gather(0), kinds, segments))
    counts = n.const(np.zeros(ids.shape[:1]), "i32")
    if mask is not None:
        counts = n.emit(e.ReduceSum((1,), False), cast_to(n, mask, "i32"))
    return normalised(n, total, scale, shift), counts, total


def embed_layer_norm(n: OnnxNode, version: int) -> Sequence[Value]:
    return embed(n, n[0], n.get(1), (n[2], n[3], n.get(4)), n[5], n[6], n.get(7), n.get(8))


FUSED: Mapping[str, Converter] = MappingProxyType(
    {
        "FusedConv": fused_conv,
        "FusedGemm": fused_gemm,
        "FusedMatMul": fused_matmul,
        "TransposeMatMul": fused_matmul,
        "FusedMatMulActivation": fused_matmul,
        "SkipLayerNormalization": skip_norm(False),
        "SkipSimplifiedLayerNormalization": skip_norm(True),
        "FastGelu": fast_gelu,
        "BiasGelu": bias_gelu,
        "QuickGelu": quick_gelu,
        "EmbedLayerNormalization": embed_layer_norm,
    }
)

"""bfloat16: a node is computed in f32 and its results are rounded once. Exceptions: nodes that only move elements, and
nodes that are one level1 op, which rounds by itself and leaves weights in bf16."""

from __future__ import annotations

from dataclasses import replace

from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import Converter, OnnxNode, Result, Value

_NATIVE = frozenset(
    """
    Cast CastLike BitCast Identity Reshape Transpose Concat Slice Split Squeeze Unsqueeze Flatten Expand Tile Pad Where
    Gather GatherElements GatherND Shape Size Conv ConvTranspose MatMul MaxPool Relu
    """.split()
)


def convert(n: OnnxNode, version: int, converter: Converter) -> Result:
    """The node's results by its converter. Raises what the converter raises."""
    if not any(v is not None and v.dtype == "bf16" for v in n.inputs) or _native(n):
        return converter(n, version)
    wide = tuple(cast_to(n, v, "f32") if v is not None and v.dtype == "bf16" else v for v in n.inputs)
    made = converter(replace(n, inputs=wide), version)
    if isinstance(made, Value):
        return _rounded(n, made)
    first, *others = made
    keeps = n.proto.op_type == "LayerNormalization"  # mean and inverse deviation are f32, the type they're computed in
    return [_rounded(n, first), *(v if keeps else _rounded(n, v) for v in others)]


def _native(n: OnnxNode) -> bool:
    plain = n.number("alpha", 1.0) == n.number("beta", 1.0) == 1.0
    return n.proto.op_type in _NATIVE or (n.proto.op_type == "Gemm" and plain)


def _rounded(n: OnnxNode, v: Value) -> Value:
    return cast_to(n, v, "bf16") if v.dtype == "f32" else v

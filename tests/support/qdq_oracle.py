"""Quantized ONNX models in NumPy, between QuantizeLinear and DequantizeLinear in float64: walks the graph itself, and
shares neither code nor arithmetic with the product, which has integers and multipliers there.

Sums of integers are exact; what a scale makes of them has 53 bits, so that only a value that lies as near to a tie as
2^-30 of a step could round otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Integers:
    """(q - zero) · scale; `scale` has one value, or one per channel along axis 1 of activations, 0 of weights."""

    q: Array
    scale: Array
    zero: int
    low: int = 0
    high: int = 0

    @property
    def centred(self) -> Array:
        return self.q - self.zero

    @property
    def real(self) -> Array:
        return self.centred * self.scale


def matmul(a: Array, b: Array) -> Array:
    """Exact: all sums are far below 2^53."""
    assert np.abs(a).max(initial=0) * np.abs(b).max(initial=0) * a.shape[-1] < 1 << 53
    return np.rint(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


def convolve(x: Array, w: Array, strides: list[int], pads: list[int], group: int) -> Array:
    """x (N, C, H, W), w (O, C/group, kh, kw); padding holds zeros."""
    padded = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    view = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    view = view[:, :, :: strides[0], :: strides[1]]  # (N, C, OH, OW, kh, kw)
    if group == x.shape[1] and w.shape[1] == 1 and w.shape[0] == group:
        return np.einsum("nchwij,cij->nchw", view, w[:, 0])
    assert group == 1
    n, _, oh, ow = view.shape[:4]
    columns = view.transpose(0, 2, 3, 1, 4, 5).reshape(n * oh * ow, -1)
    return matmul(columns, w.reshape(w.shape[0], -1).T).reshape(n, oh, ow, -1).transpose(0, 3, 1, 2)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


class Oracle:
    """The integer meaning of one model, for any number of samples at once."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.constants = {i.name: numpy_helper.to_array(i) for i in self.graph.initializer}

    def run(self, x: Array) -> tuple[Array, Array]:
        """x (N, …) f32 → (integers of the output, the output as f32)."""
        values: dict[str, Any] = {self.graph.input[0].name: x}
        for node in self.graph.node:
            values[node.output[0]] = getattr(self, node.op_type)(
                [values.get(n, self.constants.get(n)) for n in node.input], attributes(node)
            )
        last = values[self.graph.output[0].name]
        assert isinstance(last, Integers)
        return last.q, last.centred.astype(np.float32) * last.scale.astype(np.float32)

    def QuantizeLinear(self, inputs: list[Any], _: dict[str, Any]) -> Integers:
        x, scale, zero = inputs
        assert scale.size == 1
        bounds = np.iinfo(zero.dtype)
        if isinstance(x, Integers):
            x = x.real
        # Of the model's input in f32, as ONNX has it; of what is between layers in f64.
        q = np.rint(x / scale.astype(x.dtype)).astype(np.int64) + int(zero)
        q = np.clip(q, bounds.min, bounds.max)
        return Integers(q, np.float64(scale).reshape(1), int(zero), bounds.min, bounds.max)

    def DequantizeLinear(self, inputs: list[Any], _: dict[str, Any]) -> Integers:
        x, scale, zero = inputs
        if isinstance(x, Integers):
            assert x.scale == np.float64(scale)
            assert x.zero == zero
            return x
        assert not np.any(zero)
        return Integers(x.astype(np.int64), scale.astype(np.float64).reshape(-1), 0)

    def Conv(self, inputs: list[Any], attrs: dict[str, Any]) -> Array:
        x, w, b = inputs
        assert attrs.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
        assert set(attrs.get("dilations", [1])) == {1}
        pads = attrs.get("pads", [0] * 4)
        y = convolve(x.centred, w.q, attrs.get("strides", [1, 1]), pads, attrs.get("group", 1))
        return y * (x.scale * w.scale).reshape(1, -1, 1, 1) + b.real.reshape(1, -1, 1, 1)

    def Gemm(self, inputs: list[Any], attrs: dict[str, Any]) -> Array:
        x, w, b = inputs
        assert (attrs["alpha"], attrs["beta"], attrs["transA"], attrs["transB"]) == (1, 1, 0, 1)
        return matmul(x.centred, w.q.T) * (x.scale * w.scale) + b.real

    def AveragePool(self, inputs: list[Any], attrs: dict[str, Any]) -> Array:
        (x,) = inputs
        assert x.q.shape[2:] == tuple(attrs["kernel_shape"])
        assert not any(attrs.get("pads", [0]))
        return x.centred.sum(axis=(2, 3), keepdims=True) * x.scale / math.prod(attrs["kernel_shape"])

    def Add(self, inputs: list[Any], _: dict[str, Any]) -> Array:
        a, b = inputs
        return a.real + b.real

    def Reshape(self, inputs: list[Any], _: dict[str, Any]) -> Any:
        x, shape = inputs
        array = x.q if isinstance(x, Integers) else x
        rest = [int(s) for s in shape[1:]]
        moved = array.reshape(array.shape[0], *rest)
        return replace(x, q=moved) if isinstance(x, Integers) else moved

    def Transpose(self, inputs: list[Any], attrs: dict[str, Any]) -> Any:
        (x,) = inputs
        if isinstance(x, Integers):
            return replace(x, q=x.q.transpose(attrs["perm"]))
        return x.transpose(attrs["perm"])

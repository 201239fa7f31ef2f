"""QDQ graphs in few words, for tests of quantized models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


class Graph:
    """QDQ graphs, written shortly. Values are names; x0, x1 … are the inputs."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, Array] = {}
        self.outputs: list[str] = []

    def const(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def real(self, q: str, scale: Any, zero: Any, axis: int = 1) -> str:
        return self.op("DequantizeLinear", q, self.const(np.float32(scale)), self.const(zero), axis=axis)

    def input(self, q: Array, scale: float, zero: int = 0) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = q
        return self.real(name, scale, q.dtype.type(zero))

    def weights(self, q: Array, scale: Any, axis: int = 0) -> str:
        return self.real(self.const(q), scale, np.zeros(np.shape(scale), q.dtype), axis)

    def output(self, x: str, scale: float, zero: Any) -> None:
        self.outputs.append(self.op("QuantizeLinear", x, self.const(np.float32(scale)), self.const(zero)))

    def model(self) -> onnx.ModelProto:
        kinds = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in self.inputs.items()
        ]
        results = [onnx.ValueInfoProto(name=n) for n in self.outputs]
        graph = helper.make_graph(self.nodes, "g", kinds, results, self.constants)
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
        return onnx.shape_inference.infer_shapes(model, data_prop=True)

"""Small ONNX models and ONNX Runtime as the oracle of the ONNX front end's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from cuvil_hw.dtypes import to_numpy
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.level1 import TensorOp
from cuvil_hw.ir.program import Program, evaluate

Arrays = Mapping[str, Any]
IR_VERSION = {7: 4, 8: 4, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7}


def floats(*shape: int, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def ints(*shape: int, lo: int = -9, hi: int = 10, dtype: type = np.int32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(lo, hi, shape).astype(dtype)


def info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def graph_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    outputs: Sequence[str],
    opset: int,
    consts: Arrays | None = None,
    domain: str = "com.microsoft",
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [info(n, a) for n, a in inputs.items()],
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (consts or {}).items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(domain, 1)],
        ir_version=IR_VERSION.get(opset, 8),
    )
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def node_model(
    op: str, inputs: Sequence[Any], attrs: Arrays, opset: int, const: set[int], outs: int = 1
) -> onnx.ModelProto:
    """One node; inputs whose position is in `const` become initializers; None is an absent operand."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    given = {n: np.asarray(a) for n, a in zip(names, inputs, strict=True) if n}
    live = {n: a for n, a in given.items() if int(n[1:]) not in const}
    node = helper.make_node(op, names, [f"y{i}" for i in range(outs)], name="the_node", **attrs)
    return graph_model([node], live, list(node.output), opset, {n: a for n, a in given.items() if n not in live})


def runtime(model: onnx.ModelProto, inputs: Arrays) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # some fusions requantize
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))


def run(program: Program, inputs: Arrays) -> list[np.ndarray]:
    return evaluate(program, [np.asarray(inputs[name], to_numpy(kind.dtype)) for name, kind in program.inputs])


def agree(model: onnx.ModelProto, inputs: Arrays) -> Program:
    program = load_onnx(model)
    want, got = runtime(model, inputs), run(program, inputs)
    assert len(want) == len(got)
    for w, g in zip(want, got, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
    return program


def check(op: str, *inputs: Any, opset: int = 17, const: Sequence[int] = (), outs: int = 1, **attrs: Any) -> Program:
    model = node_model(op, inputs, attrs, opset, set(const), outs)
    live = {i.name for i in model.graph.input}
    return agree(model, {f"x{i}": np.asarray(a) for i, a in enumerate(inputs) if f"x{i}" in live})


def mnemonics(program: Program) -> list[str]:
    return [o.spec.mnemonic for o in program.ops() if isinstance(o, TensorOp)]


@lru_cache(maxsize=1)
def saturates() -> bool:
    """Whether ONNX Runtime's products of u8 and i8 saturate at 16 bits, as they do on processors with AVX2 but without
    VNNI; session.x64quantprecision avoids that only together with graph optimizations, which round elsewhere."""
    a, b = np.full((4, 64), 255, np.uint8), np.full((64, 4), 127, np.int8)
    model = node_model("MatMulInteger", [a, b], {}, 13, {1})
    return bool((runtime(model, {"x0": a})[0] != 255 * 127 * 64).any())


def halved(weights: np.ndarray) -> np.ndarray:
    """Weights of 8 bits whose products with u8 ONNX Runtime adds exactly on this processor: of 7 bits where two
    products saturate, as its documentation advises, else as given."""
    return weights // weights.dtype.type(2) if saturates() else weights

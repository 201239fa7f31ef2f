"""What ONNX Runtime's optimizer and weight packer write (com.microsoft), against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from cuvil_hw.errors import Unsupported
from cuvil_hw.frontend.onnx import load_onnx
from tests.support.onnx_oracle import floats, graph_model, halved, ints, run, runtime
from tests.support.ort_models import NETWORKS, exported

F = np.float32


def agree(op: str, operands: Sequence[Any], live: Sequence[int], outputs: int = 1, **attrs: Any) -> None:
    """One node; `live`: positions of run-time operands; None: absent."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(operands)]
    given = {n: np.asarray(a) for n, a in zip(names, operands, strict=True) if n}
    inputs = {f"x{i}": given.pop(f"x{i}") for i in live}
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain="com.microsoft", **attrs)
    model = graph_model([node], inputs, [o for o in node.output if o], 17, given)
    for got, want in zip(run(load_onnx(model), inputs), runtime(model, inputs), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


KINDS: list[tuple[str, list[float]]] = [("Relu", []), ("Sigmoid", []), ("Tanh", []), ("LeakyRelu", [0.2]),
                                        ("Clip", [-0.5, 1.0]), ("HardSigmoid", [0.3, 0.4])]  # fmt: skip


@pytest.mark.parametrize(("activation", "parameters"), KINDS)
def test_layers_with_an_activation(activation: str, parameters: list[float]) -> None:
    x, w, b = floats(1, 4, 6, 6), floats(5, 4, 3, 3, scale=0.3), floats(5)
    given = {"activation_params": parameters} if parameters else {}
    agree("FusedConv", [x, w, b], [0], activation=activation, pads=[1, 1, 1, 1], **given)
    if activation == "Relu":
        agree("FusedConv", [x, w, b, floats(1, 5, 6, 6)], [0, 3], activation=activation, pads=[1, 1, 1, 1])
    if activation in ("Relu", "LeakyRelu"):
        alpha = {"activation_alpha": parameters[0]} if parameters else {}
        agree("FusedGemm", [floats(3, 4), floats(5, 4), b], [0], activation=activation, transB=1, alpha=0.5, **alpha)


def test_a_parameter_alone_leaves_the_other_its_default() -> None:
    """ONNX Runtime itself wants both: its answer is for the default written out."""
    operands = [floats(3, 4), floats(4, 5), floats(5)]
    inputs = {"x": operands[0]}
    consts = {"w": operands[1], "b": operands[2]}

    def model(**attrs: float) -> Any:
        node = helper.make_node("FusedGemm", ["x", "w", "b"], ["y"], domain="com.microsoft", activation="HardSigmoid",
                                **attrs)  # fmt: skip
        return graph_model([node], inputs, ["y"], 17, consts)

    for given, other in (({"activation_beta": 0.3}, {"activation_alpha": 0.2}),
                         ({"activation_alpha": 0.3}, {"activation_beta": 0.5})):  # fmt: skip
        want = runtime(model(**given, **other), inputs)[0]
        np.testing.assert_allclose(run(load_onnx(model(**given)), inputs)[0], want, rtol=1e-5, atol=1e-6)
        product = helper.make_node("FusedMatMulActivation", ["x", "w"], ["y"], domain="com.microsoft",
                                   activation="HardSigmoid", **given)  # fmt: skip
        alone = graph_model([product], inputs, ["y"], 17, {"w": operands[1]})
        both, y = {**given, **other}, operands[0] @ operands[1]
        want = np.clip(both["activation_alpha"] * y + both["activation_beta"], 0, 1)
        np.testing.assert_allclose(run(load_onnx(alone), inputs)[0], want, rtol=1e-5, atol=1e-6)


def test_matmul_with_transposes() -> None:
    agree("FusedMatMul", [floats(2, 4, 3), floats(2, 5, 4)], [0, 1], transA=1, transB=1, alpha=0.25)
    agree("FusedMatMul", [floats(2, 3, 4), floats(4, 5)], [0], alpha=0.125)
    agree("FusedMatMul", [floats(2, 3, 4), floats(5, 4)], [0], transB=1)


def test_normalisations_of_sums() -> None:
    x, skip = floats(2, 3, 8), floats(2, 3, 8, seed=1)
    scale, shift, bias = floats(8), floats(8, seed=2), floats(8, seed=3)
    node = helper.make_node("SkipLayerNormalization", ["x", "s", "g", "b", "c"], ["y", "", "", "sum"], epsilon=1e-5,
                            domain="com.microsoft")  # fmt: skip
    inputs = {"x": x, "s": skip}
    model = graph_model([node], inputs, ["y", "sum"], 17, {"g": scale, "b": shift, "c": bias})
    for got, want in zip(run(load_onnx(model), inputs), runtime(model, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    agree("SkipLayerNormalization", [x, skip, scale], [0, 1])
    agree("SkipSimplifiedLayerNormalization", [x, skip, scale, bias], [0, 1], epsilon=1e-6)


def test_activations_with_a_bias() -> None:
    x, b = floats(2, 3, 8), floats(8)
    agree("FastGelu", [x, b], [0])
    agree("FastGelu", [x], [0])
    agree("BiasGelu", [x, b], [0])
    agree("QuickGelu", [x], [0])


def test_embeddings() -> None:
    ids, kinds, mask = ints(2, 5, lo=0, hi=9), ints(2, 5, lo=0, hi=2), np.int32([[1] * 5, [1, 1, 1, 0, 0]])
    tables = [floats(9, 8), floats(7, 8, seed=1), floats(2, 8, seed=2)]
    agree("EmbedLayerNormalization", [ids, kinds, *tables, floats(8), floats(8, seed=3), mask], [0, 1, 7], 2)
    agree("EmbedLayerNormalization", [ids, None, *tables[:2], None, floats(8), floats(8, seed=3)], [0], 2)


MASKS = [None, np.int32([3, 5]), np.int32([[1] * 5, [1, 1, 0, 1, 0]]), ints(2, 5, 5, lo=0, hi=2)]


@pytest.mark.parametrize("mask", MASKS, ids=["none", "lengths", "rows", "scores"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask: Any, causal: int) -> None:
    operands = [floats(2, 5, 8), floats(8, 24, scale=0.3), floats(24), mask]
    agree("Attention", operands, [0, 3] if mask is not None else [0], num_heads=2, unidirectional=causal)
    if causal:
        return
    agree("Attention", [*operands, None, floats(2, 2, 5, 5)], [0, 5], num_heads=2, scale=0.7)
    if mask is None or mask.ndim < 3:
        parts = [floats(2, 5, 8, seed=s) for s in (1, 2, 3)]
        agree("MultiHeadAttention", [*parts, floats(24), mask], [0, 1, 2], num_heads=2)


def test_attention_of_integers() -> None:
    """ONNX Runtime quantizes weights to integers with one scale; inputs have the range of their call."""
    x = ints(2, 5, 8, lo=0, hi=256, dtype=np.uint8)
    w = halved(ints(8, 24, lo=-128, hi=128, dtype=np.int8))
    agree("QAttention", [x, w, floats(24), F(0.02), F(0.01), np.int32([[1] * 5, [1, 1, 0, 1, 0]]), np.uint8(120),
                         np.int8(0)], [0, 3, 5, 6], num_heads=2)  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("zeros", ["middle", "packed", "floats"])
def test_weights_in_blocks(bits: int, block: int, zeros: str) -> None:
    features, columns = 40, 6
    blocks = -(-features // block)
    b = ints(columns, blocks, block * bits // 8, lo=0, hi=256, dtype=np.uint8)
    scales = np.abs(floats(columns, blocks, scale=0.02)) + F(1e-3)
    given = {"middle": None, "packed": ints(columns, -(-blocks * bits // 8), lo=0, hi=256, dtype=np.uint8),
             "floats": np.round(floats(columns, blocks)) + 7}[zeros]  # fmt: skip
    if zeros == "floats" and bits == 8:
        pytest.skip("ONNX Runtime has float zero points for 4 bits only")
    agree("MatMulNBits", [floats(2, 3, features), b, scales, given, None, floats(columns)], [0], K=features, N=columns,
          bits=bits, block_size=block, accuracy_level=1)  # fmt: skip


@pytest.mark.parametrize("zeros", [False, True])
def test_tables_in_blocks(zeros: bool) -> None:
    data, scales = ints(7, 16, lo=0, hi=256, dtype=np.uint8), np.abs(floats(7, 2, scale=0.1))
    zero = ints(7, 1, lo=0, hi=256, dtype=np.uint8) if zeros else None
    agree("GatherBlockQuantized", [data, ints(2, 3, lo=0, hi=7, dtype=np.int64), scales, zero], [1], bits=4,
          block_size=16, quantize_axis=1, gather_axis=0)  # fmt: skip


@pytest.mark.parametrize("name", list(NETWORKS))
def test_optimized_models(name: str, tmp_path: Path) -> None:
    """Float networks as ONNX Runtime saves them after its portable optimizations."""
    path, options = tmp_path / "optimized.onnx", ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    exported(name, tmp_path)
    session = ort.InferenceSession(str(tmp_path / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
    sample = NETWORKS[name][1](np.random.default_rng(3))
    np.testing.assert_allclose(run(load_onnx(path), sample)[0], session.run(None, sample)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "why"), [
    ("GroupQueryAttention", "not supported"), ("QMoE", "not supported"), ("MatMulBnb4", "not supported"),
    ("Attention", "keys and values of earlier calls"),
])  # fmt: skip
def test_what_is_refused_and_why(op: str, why: str) -> None:
    operands = [f"x{i}" for i in range(5)]
    node = helper.make_node(op, operands, ["y0"], "the_node", domain="com.microsoft", num_heads=2)
    values = [floats(2, 5, 8), floats(8, 24), floats(24), ints(2), floats(2, 2, 2, 5, 4)]
    with pytest.raises(Unsupported, match=rf"com\.microsoft\.{op} ×1 at the_node: .*{why}"):
        load_onnx(graph_model([node], dict(zip(operands, values, strict=True)), ["y0"], 17))

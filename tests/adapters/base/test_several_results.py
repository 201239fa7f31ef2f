"""Ops with several results on every target: both or either used, elementwise or not, of other shapes and dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil
from cuvil_hw.adapters.target_check import adapter_for
from cuvil_hw.api import compile_program
from cuvil_hw.expr.nodes import Tensor, binary, cast, const, placeholder, reduce, reduction
from cuvil_hw.ir.program import Builder
from cuvil_hw.ops.base import Op, registry
from cuvil_hw.ops.elementwise import Relu
from cuvil_hw.ops.nn import Linear
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType
from tests.support.op_checks import check

X = np.random.default_rng(3).integers(-64, 64, (4, 8)).astype(np.float32) / 8


def both_signs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Elementwise: max(x, 0) and max(−x, 0)."""
    zero = const(0.0, x.dtype)
    return (
        Tensor(x.type, lambda *i: binary("max", x[i], zero)),
        Tensor(x.type, lambda *i: binary("max", -x[i], zero)),
    )


def whole_and_rest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Elementwise, of two dtypes: trunc(x) as i32, and x less it."""

    def whole(*i: Any) -> Any:
        return cast(x[i], "i32")

    return Tensor(TensorType(x.shape, "i32"), whole), Tensor(x.type, lambda *i: x[i] - cast(whole(*i), x.dtype))


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Not elementwise, of two shapes: the first three columns, and the others."""
    rows, columns = x.shape
    return (
        Tensor(TensorType((rows, 3), x.dtype), lambda i, j: x[i, j]),
        Tensor(TensorType((rows, columns - 3), x.dtype), lambda i, j: x[i, j + 3]),
    )


def total_and_share(x: Tensor) -> tuple[Tensor, Tensor]:
    """A reduction in each result, of two shapes: the sum of a row, and each element plus that sum."""

    def total(i: Any) -> Any:
        k = reduction("k", x.shape[1])
        return reduce("sum", [k], x[i, k], const(0.0, x.dtype))

    return Tensor(TensorType(x.shape[:1], x.dtype), total), Tensor(x.type, lambda i, j: x[i, j] + total(i))


OPS: dict[str, tuple[Any, Any, bool]] = {
    "both_signs": (both_signs, lambda x: (np.maximum(x, 0), np.maximum(-x, 0)), True),
    "whole_and_rest": (whole_and_rest, lambda x: (np.trunc(x).astype(np.int32), x - np.trunc(x)), True),
    "halves": (halves, lambda x: (x[:, :3], x[:, 3:]), False),
    "total_and_share": (total_and_share, lambda x: (x.sum(1), x + x.sum(1, keepdims=True)), False),
}


@pytest.fixture(autouse=True)
def ops() -> Iterator[None]:
    known = dict(registry)
    for name, (lowering, reference, elementwise) in OPS.items():
        cuvil.register_op(
            name, shape=lambda x, rule=lowering: tuple(t.type for t in rule(placeholder("x", x))),
            reference=reference, lowering=lowering, elementwise=elementwise, onnx=f"mine::{name}",
        )  # fmt: skip
    yield
    for name in set(registry) - set(known):
        del registry[name]


def model(op: str, *nodes: onnx.NodeProto, outputs: str, x: np.ndarray = X) -> onnx.ModelProto:
    """`op` makes `a` and `b` of abs(x); `nodes` the rest."""
    first = [helper.make_node("Abs", ["x"], ["z"]), helper.make_node(op, ["z"], ["a", "b"], domain="mine")]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    made = [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in outputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(helper.make_graph([*first, *nodes], "m", ends, made), opset_imports=opsets)


def node(op: str, read: str, made: str) -> onnx.NodeProto:
    return helper.make_node(op, list(read), [made])


# What else the model computes, and its outputs; the meaning of each output.
USES: dict[str, tuple[list[onnx.NodeProto], str, Any]] = {
    "both are outputs": ([], "ab", lambda a, b: (a, b)),
    "the first": ([], "a", lambda a, b: (a,)),
    "the second": ([], "b", lambda a, b: (b,)),
    "the second twice": ([node("Neg", "b", "c")], "cb", lambda a, b: (-b, b)),
    "both go on": ([node("Neg", "a", "c"), node("Neg", "b", "d")], "cd", lambda a, b: (-a, -b)),
    "one is an output and goes on": ([node("Abs", "a", "c"), node("Neg", "b", "d")], "bcd",
                                     lambda a, b: (b, np.abs(a), -b)),
    "one is read by what nobody reads": ([node("Neg", "b", "d")], "a", lambda a, b: (a,)),
}  # fmt: skip


ALL, SOME = tuple(USES), ("both are outputs", "one is an output and goes on")
TARGETS = {"cpu": ALL, "h100": ALL, "mlu270": ALL, "pynq-z2": SOME, "agilex": SOME}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", OPS)
def test_every_use_of_the_results(op: str, target: str) -> None:
    results = OPS[op][1](np.abs(X))
    for use in TARGETS[target]:
        nodes, outputs, meaning = USES[use]
        program = cuvil.compile(model(op, *nodes, outputs=outputs), target, precision="float32")
        equal(program(X), meaning(*results), use)


def equal(have: Any, want: Any, use: str = "") -> None:
    for got, wanted in zip(have if isinstance(have, tuple) else (have,), want, strict=True):
        assert got.dtype == wanted.dtype, use
        np.testing.assert_array_equal(got, wanted, err_msg=use)


def test_without_fusion_and_both_in_one_sum() -> None:
    met = model("both_signs", node("Sub", "ab", "c"), outputs="c")
    for level in (0, 2):
        equal(cuvil.compile(met, "cpu", opt_level=level)(X), [np.abs(X)])


@pytest.mark.parametrize("target", ["cpu", "pynq-z2"])
@pytest.mark.parametrize("op", ["both_signs", "halves"])
def test_between_quantized_layers(op: str, target: str) -> None:
    r = np.random.default_rng(1)
    data = r.normal(size=(16, 4, 8)).astype(np.float32)
    widths = [t.shape[1] for t in OPS[op][0](placeholder("x", TensorType(X.shape, "f32")))]
    shapes = {"s": (8, 8), **{name: (n, 4) for name, n in zip("vw", widths, strict=True)}}
    weights = {name: r.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    made = model(op, node("MatMul", "av", "p"), node("MatMul", "bw", "q"), outputs="pq")
    made.graph.node[0].CopyFrom(node("MatMul", "xs", "z"))
    made.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    program = cuvil.compile(made, target, calibration=data, precision="int8")
    a, b = OPS[op][1](data[0] @ weights["s"])
    for got, want in zip(program(data[0]), (a @ weights["v"], b @ weights["w"]), strict=True):
        assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_moves_of_several_results_stay_between_quantized_layers() -> None:
    """`monotone` says that quantize may climb over an op: one with several results is left where it is."""

    @dataclass(frozen=True)
    class Swap(Op):
        mnemonic = "swap_pair"
        moves = True
        monotone = "all"

        def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, TensorType]:
            return b, a

        def evaluate(self, a: Any, b: Any) -> Any:
            return b, a

        def compute(self, a: Tensor, b: Tensor) -> Any:
            return b, a

    x = TensorType((4, 8), "f32")
    b = Builder([("x", x)])
    layers = [b.op(Linear(), b.input(0), b.const(np.full((8, 8), k, np.float32))) for k in (1, 2)]
    swapped = b.ops(Swap(), *layers)
    program = b.finish([(n, b.op(Relu(), v)) for n, v in zip("pq", swapped, strict=True)])
    data = np.abs(np.random.default_rng(2).normal(size=(16, 4, 8)).astype(np.float32))
    total = data[0].sum(1, keepdims=True) * np.ones(8, np.float32)
    profile = load_profile("cpu")
    built = compile_program(program, profile, adapter_for(profile, None), data, "int8", None, lambda step: None)
    for got, want in zip(built(data[0]), (2 * total, total), strict=True):
        assert np.abs(got - want).max() < 0.05 * want.max()


def test_a_decomposition_uses_every_result() -> None:
    def rule(emit: Any, x: Any) -> Any:
        a, b = emit.ops(registry["both_signs"](), x)
        return emit.op(registry["add"](), a, b)

    op = cuvil.register_op("both_added", shape=lambda x: x, reference=np.abs, decomposition=rule, onnx="mine::added")
    check(op(), X)
    one = model("added", outputs="a")
    one.graph.node[1].output.pop()
    equal(cuvil.compile(one, "cpu")(X), [np.abs(X)])

"""Each converter against ONNX Runtime, over the opsets in which its operator changed."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir.level1 import ConstOp, TensorOp, loc_of
from tests.support.onnx_oracle import agree, check, floats, graph_model, ints, mnemonics, node_model, run

SPECIAL = np.array([0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -6.1, 20.0, -20.0, np.inf, np.nan], np.float32)


UNARY = """Neg Abs Exp Log Sqrt Reciprocal Tanh Sigmoid Erf Sin Cos Floor Ceil Round Sign Relu Softplus Softsign
HardSwish HardSigmoid LeakyRelu Elu Selu Celu ThresholdedRelu Identity IsNaN Shrink"""


@pytest.mark.parametrize("op", UNARY.split())
def test_unary(op: str) -> None:
    check(op, SPECIAL, opset=17)


@pytest.mark.parametrize(("op", "opset"), [("Mish", 18), ("Gelu", 20), ("IsInf", 20)])
def test_unary_of_later_opsets(op: str, opset: int) -> None:
    check(op, SPECIAL[np.isfinite(SPECIAL)] if op == "Mish" else SPECIAL[:-2] if op == "Gelu" else SPECIAL, opset=opset)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("LeakyRelu", {"alpha": 0.3}),
        ("Elu", {"alpha": 0.7}),
        ("Celu", {"alpha": 2.0}),
        ("Selu", {"alpha": 1.5, "gamma": 2.0}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("ThresholdedRelu", {"alpha": 1.2}),
        ("Shrink", {"lambd": 1.0, "bias": 0.25}),
    ],
)
def test_activation_attributes(op: str, attrs: dict[str, float]) -> None:
    check(op, floats(3, 5), **attrs)


def test_gelu_tanh() -> None:
    check("Gelu", floats(3, 5), opset=20, approximate="tanh")


@pytest.mark.parametrize("slope", [(1,), (4, 1, 1), (3, 4, 2, 2)])
def test_prelu_slope_broadcasts(slope: tuple[int, ...]) -> None:
    check("PRelu", floats(3, 4, 2, 2), floats(*slope, seed=1), const=[1])


@pytest.mark.parametrize("opset", [7, 10, 11, 12, 13])
def test_clip(opset: int) -> None:
    x = floats(4, 5, scale=5)
    if opset < 11:
        check("Clip", x, opset=opset, min=-1.5, max=3.0)
        return
    check("Clip", x, np.float32(-1.5), np.float32(3), opset=opset, const=[1, 2])
    check("Clip", x, None, np.float32(3), opset=opset, const=[2])
    check("Clip", x, np.float32(0.5), np.float32(1), opset=opset)  # bounds known only at run time
    assert mnemonics(check("Clip", x, np.float32(0), opset=opset, const=[1])) == ["relu"]
    if opset >= 12:
        check("Clip", ints(8, dtype=np.int8), np.int8(-3), np.int8(4), opset=opset, const=[1, 2])


def test_clip_with_crossed_bounds_gives_the_upper() -> None:
    model = node_model("Clip", [floats(6), np.float32(2), np.float32(-1)], {}, 13, {1, 2}, 1)
    np.testing.assert_array_equal(run(load_onnx(model), {"x0": floats(6)})[0], np.full(6, -1, np.float32))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max"])
@pytest.mark.parametrize("opset", [7, 13])
def test_binary_broadcasts_both_ways(op: str, opset: int) -> None:
    if op in ("Min", "Max") and opset == 7:
        opset = 8  # before it, no broadcasting
    a = np.abs(floats(2, 1, 4)) + 0.5
    check(op, a, floats(3, 1, seed=1), opset=opset)
    check(op, a, floats(seed=2), opset=opset, const=[1])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8])
def test_integer_division_truncates(dtype: type) -> None:
    a = np.array([7, -7, 7, -7, 0, 100], dtype)
    check("Div", a, np.array([2, 2, -2, -2, 3, -7], dtype), opset=14)


@pytest.mark.parametrize("fmod", [0, 1])
def test_mod_signs(fmod: int) -> None:
    a, b = np.array([-4, 7, 5, 4, -7, 8], np.int32), np.array([2, -3, 8, -2, 3, 5], np.int32)
    check("Mod", a, b, opset=13, fmod=fmod)
    if fmod:
        check("Mod", a.astype(np.float32) + 0.25, b.astype(np.float32), opset=13, fmod=1)


def test_pow_keeps_the_type_of_the_base() -> None:
    check("Pow", np.abs(floats(5)), ints(5, lo=-2, hi=4, dtype=np.int64), opset=13)
    check("Pow", ints(5, lo=1, hi=6), ints(5, lo=0, hi=4), opset=13)
    check("Pow", ints(5, lo=1, hi=6), np.full(5, 0.5, np.float32), opset=13)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Min", "Max"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic(op: str, count: int) -> None:
    check(op, *[floats(*s, seed=i) for i, s in enumerate([(2, 3), (3,), (1, 1)][:count])], opset=13)


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("opset", [12, 16])
def test_comparisons(op: str, opset: int) -> None:
    check(op, ints(3, 4, lo=0, hi=3), ints(4, lo=0, hi=3, seed=1), opset=opset)
    check(op, floats(3, 4).round(), floats(1, 4, seed=1).round(), opset=opset)


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op: str) -> None:
    check(op, np.array([True, True, False, False]), np.array([[True], [False]]))


def test_not_and_where() -> None:
    check("Not", np.array([True, False]))
    check("Where", np.array([[True], [False]]), floats(3), floats(2, 1, seed=1))


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits(op: str) -> None:
    check(op, ints(4, dtype=np.int16), ints(4, dtype=np.int16, seed=1), opset=18)


@pytest.mark.parametrize("to", ["INT32", "INT8", "BOOL", "FLOAT16", "DOUBLE"])
@pytest.mark.parametrize("opset", [9, 13, 19])
def test_cast(to: str, opset: int) -> None:
    element = TensorProto.DataType.Value(to)
    check("Cast", np.array([-3.9, 0.0, 0.4, 2.5, 100.7], np.float32), opset=opset, to=element)
    check("Cast", ints(4, lo=0, hi=2), opset=opset, to=element)


def test_cast_like_and_dropout() -> None:
    check("CastLike", floats(3), np.zeros(1, np.int32), opset=15)
    for opset in (7, 12, 13):
        check("Dropout", floats(3, 4), opset=opset)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, None])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_flattens_before_opset_13(op: str, axis: int | None, opset: int) -> None:
    check(op, floats(2, 3, 4), opset=opset, **({} if axis is None else {"axis": axis}))


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(("axes", "keep"), [(None, 1), ([0], 0), ([-1, 0], 1), ([1], 0)])
def test_reduce(kind: str, opset: int, axes: list[int] | None, keep: int) -> None:
    x = np.abs(floats(2, 3, 4))
    as_operand = opset >= (13 if kind == "Sum" else 18)
    if axes is None:
        check(f"Reduce{kind}", x, opset=opset, keepdims=keep)
    elif as_operand:
        check(f"Reduce{kind}", x, np.array(axes), opset=opset, const=[1], keepdims=keep)
    else:
        check(f"Reduce{kind}", x, opset=opset, axes=axes, keepdims=keep)


@pytest.mark.parametrize("noop", [0, 1])
def test_reduce_with_empty_axes(noop: int) -> None:
    for axes in ([None], [np.array([], np.int64)]):
        check("ReduceSum", floats(2, 3), *axes, opset=13, const=[1], noop_with_empty_axes=noop)


def test_reduce_integers_and_large_exponents() -> None:
    check("ReduceMean", ints(3, 4), opset=13, axes=[1])
    check("ReduceMax", ints(3, 4, dtype=np.int8), opset=13, axes=[1])
    check("ReduceLogSumExp", floats(3, 4) + 200, opset=13, axes=[1], keepdims=0)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("axis", "keep"), [(0, 1), (-1, 0)])
def test_arg_extremes_with_ties(op: str, last: int, axis: int, keep: int) -> None:
    x = ints(4, 6, lo=0, hi=3).astype(np.float32)
    check(op, x, opset=12, axis=axis, keepdims=keep, select_last_index=last)
    check(op, x, opset=9, axis=axis % 2, keepdims=keep)


def test_locations_and_folding() -> None:
    """Every op names its node; shape arithmetic leaves nothing behind."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n"], ["n1"], axes=[0]),
        helper.make_node("Concat", ["n1", "minus"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["flat"], name="flatten it"),
        helper.make_node("Relu", ["flat"], ["y"]),
    ]
    consts = {"zero": np.array(0), "minus": np.array([-1])}
    program = agree(graph_model(nodes, {"x": floats(2, 3, 4)}, ["y"], 11, consts), {"x": floats(2, 3, 4)})
    assert mnemonics(program) == ["reshape", "relu"]
    assert not any(isinstance(o, ConstOp) for o in program.ops())
    locations = [loc_of(o) for o in program.ops() if isinstance(o, TensorOp)]
    assert locations == ['onnx node "flatten it" (Reshape)', 'onnx node "y" (Relu)']


def test_operators_without_converter_fold_on_constants() -> None:
    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    consts = {n: np.float32(v) for n, v in zip("abc", (0, 6, 2), strict=True)}
    assert mnemonics(agree(graph_model(nodes, {"x": floats(3)}, ["y"], 13, consts), {"x": floats(3)})) == ["add"]

"""The integer arithmetic: loops against meaning, meaning against exact fractions written independently."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from cuvil_hw import dtypes, ops
from cuvil_hw.ops import base
from cuvil_hw.ops.base import Op, ShapeError
from cuvil_hw.ops.rounding import MODES
from tests.support.op_checks import check, sample, typed

many = settings(max_examples=60, deadline=None)
widths = st.sampled_from(["i8", "u8", "i4", "u3", "i12", "i20", "i32", "u32"])


@st.composite
def per_channel(draw: st.DrawFn, channels: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Scales and zero points, each for the tensor or by channel."""
    count = st.sampled_from([1, channels])
    scales = [draw(st.floats(2**-10, 4.0)) for _ in range(draw(count))]
    return tuple(scales), tuple(draw(st.integers(-9, 9)) for _ in range(draw(count)))


@many
@given(st.data())
def test_quantize(data: st.DataObject) -> None:
    scale, zero = data.draw(per_channel(3))
    dtype = data.draw(widths)
    source = data.draw(st.sampled_from(["f16", "f32", "f64"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = sample(rng, (2, 3, data.draw(st.integers(0, 2))), source, special=True)
    first = data.draw(st.booleans())
    have = check(ops.Quantize(scale, zero, dtype, zero_first=first), x)
    lo, hi = dtypes.int_range(dtype)
    for (n, c, k), v in np.ndenumerate(x):
        z, s = zero[c % len(zero)], np.float32(scale[c % len(scale)])
        if math.isnan(v):
            want = z
        elif math.isinf(v):
            want = hi if v > 0 else lo
        elif first:
            want = round(float(np.float32(v) / s + np.float32(z)))  # Python rounds halves to even
        else:
            want = round(float(np.float32(v) / s)) + z
        assert have[n, c, k] == min(max(want, lo), hi)


def test_quantize_ties_go_to_even() -> None:
    x = np.float32([0.5, 1.5, -0.5, -1.5, np.nextafter(np.float32(0.5), np.float32(1)), 127.5, 1e9, -1e9, np.nan])
    assert check(ops.Quantize((1.0,), (0,), "i8"), x).tolist() == [0, 2, 0, -2, 1, 127, 127, -128, 0]
    assert check(ops.Quantize((0.5,), (3,), "u4"), np.float32([0.25, 0.75, np.nan, -9])).tolist() == [3, 5, 3, 0]
    first = ops.Quantize((0.5,), (3,), "u4", zero_first=True)
    assert check(first, np.float32([0.25, 0.75, np.nan, -9])).tolist() == [4, 4, 3, 0]


@many
@given(st.data())
def test_dequantize(data: st.DataObject) -> None:
    scale, zero = data.draw(per_channel(2))
    dtype = data.draw(widths)
    x = sample(np.random.default_rng(data.draw(st.integers(0, 99))), (3, 2), dtype)
    have = check(ops.Dequantize(scale, zero), x, names=[dtype], ulps=0)
    for (n, c), v in np.ndenumerate(x):
        centred = np.float32(np.int64(v) - zero[c % len(zero)])
        assert have[n, c] == centred * np.float32(scale[c % len(scale)])


def reference(op: str, inputs: dict[str, Any], axis: int) -> Any:
    """One ONNX node of opset 21, by the ONNX reference."""
    node = helper.make_node(op, list(inputs), ["y"], axis=axis)
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in inputs.items()}
    out = onnx.TensorProto.INT8 if op == "QuantizeLinear" else onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, t, None) for n, t in kinds.items()],
        [helper.make_tensor_value_info("y", out, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ReferenceEvaluator(model).run(None, inputs)[0]


def test_quantize_and_dequantize_as_onnx() -> None:
    rng = np.random.default_rng(0)
    x = sample(rng, (2, 4, 3), "f32") * 9
    scale, zero = np.float32([0.1, 0.2, 0.3, 0.05]), np.int8([0, 3, -7, 100])
    attrs = (tuple(map(float, scale)), tuple(map(int, zero)))
    q = check(ops.Quantize(*attrs, "i8"), x)
    np.testing.assert_array_equal(q, reference("QuantizeLinear", {"x": x, "s": scale, "z": zero}, 1))
    back = check(ops.Dequantize(*attrs), q, ulps=0)
    np.testing.assert_array_equal(back, reference("DequantizeLinear", {"x": q, "s": scale, "z": zero}, 1))


def exactly(v: Fraction, mode: str) -> int:
    """Rounding as each mode is defined, on exact fractions."""
    low, half = math.floor(v), Fraction(1, 2)
    nearest = low if v - low < half else low + 1
    tie = v - low == half
    match mode:
        case "half_even":
            return round(v)
        case "half_up":
            return nearest
        case "half_away":
            return low if tie and v < 0 else nearest
        case "half_zero":
            return low if tie and v > 0 else nearest
        case "floor":
            return low
        case "ceil":
            return math.ceil(v)
        case "to_zero":
            return math.trunc(v)
        case "away":
            return math.ceil(v) if v > 0 else low
    return 1 if v >= 0 else -1


@many
@given(st.data())
def test_rescale(data: st.DataObject) -> None:
    source, target, mode = data.draw(widths), data.draw(widths), data.draw(st.sampled_from(MODES))
    bits = st.integers(0, 31).flatmap(lambda b: st.integers(-(1 << b), 1 << b))
    # Small powers of two make ties.
    factors = st.one_of(bits, st.integers(0, 9).map(lambda k: 1 << k))
    shifts = st.one_of(st.just((0,)), st.integers(1, 40).map(lambda s: (s,)), st.tuples(*[st.integers(1, 20)] * 3))
    m, c = (tuple(data.draw(factors) for _ in range(data.draw(st.sampled_from([1, 3])))) for _ in range(2))
    zero_in, zero_out = data.draw(st.integers(-9, 9)), data.draw(st.integers(-9, 9))
    shift = data.draw(shifts)
    guard = data.draw(st.integers(0, max(0, min(shift) - 1)))
    c = c if data.draw(st.booleans()) else (0,)
    op = ops.Rescale(m, shift, target, zero_in, zero_out, 1, mode, c, guard)
    x = sample(np.random.default_rng(data.draw(st.integers(0, 99))), (2, 3), source)
    assume(op.work_bits(source) <= 64)
    have = check(op, x, names=[source])
    lo, hi = dtypes.int_range(target)
    each = [v * 3 if len(v) == 1 else v for v in (m, shift, c)]
    for (n, i), v in np.ndenumerate(x):
        exact = Fraction((int(v) - zero_in) * each[0][i] + each[2][i], 1 << each[1][i])
        if guard:
            exact = Fraction(math.floor(exact * (1 << guard) + Fraction(1, 2)), 1 << guard)
        assert have[n, i] == min(max(exactly(exact, mode) + zero_out, lo), hi)


TIES = {
    "half_even": [0, 2, 0, -2, 1, 4, -3],
    "half_up": [1, 2, 0, -1, 1, 4, -3],
    "half_away": [1, 2, -1, -2, 1, 4, -3],
    "half_zero": [0, 1, 0, -1, 1, 4, -3],
    "floor": [0, 1, -1, -2, 1, 3, -4],
    "ceil": [1, 2, 0, -1, 2, 4, -3],
    "to_zero": [0, 1, 0, -1, 1, 3, -3],
    "away": [1, 2, -1, -2, 2, 4, -4],
    "sign": [1, 1, -1, -1, 1, 1, -1],
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    """0.5, 1.5, -0.5, -1.5, 1.25, 3.75 and -3.25, as integers and as floats."""
    quarters = np.int8([2, 6, -2, -6, 5, 15, -13])
    assert check(ops.Rescale((1,), (2,), "i8", rounding=mode), quarters).tolist() == TIES[mode]
    assert check(ops.Rescale((4,), (4,), "i16", rounding=mode), quarters).tolist() == TIES[mode]
    assert check(ops.Quantize((4.0,), (0,), "i8", rounding=mode), quarters.astype(np.float32)).tolist() == TIES[mode]
    assert check(ops.Quantize((4.0,), (0,), "i32", rounding=mode), quarters.astype(np.float32)).tolist() == TIES[mode]
    edges = np.float32([0.49999997, -0.49999997, 0.0, -0.0, 8388609.0, np.inf, -np.inf])
    got = check(ops.Quantize((1.0,), (0,), "i32", rounding=mode), edges).tolist()
    beside = {"floor": [0, -1], "ceil": [1, 0], "away": [1, -1], "half_away": [1, -1]}.get(mode, [0, 0])
    odd = 8388609 + {"half_away": 1, "half_zero": -1}.get(mode, 0)  # the sum with a half is rounded to f32, as in QONNX
    assert got == ([1, -1, 1, 1, 1, 1, -1] if mode == "sign" else [*beside, 0, 0, odd, 2**31 - 1, -(2**31)])


def test_rounding_after_the_zero_point() -> None:
    """With an odd zero point ties change sides, and signs are those of the sum."""
    x = np.float32([0.5, 1.5, -0.5, -1.5, -2.25])
    first = {m: check(ops.Quantize((1.0,), (1,), "i8", 1, True, m), x).tolist() for m in ("half_even", "to_zero")}
    assert first == {"half_even": [2, 2, 0, 0, -1], "to_zero": [1, 2, 0, 0, -1]}


def test_a_guard_makes_near_ties_ties() -> None:
    """x · 3/10: 31 bits of multiplier can't hold it."""
    x = np.int16([5, 15, 25, 35, -5, -15, 10, 20])
    m = round(0.3 * 2**32)
    assert check(ops.Rescale((m,), (32,), "i8", guard=8), x).tolist() == [2, 4, 8, 10, -2, -4, 3, 6]
    down = ops.Rescale((m - 1,), (32,), "i8", rounding="floor", guard=8)
    assert check(down, x).tolist() == [1, 4, 7, 10, -2, -5, 3, 6]


def test_rescale_ties_and_saturation() -> None:
    half = ops.Rescale((1,), (1,), "i8")
    assert check(half, np.int32([1, 3, -1, -3, 2, 1000, -1000])).tolist() == [0, 2, 0, -2, 1, 127, -128]
    wide_zero = ops.Rescale((1,), (1,), "u1", output_zp=90)  # 127 / 2 + 90 needs one bit more than 127
    assert check(wide_zero, np.int8([127, -128])).tolist() == [1, 1]
    assert check(ops.Rescale((0,), (8,), "i8", input_zp=100), np.int8([5])).item() == 0
    assert check(ops.Rescale((1 << 30,), (31,), "u4", 0, 8), np.int32([3, -30, 90])).tolist() == [10, 0, 15]


@pytest.mark.parametrize("source", ["i8", "u8", "i4", "u3", "i12"])
@pytest.mark.parametrize("target", ["i8", "u5", "i16"])
def test_lut(source: str, target: str) -> None:
    lo, hi = dtypes.int_range(source)
    rng = np.random.default_rng(hi)
    tlo, thi = dtypes.int_range(target)
    values = tuple(int(v) for v in rng.integers(tlo, thi, hi - lo + 1, endpoint=True))
    x = sample(rng, (3, 40), source)
    have = check(ops.Lut(values, target), x, names=[source])
    assert have.reshape(-1).tolist() == [values[int(v) - lo] for v in x.reshape(-1)]


def test_parameters_along_another_axis_and_without_any() -> None:
    x = np.float32([[1, 2], [3, 4]])
    assert check(ops.Quantize((1.0, 0.5), (0, 1), "i8", 0), x).tolist() == [[1, 2], [7, 9]]
    assert check(ops.Quantize((0.5,), (1,), "i8"), np.float32(2).reshape(())).item() == 5
    assert check(ops.Dequantize((0.5,), (1,)), np.int8(5).reshape(())).item() == 2


X, Q = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int8)


@pytest.mark.parametrize(
    ("op", "x", "says"),
    [
        (ops.Quantize((1.0,), (0,), "i8"), Q, "quantize: quantizes floats, not i8"),
        (ops.Quantize((1.0,), (0,), "f32"), X, "quantize: f32 is not an integer type of up to 32 bits"),
        (ops.Quantize((1.0,), (0,), "i64"), X, "quantize: i64 is not an integer type of up to 32 bits"),
        (ops.Quantize((0.0,), (0,), "i8"), X, "quantize: scales must be positive and finite"),
        (ops.Quantize((1.0, 1.0), (0,), "i8"), X, "quantize: 2 scale for 3 channels"),
        (ops.Quantize((1.0,), (), "i8"), X, "quantize: zero_point is empty"),
        (ops.Dequantize((1.0,) * 3, (0,), 2), Q, "dequantize: axis 2 is outside rank 2"),
        (ops.Rescale((1 << 30,), (4,), "i8"), np.int64([1]), "rescale: a i64 input would need more than 64 bits"),
        (ops.Rescale((1, 1, 1), (0, 1, 1), "i8"), Q, "rescale: shift 0 is out of range"),
        (ops.Rescale((1,), (1, 2), "i8"), Q, "rescale: 2 shift for 3 channels"),
        (ops.Rescale((1,), (4,), "i8", guard=4), Q, "rescale: 4 guard bits of 4"),
        (ops.Rescale((1,), (4,), "i8", rounding="up"), Q, f"rescale: rounding is one of {', '.join(MODES)}, not 'up'"),
        (ops.Quantize((1.0,), (0,), "i8", rounding=""), X, f"quantize: rounding is one of {', '.join(MODES)}, not ''"),
        (ops.Rescale((1,), (63,), "i8"), Q, "rescale: shift 63 is out of range"),
        (ops.Rescale((), (4,), "i8"), Q, "rescale: multiplier is empty"),
        (ops.Lut((1, 2, 3), "i8"), Q, "lut: 3 values for a i8 index"),
        (ops.Lut((300,) * 256, "i8"), Q, "lut: values outside i8"),
        (ops.Lut((1,), "i8"), np.int32([1]), "lut: indexes by integers of up to 12 bits, not i32"),
    ],
)
def test_refusals_say_what_is_wrong(op: Op, x: Any, says: str) -> None:
    with pytest.raises(ShapeError) as caught:
        base.infer(op, typed([x]))
    assert str(caught.value) == says

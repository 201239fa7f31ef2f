"""Elementwise ops: loops against meaning on all dtypes and special values, meaning against torch."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil_hw import ops
from cuvil_hw.errors import CuvilError
from cuvil_hw.ops import base
from cuvil_hw.ops.base import Op, ShapeError
from tests.support.op_checks import check, close, sample, typed

FLOATS = ("f16", "f32", "f64")
WRAPPING = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
NARROW = ("i2", "i5", "u3", "i12", "i20", "u20")
SHAPES = ((), (0, 3), (2, 3, 4))

# op, dtypes beyond the floats, absolute error where the formula cancels
UNARY: list[tuple[Op, tuple[str, ...], float]] = [
    (ops.Neg(), WRAPPING, 0),
    (ops.Abs(), WRAPPING, 0),
    (ops.Exp(), (), 0),
    (ops.Log(), (), 1e-7),
    (ops.Sqrt(), (), 0),
    (ops.Reciprocal(), (), 0),
    (ops.Tanh(), (), 0),
    (ops.Sigmoid(), (), 0),
    (ops.Erf(), (), 0),
    (ops.Sin(), (), 0),
    (ops.Cos(), (), 1e-7),
    (ops.Floor(), (), 0),
    (ops.Ceil(), (), 0),
    (ops.Round(), (), 0),
    (ops.Sign(), WRAPPING + NARROW, 0),
    (ops.Relu(), WRAPPING + NARROW, 0),
    (ops.Clamp(-1.0, 1.0), WRAPPING + NARROW, 0),
    (ops.Clamp(lo=1.0), WRAPPING + NARROW, 0),
    (ops.Clamp(hi=1.0), WRAPPING + NARROW, 0),
    (ops.LeakyRelu(0.2), (), 0),
    (ops.Elu(1.3), (), 0),
    (ops.Selu(), (), 0),
    (ops.Gelu(), (), 1e-6),
    (ops.Gelu("tanh"), (), 1e-6),
    (ops.Silu(), (), 0),
    (ops.HardSigmoid(), (), 0),
    (ops.HardSwish(), (), 0),
    (ops.Softplus(), (), 0),
    (ops.Mish(), (), 0),
]


def rng_of(*key: Any) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


@pytest.mark.parametrize(("op", "integers", "atol"), UNARY, ids=[str(u[0]) for u in UNARY])
def test_unary_loops_are_their_meaning(op: Op, integers: tuple[str, ...], atol: float) -> None:
    for dtype in ("bf16", *FLOATS, *integers):
        for shape in SHAPES:
            check(op, sample(rng_of(op, dtype, shape), shape, dtype, special=True), names=[dtype], atol=atol)


TORCH: list[tuple[Op, Any]] = [
    (ops.Neg(), torch.neg),
    (ops.Abs(), torch.abs),
    (ops.Exp(), torch.exp),
    (ops.Log(), torch.log),
    (ops.Sqrt(), torch.sqrt),
    (ops.Reciprocal(), torch.reciprocal),
    (ops.Tanh(), torch.tanh),
    (ops.Sigmoid(), torch.sigmoid),
    (ops.Erf(), torch.erf),
    (ops.Sin(), torch.sin),
    (ops.Cos(), torch.cos),
    (ops.Floor(), torch.floor),
    (ops.Ceil(), torch.ceil),
    (ops.Round(), torch.round),
    (ops.Relu(), torch.relu),
    (ops.Clamp(-1.0, 1.0), lambda x: torch.clamp(x, -1, 1)),
    (ops.Clamp(2.0, -2.0), lambda x: torch.clamp(x, 2, -2)),
    (ops.LeakyRelu(0.2), lambda x: torch.nn.functional.leaky_relu(x, 0.2)),
    (ops.Elu(1.3), lambda x: torch.nn.functional.elu(x, 1.3)),
    (ops.Selu(), torch.selu),
    (ops.Gelu(), torch.nn.functional.gelu),
    (ops.Gelu("tanh"), lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    (ops.Silu(), torch.nn.functional.silu),
    (ops.HardSigmoid(1 / 6, 0.5), torch.nn.functional.hardsigmoid),
    (ops.HardSwish(), torch.nn.functional.hardswish),
    (ops.Softplus(), torch.nn.functional.softplus),
    (ops.Mish(), torch.nn.functional.mish),
    (ops.IsNan(), torch.isnan),
]


@pytest.mark.parametrize(("op", "oracle"), TORCH, ids=[str(t[0]) for t in TORCH])
@pytest.mark.parametrize("dtype", FLOATS)
def test_unary_against_torch(op: Op, oracle: Any, dtype: str) -> None:
    x = sample(rng_of(op, dtype), (200,), dtype, special=True)
    if isinstance(op, ops.Gelu | ops.Silu | ops.HardSwish | ops.Mish):
        x[np.isinf(x)] = 0  # torch's own answers at -inf depend on the vector unit
    (have,) = base.evaluate(op, [x])
    close(have, oracle(torch.from_numpy(x)).numpy(), atol=1e-3 if dtype == "f16" else 2e-6)


@pytest.mark.parametrize("op", [u[0] for u in UNARY if not isinstance(u[0], ops.Sign)], ids=str)
def test_nan_stays_nan(op: Op) -> None:
    assert np.isnan(base.evaluate(op, [np.float32([np.nan])])[0]).all()


def test_unary_of_integers_wrap_and_keep_the_ends() -> None:
    assert check(ops.Neg(), np.int8([-128, 5])).tolist() == [-128, -5]
    assert check(ops.Abs(), np.int8([-128, -5])).tolist() == [-128, 5]
    assert check(ops.BitwiseNot(), np.int8([0, -5]), names=["i4"]).tolist() == [-1, 4]
    assert check(ops.BitwiseNot(), np.uint8([0, 250])).tolist() == [255, 5]
    assert check(ops.LogicalNot(), np.array([True, False])).tolist() == [False, True]
    assert check(ops.Clamp(-1e30, 100.0), np.int64([-(2**63), 2**63 - 1])).tolist() == [-(2**63), 100]


def test_ties_and_signs() -> None:
    assert check(ops.Round(), np.float32([0.5, 1.5, 2.5, -0.5, -1.5])).tolist() == [0, 2, 2, 0, -2]
    assert check(ops.Sign(), np.float32([-0.0, 3, -3])).tolist() == [0, 1, -1]
    assert math.copysign(1, check(ops.Sqrt(), np.float32(-0.0).reshape(())).item()) == -1
    assert check(ops.Reciprocal(), np.float32([0.0, -0.0])).tolist() == [np.inf, -np.inf]


BINARY: list[tuple[Op, tuple[str, ...]]] = [
    (ops.Add(), FLOATS + WRAPPING),
    (ops.Sub(), FLOATS + WRAPPING),
    (ops.Mul(), FLOATS + WRAPPING),
    (ops.Add("i13"), ("i8", "u8", "i5", "u3", "i12")),
    (ops.Sub("i33"), (*NARROW, "i32", "u16")),
    (ops.Mul("i41"), (*NARROW, "i8", "u16")),
    (ops.Div(), FLOATS + WRAPPING),
    (ops.Mod(False), FLOATS + WRAPPING + NARROW),
    (ops.Mod(True), FLOATS + WRAPPING + NARROW),
    (ops.Pow(), FLOATS),
    (ops.Minimum(), FLOATS + WRAPPING + NARROW),
    (ops.Maximum(), FLOATS + WRAPPING + NARROW),
    (ops.Equal(), (*FLOATS, "i5", "u64", "bool")),
    (ops.Less(), (*FLOATS, "i5", "u64")),
    (ops.LessEqual(), (*FLOATS, "i5", "u64")),
    (ops.Greater(), (*FLOATS, "i5", "u64")),
    (ops.GreaterEqual(), (*FLOATS, "i5", "u64")),
    (ops.LogicalAnd(), ("bool",)),
    (ops.LogicalOr(), ("bool",)),
    (ops.LogicalXor(), ("bool",)),
    (ops.BitwiseAnd(), WRAPPING + NARROW),
    (ops.BitwiseOr(), WRAPPING + NARROW),
    (ops.BitwiseXor(), WRAPPING + NARROW),
]


@pytest.mark.parametrize(("op", "names"), BINARY, ids=[str(b[0]) for b in BINARY])
def test_binary_loops_are_their_meaning(op: Op, names: tuple[str, ...]) -> None:
    for dtype in names:
        for shape in ((), (0, 2), (5, 9)):
            rng = rng_of(op, dtype, shape)
            a, b = (sample(rng, shape, dtype, special=True) for _ in range(2))
            check(op, a, b, names=[dtype, dtype])


TORCH_BINARY: list[tuple[Op, Any]] = [
    (ops.Add(), torch.add),
    (ops.Sub(), torch.sub),
    (ops.Mul(), torch.mul),
    (ops.Div(), torch.div),
    (ops.Mod(False), torch.remainder),
    (ops.Mod(True), torch.fmod),
    (ops.Pow(), torch.pow),
    (ops.Minimum(), torch.minimum),
    (ops.Maximum(), torch.maximum),
    (ops.Equal(), torch.eq),
    (ops.Less(), torch.lt),
    (ops.LessEqual(), torch.le),
    (ops.Greater(), torch.gt),
    (ops.GreaterEqual(), torch.ge),
]


@pytest.mark.parametrize(("op", "oracle"), TORCH_BINARY, ids=[str(t[0]) for t in TORCH_BINARY])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_binary_against_torch(op: Op, oracle: Any, dtype: str) -> None:
    rng = rng_of(op, dtype)
    a, b = (sample(rng, (300,), dtype, special=True) for _ in range(2))
    if op == ops.Mod(False):
        a, b = a[np.isfinite(b)], b[np.isfinite(b)]  # torch: remainder(-1, inf) = inf or -1, by vector unit
    (have,) = base.evaluate(op, [a, b])
    close(have, oracle(torch.from_numpy(a), torch.from_numpy(b)).numpy())


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "u8"])
def test_integer_division_against_torch(dtype: str) -> None:
    rng = rng_of(dtype)
    a, b = (sample(rng, (300,), dtype) for _ in range(2))
    b = np.where((b == 0) | (b == np.array(-1).astype(b.dtype)), b.dtype.type(3), b)
    ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    close(base.evaluate(ops.Div(), [a, b])[0], torch.div(ta, tb, rounding_mode="trunc").numpy())
    close(base.evaluate(ops.Mod(False), [a, b])[0], torch.remainder(ta, tb).numpy())
    close(base.evaluate(ops.Mod(True), [a, b])[0], torch.fmod(ta, tb).numpy())


def test_integer_division_by_zero_and_overflow() -> None:
    a, b = np.int8([7, -128, 0, -128]), np.int8([0, 0, 0, -1])
    assert check(ops.Div(), a, b).tolist() == [0, 0, 0, -128]
    assert check(ops.Mod(False), a, b).tolist() == [0, 0, 0, 0]
    assert check(ops.Mod(True), a, b).tolist() == [0, 0, 0, 0]


def test_accumulators_of_sums_hold_what_the_operands_cannot() -> None:
    a = np.int8([127, -128, 1])
    assert check(ops.Add("i9"), a, a).tolist() == [254, -256, 2]
    assert check(ops.Mul("i16"), a, a).tolist() == [16129, 16384, 1]
    top = np.uint32([2**32 - 1])
    assert check(ops.Mul("u64"), top, top).tolist() == [(2**32 - 1) ** 2]
    with pytest.raises(OverflowError, match=r"sub: accumulator i4 overflows: \[-15, 15\]"):
        base.evaluate(ops.Sub("i4"), [np.int8([7, -8]), np.int8([-8, 7])])
    with pytest.raises(OverflowError, match="mul: accumulator i64 overflows"):
        base.evaluate(ops.Mul("i64"), [top, top])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_casts(data: st.DataObject) -> None:
    kinds = st.sampled_from([*FLOATS, *WRAPPING, *NARROW, "bool"])
    source, target = data.draw(kinds), data.draw(kinds)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = sample(rng, (12,), source, special=True)
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = np.where(rng.random(12) < 0.3, x * x.dtype.type(1e30 if source != "f16" else 1e4), x)
    check(ops.Cast(target), x, names=[source], ulps=0)


def test_casts_round_saturate_and_wrap() -> None:
    big = np.float64([2.9, -2.9, 300, -300, np.nan, np.inf, -np.inf])
    assert check(ops.Cast("i8"), big).tolist() == [2, -2, 127, -128, 0, 127, -128]
    assert check(ops.Cast("u4"), big).tolist() == [2, 0, 15, 0, 0, 15, 0]
    assert check(ops.Cast("i64"), np.float32([1e30, -1e30])).tolist() == [2**63 - 1, -(2**63)]
    assert check(ops.Cast("u64"), np.float32([1e30, -1.0])).tolist() == [2**64 - 1, 0]
    assert check(ops.Cast("i5"), np.int32([15, 16, -17])).tolist() == [15, -16, 15]
    assert check(ops.Cast("bool"), np.float32([0, -0.0, np.nan, 0.1])).tolist() == [False, False, True, True]
    assert check(ops.Cast("f32"), np.int64([2**24 + 1, 2**24 + 3])).tolist() == [2**24, 2**24 + 4]
    assert check(ops.Cast("f16"), np.float32([65520.0, 1 + 2**-11])).tolist() == [np.inf, 1]


def test_where_takes_only_the_chosen_side() -> None:
    cond = np.array([True, False, True])
    a, b = np.float32([1, np.nan, 3]), np.float32([np.inf, 2, np.nan])
    assert check(ops.Where(), cond, a, b).tolist() == [1, 2, 3]
    empty = np.zeros((0,), np.int8)
    check(ops.Where(), empty != 0, empty, empty, names=["bool", "i4", "i4"])


F, I = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int32)


@pytest.mark.parametrize(
    ("op", "arrays", "names", "says"),
    [
        (ops.Add(), (F, F[:1]), None, "add: shapes differ: 2x3xf32 and 1x3xf32; insert broadcast_to"),
        (ops.Add(), (F, I), None, "add: dtypes differ: 2x3xf32 and 2x3xi32; insert cast"),
        (ops.Add(), (I, I), ["i20", "i20"], "add: takes floats and integers of 8, 16, 32 or 64 bits, not i20;"),
        (ops.Add("i8"), (F, F), None, "add: takes integers, not f32"),
        (ops.Add("f32"), (I, I), None, "add: acc 'f32' is not an integer type"),
        (ops.Exp(), (I,), None, "exp: takes floats, not i32; cast first"),
        (ops.Relu(), (F != 0,), None, "relu: takes numbers, not bool; cast first"),
        (ops.LogicalAnd(), (F, F), None, "logical_and: takes bool, not f32; compare with zero first"),
        (ops.Clamp(0.5), (I,), None, "clamp: bound 0.5 of i32 isn't integral"),
        (ops.Clamp(hi=-1.0), (np.uint8([1]),), None, "clamp: [-inf, -1.0] holds no value of u8"),
        (ops.Clamp(math.nan), (F,), None, "clamp: bounds can't be NaN"),
        (ops.Gelu("fast"), (F,), None, """gelu: approximate is "none" or "tanh", not 'fast'"""),
        (ops.Cast("float"), (F,), None, "cast: unknown dtype 'float'"),
        (ops.Where(), (F, F, F), None, "where: takes bool, not f32; compare with zero first"),
        (ops.BitwiseNot(), (np.uint8([1]),), ["u5"], "bitwise_not: takes unsigned integers of 8, 16,"),
        (ops.Neg(), (F, F), None, "neg: takes other operands than the 2 given"),
    ],
)  # fmt: skip
def test_refusals_say_what_is_wrong(op: Op, arrays: tuple[Any, ...], names: list[str] | None, says: str) -> None:
    with pytest.raises(ShapeError) as caught:
        base.infer(op, typed(arrays, names))
    assert str(caught.value).startswith(says)
    assert isinstance(caught.value, CuvilError)

"""Reductions, softmax, matrix products and norms: loops and decompositions against meaning, meaning against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil_hw import ops
from cuvil_hw.ops import base
from cuvil_hw.ops.base import Op, ShapeError
from tests.support.op_checks import check, close, sample, typed

FLOATS = ("f16", "f32", "f64")
many = settings(max_examples=40, deadline=None)
KINDS: dict[type[Any], tuple[str, ...]] = {
    ops.ReduceSum: ("i8", "u16", "i64"),
    ops.ReduceProd: ("i8", "u16", "i64"),
    ops.ReduceMean: (),
    ops.ReduceMax: ("i8", "u3", "i20", "u64"),
    ops.ReduceMin: ("i8", "u3", "i20", "u64"),
}


@many
@given(st.data())
def test_reductions(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(sorted(KINDS, key=str)))
    dtype = data.draw(st.sampled_from(FLOATS + KINDS[cls]))
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
    axes = tuple(data.draw(st.permutations(range(len(shape))))[: data.draw(st.integers(0, len(shape)))])
    op = cls(axes, data.draw(st.booleans()))
    if dtype in ("u3", "i20") and 0 in shape and all(shape[d] for d in range(len(shape)) if d not in axes):
        shape = [max(n, 1) for n in shape]  # of nothing: refused for these widths
    special = data.draw(st.booleans())
    x = sample(np.random.default_rng(data.draw(st.integers(0, 99))), shape, dtype, special)
    check(op, x, names=[dtype], ulps=64, atol=0 if dtype[0] != "f" else {"f16": 2e-3, "f32": 1e-5, "f64": 1e-14}[dtype])


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
def test_reductions_against_torch(keepdims: bool, dtype: str) -> None:
    for axes in [(0,), (2, 0), (0, 1, 2)]:
        x = sample(np.random.default_rng(5), (3, 4, 5), dtype)
        x = np.where(x % 2 == 0, x, x // 1) if dtype == "i64" else x
        t = torch.from_numpy(x)
        have = {c: base.evaluate(c(axes, keepdims), [x])[0] for c in KINDS if dtype != "i64" or c is not ops.ReduceMean}
        close(have[ops.ReduceSum], t.sum(axes, keepdims).numpy(), 64, 1e-5)
        close(have[ops.ReduceMax], t.amax(axes, keepdims).numpy())
        close(have[ops.ReduceMin], t.amin(axes, keepdims).numpy())
        if dtype != "i64":
            close(have[ops.ReduceMean], t.mean(axes, keepdims).numpy(), 64, 1e-6)
    close(base.evaluate(ops.ReduceProd((1,), keepdims), [x])[0], t.prod(1, keepdims).numpy(), 64)


def test_reductions_of_nothing_give_the_neutral_element() -> None:
    empty = np.zeros((2, 0), np.float32)
    assert check(ops.ReduceSum((1,)), empty).tolist() == [0, 0]
    assert check(ops.ReduceProd((1,)), empty).tolist() == [1, 1]
    assert check(ops.ReduceMax((1,)), empty).tolist() == [-np.inf, -np.inf]
    assert check(ops.ReduceMin((1,)), empty).tolist() == [np.inf, np.inf]
    assert np.isnan(check(ops.ReduceMean((1,)), empty)).all()
    assert check(ops.ReduceMax((0,)), np.zeros(0, np.int8)).item() == -128


def test_narrow_integers_have_no_neutral_element() -> None:
    with pytest.raises(ShapeError, match="reduce_max: 2x0xi5 has no element to choose; cast first"):
        base.infer(ops.ReduceMax((1,)), typed([np.zeros((2, 0), np.int8)], ["i5"]))
    assert check(ops.ReduceMin((1,)), np.zeros((0, 0), np.int8), names=["i5"]).shape == (0,)


@pytest.mark.parametrize("at", range(4))
def test_nan_wins_wherever_it_stands(at: int) -> None:
    x = np.float32([-2, 1, 0, 5])
    x[at] = np.nan
    for op in (ops.ReduceMax((0,)), ops.ReduceMin((0,)), ops.ReduceSum((0,)), ops.ReduceMean((0,))):
        assert np.isnan(check(op, x))
    for arg in (ops.ArgMax(0), ops.ArgMin(0), ops.ArgMax(0, last=True)):
        assert check(arg, x) == at


def test_integer_sums_wrap_or_widen() -> None:
    x = np.int8([100, 100, 100])
    assert check(ops.ReduceSum((0,)), x).item() == 44
    assert check(ops.ReduceSum((0,), acc="i10"), x).item() == 300
    assert check(ops.ReduceSum((0,), acc="u6"), np.int8([7, 7, 7]), names=["i4"]).item() == 21
    with pytest.raises(OverflowError, match="reduce_sum: accumulator i8 overflows"):
        base.evaluate(ops.ReduceSum((0,), acc="i8"), [x])
    with pytest.raises(OverflowError, match="reduce_prod: accumulator i64 overflows"):
        base.evaluate(ops.ReduceProd((0,), acc="i64"), [np.full(10, 100, np.int8)])
    assert check(ops.ReduceProd((0,), acc="i32"), x).item() == 1_000_000


def test_f16_sums_in_f32() -> None:
    x = np.full(4096, 0.1, np.float16)
    assert check(ops.ReduceSum((0,)), x).item() == np.float16(float(x[0]) * 4096)  # f16 steps would stop at 256
    assert check(ops.ReduceMean((0,)), np.float16([60000, 60000])).item() == np.float16(60000)


@many
@given(st.data())
def test_arg_max_and_min(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 3), max_size=2))
    axis = data.draw(st.integers(0, len(shape)))
    shape.insert(axis, data.draw(st.integers(1, 5)))
    dtype = data.draw(st.sampled_from((*FLOATS, "i8", "u3", "i64")))
    cls = data.draw(st.sampled_from([ops.ArgMax, ops.ArgMin]))
    op = cls(axis, data.draw(st.booleans()), data.draw(st.booleans()))
    x = sample(np.random.default_rng(data.draw(st.integers(0, 99))), shape, dtype, special=True)
    check(op, x, names=[dtype])


def test_ties_of_arg_max() -> None:
    x = np.float32([[3, 1, 3, -np.inf], [-np.inf] * 4])
    assert check(ops.ArgMax(1), x).tolist() == [0, 0]
    assert check(ops.ArgMax(1, last=True), x).tolist() == [2, 3]
    assert check(ops.ArgMin(1), x).tolist() == [3, 0]
    assert check(ops.ArgMax(0), np.float32([1, np.nan, np.nan])).item() == 1
    assert check(ops.ArgMax(0, last=True), np.float32([1, np.nan, np.nan])).item() == 2


SOFT = {ops.Softmax: torch.softmax, ops.LogSoftmax: torch.log_softmax}


@pytest.mark.parametrize("cls", SOFT)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5,), (2, 7, 3), (0, 4), (4, 0)])
def test_softmax(cls: Any, dtype: str, shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        x = sample(np.random.default_rng(axis), shape, dtype) * np.asarray(9, dtype.replace("f", "float"))
        have = check(cls(axis), x, ulps=16, atol=1e-6)
        close(have, SOFT[cls](torch.from_numpy(x), axis).numpy(), 16, 1e-3 if dtype == "f16" else 1e-5)


def test_softmax_stays_in_range_and_keeps_nan() -> None:
    huge = np.float16([[60000, -60000, 59999, -np.inf]])
    assert check(ops.Softmax(1), huge).tolist() == [[0.5, 0, 0.5, 0]]
    assert np.isnan(check(ops.Softmax(1), np.float32([[1, np.nan], [-np.inf, -np.inf], [np.inf, 0]]))).all()


@many
@given(st.data())
def test_mat_mul(data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(0, 4)) for _ in range(3))
    lead = data.draw(st.sampled_from([((), ()), ((2,), (2,)), ((3, 1), (2,)), ((), (2, 1)), ((0,), (1,))]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from((*FLOATS, "i8", "u8", "i4")))
    if dtype in FLOATS:
        a, b = sample(rng, (*lead[0], m, k), dtype), sample(rng, (*lead[1], k, n), dtype)
        have = check(ops.MatMul(), a, b, ulps=64, atol={"f16": 2e-2, "f32": 1e-5, "f64": 1e-13}[dtype])
        wide = np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)), a.dtype)
        close(have, wide, 4, {"f16": 1e-3, "f32": 1e-5, "f64": 1e-13}[dtype])
        return
    a, b = sample(rng, (*lead[0], m, k), dtype), sample(rng, (*lead[1], k, n), "i8")
    w_zp = tuple(int(v) for v in rng.integers(-8, 8, n)) if n and data.draw(st.booleans()) else (3,)
    x_zp = data.draw(st.integers(-8, 7))
    have = check(ops.MatMul(x_zp, w_zp, "i20"), a, b, names=[dtype, "i8"])
    np.testing.assert_array_equal(have, np.matmul(a.astype(object) - x_zp, b.astype(object) - np.asarray(w_zp, object)))


def test_wide_integer_products_are_exact() -> None:
    a, b = np.int32([[2**31 - 1, 3]]), np.int32([[2**31 - 1], [1]])
    assert check(ops.MatMul(acc="i64"), a, b).item() == (2**31 - 1) ** 2 + 3
    pair = check(ops.MatMul(acc="i32"), np.full((1, 8), 255, np.uint8), np.full((8, 1), 127, np.int8))
    assert pair.item() == 259_080


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (1, 6, 2, 3), (0, 4, 2)])
def test_norms(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    tolerance = {"f16": 4e-3, "f32": 2e-6, "f64": 1e-13}[dtype]
    channels = [sample(rng, (shape[1],), dtype) for _ in range(4)]
    channels[3] = np.abs(channels[3])
    x = sample(rng, shape, dtype)
    scale, bias, mean, var = map(torch.from_numpy, channels)
    t = torch.from_numpy(x)
    F = torch.nn.functional
    have = check(ops.BatchNorm(1e-3), x, *channels, atol=tolerance)
    want = F.batch_norm(t, mean, var, scale, bias, eps=1e-3).numpy()
    close(have, want, 8, 4 * tolerance)
    groups = check(ops.GroupNorm(2, 1e-4), x, *channels[:2], atol=tolerance)
    if x.size:
        close(groups, F.group_norm(t, 2, scale, bias, 1e-4).numpy(), 8, 4 * tolerance)
    if len(shape) > 2:
        have = check(ops.InstanceNorm(1e-4), x, *channels[:2], atol=tolerance)
        if x.size:
            close(have, F.instance_norm(t, None, None, scale, bias, eps=1e-4).numpy(), 8, 4 * tolerance)
    for axis in range(1, len(shape)):
        s, b = (sample(rng, shape[axis:], dtype) for _ in range(2))
        have = check(ops.LayerNorm(axis, 1e-4), x, s, b, atol=tolerance)
        want = F.layer_norm(t, shape[axis:], torch.from_numpy(s), torch.from_numpy(b), 1e-4).numpy()
        close(have, want, 8, 4 * tolerance)
        check(ops.LayerNorm(axis, 1e-4), x, s, atol=tolerance)


def test_layer_norm_of_large_f16_values() -> None:
    """Squares of 300 and more leave f16."""
    x = np.float16([[300, -300, 600, 0]])
    one, nil = np.ones(4, np.float16), np.zeros(4, np.float16)
    want = torch.nn.functional.layer_norm(torch.from_numpy(x).double(), (4,)).numpy()
    np.testing.assert_allclose(check(ops.LayerNorm(1), x, one, nil).astype(np.float64), want, atol=1e-3)


X, I = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int32)


@pytest.mark.parametrize(
    ("op", "arrays", "says"),
    [
        (ops.ReduceSum((2,)), (X,), "reduce_sum: axes (2,) are outside rank 2"),
        (ops.ReduceSum((-1,)), (X,), "reduce_sum: axes (-1,) are outside rank 2"),
        (ops.ReduceMax((1, 1)), (X,), "reduce_max: axes (1, 1) repeat"),
        (ops.ReduceMean((1,)), (I,), "reduce_mean: takes floats, not i32; cast first"),
        (ops.ReduceSum((1,), acc="i8"), (X,), "reduce_sum: takes integers, not f32"),
        (ops.ArgMin(0), (X != 0,), "arg_min: takes numbers, not bool; cast first"),
        (ops.ArgMax(1), (X[:, :0],), "arg_max: axis 1 of 2x0xf32 is empty: there is no position to give"),
        (ops.Softmax(2), (X,), "softmax: axis 2 is outside rank 2"),
        (ops.MatMul(), (X, X), "mat_mul: 2x3xf32 has 3 columns, 2x3xf32 has 2 rows"),
        (ops.MatMul(), (X, X[0]), "mat_mul: 2x3xf32 and 3xf32 need rank 2 or more"),
        (ops.MatMul(), (X, I.T), "mat_mul: 2x3xf32 and 3x2xi32 must be floats of one type (integers need `acc`)"),
        (
            ops.MatMul(),
            (np.zeros((2, 1, 3)), np.zeros((3, 3, 1))),
            "mat_mul: leading dimensions of 2x1x3xf64 and 3x3x1xf64 don't broadcast",
        ),
        (ops.BatchNorm(), (X, X[0], X[0], X[0], X[:, 0]), "batch_norm: var is 2xf32, must be 3xf32"),
        (ops.LayerNorm(1), (X, X), "layer_norm: scale is 2x3xf32, must be 3xf32"),
        (ops.GroupNorm(2), (X, X[0], X[0]), "group_norm: 3 channels in 2 groups"),
    ],
)
def test_refusals_say_what_is_wrong(op: Op, arrays: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ShapeError) as caught:
        base.infer(op, typed(arrays))
    assert str(caught.value) == says

"""Gathers, scatters, running sums, ranks, transposed windows, resampling, trigonometry: against PyTorch and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from cuvil_hw import ops
from cuvil_hw.errors import CuvilError
from cuvil_hw.ops import ShapeError, base
from cuvil_hw.types import TensorType
from tests.support import cpu_runner
from tests.support.op_checks import check, close, sample

RNG = np.random.default_rng(7)
REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def tensor(x: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x))


TRIG: list[tuple[ops.Op, Callable[[Any], Any]]] = [
    (ops.Tan(), np.tan), (ops.Atan(), np.arctan), (ops.Asin(), np.arcsin), (ops.Acos(), np.arccos),
    (ops.Sinh(), np.sinh), (ops.Cosh(), np.cosh), (ops.Asinh(), np.arcsinh), (ops.Acosh(), np.arccosh),
    (ops.Atanh(), np.arctanh),
]  # fmt: skip


@pytest.mark.parametrize(("op", "function"), TRIG, ids=lambda v: type(v).__name__)
def test_trigonometry(op: ops.Op, function: Callable[[Any], Any]) -> None:
    """Against the library in f64, over the whole domain: tiny, around the switches between formulas, huge, special."""
    spread = np.concatenate([np.geomspace(1e-30, 1e30, 61), [0.0, 0.5, 1.0, 19.9, 20.1, 88.0, 9.9e7, 1.1e8, np.inf]])
    x = np.concatenate([-spread, spread, np.linspace(-1, 1, 33), [np.nan, -0.0]])
    with np.errstate(all="ignore"):
        for dtype in ("float32", "float64"):
            values = x.astype(dtype)
            values = values[np.abs(values) < 1e6] if isinstance(op, ops.Tan) else values
            close(check(op, values, ulps=16), function(values.astype(np.float64)).astype(dtype), 16)
        check(op, sample(RNG, (40,), "f16", special=True), ulps=4)


def test_gathers() -> None:
    x, i = sample(RNG, (3, 4, 2), "f32"), RNG.integers(0, 4, (2, 5, 2))
    np.testing.assert_array_equal(check(ops.GatherElements(1), x, i), torch.gather(tensor(x), 1, tensor(i)).numpy())
    np.testing.assert_array_equal(check(ops.GatherElements(1), x, i - 4), torch.gather(tensor(x), 1, tensor(i)).numpy())
    i = RNG.integers(-3, 3, (5, 2))
    np.testing.assert_array_equal(check(ops.GatherND(), x, i), np.stack([x[a, b] for a, b in i]))
    i = RNG.integers(-2, 2, (3, 6, 2))
    want = np.stack([[x[n, a, b] for a, b in row] for n, row in enumerate(i)])
    np.testing.assert_array_equal(check(ops.GatherND(1), x, i), want)


@pytest.mark.parametrize("how", ["none", *REDUCED])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i8", "i64"])
def test_scatters(how: str, dtype: str) -> None:
    x, u = sample(RNG, (3, 4, 2), dtype), sample(RNG, (2, 5, 2), dtype)
    i = RNG.integers(-4, 4, (2, 5, 2))
    got = check(ops.ScatterElements(axis=1, how=how), x, i, u)
    if how != "none":  # with duplicates PyTorch leaves the order open
        want = tensor(x).scatter_reduce(1, tensor(i % 4), tensor(u), REDUCED[how]).numpy()
        close(got, want, 64)
    i = RNG.integers(-3, 3, (2, 5, 2))
    got = check(ops.ScatterND(how=how), x, i % [3, 4], u)
    want = x.astype(np.float64) if dtype[0] == "f" else x.copy()
    combine = {"none": lambda a, b: b, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[how]
    with np.errstate(over="ignore"):
        for n, m in np.ndindex(2, 5):
            at = tuple(i[n, m] % [3, 4])
            want[at] = combine(want[at], u[n, m].astype(want.dtype))
    close(got, want.astype(x.dtype), 2)


def test_an_index_outside_is_an_error() -> None:
    x, far, u = sample(RNG, (3, 2), "f32"), np.int64([[3, 0]]), sample(RNG, (1, 2), "f32")
    for op, arrays in (
        (ops.GatherElements(), (x, far)),
        (ops.GatherND(), (x, far)),
        (ops.ScatterElements(), (x, far, u)),
        (ops.ScatterND(), (x, far, u[:, 0])),
    ):
        with pytest.raises(ShapeError, match=r"index 3 is outside \[-3, 3\)"):
            base.evaluate(op, arrays)


@pytest.mark.parametrize("dtype", ["f32", "i16", "f16"])
def test_running(dtype: str) -> None:
    x = sample(RNG, (2, 6, 3), dtype)
    for op, function in ((ops.CumSum, np.cumsum), (ops.CumProd, np.cumprod)):
        wide = x.astype(np.float32) if dtype == "f16" else x
        plain = function(wide, axis=1, dtype=wide.dtype)
        close(check(op(1), x), plain.astype(x.dtype))
        shifted = check(op(1, exclusive=True), x)
        close(shifted[:, 1:], plain.astype(x.dtype)[:, :-1])
        assert (shifted[:, 0] == (0 if op is ops.CumSum else 1)).all()
        for exclusive in (False, True):
            mirrored = check(op(1, exclusive, reverse=True), x)
            close(mirrored, np.flip(check(op(1, exclusive), np.flip(x, 1)), 1))


@pytest.mark.parametrize("dtype", ["f32", "u3", "i64"])
def test_rank_and_its_inverse_sort(dtype: str) -> None:
    x = sample(RNG, (3, 9, 2), dtype, special=True)
    for largest in (True, False):
        rank = check(ops.Rank(1, largest), x, names=[dtype])
        where = check(ops.PositionOf(1, 9), rank)
        exact = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
        want = torch.sort(tensor(exact), dim=1, descending=largest, stable=True)
        np.testing.assert_array_equal(where, want.indices.numpy())
        np.testing.assert_array_equal(check(ops.PositionOf(1, 4), rank), where[:, :4])


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose(groups: int) -> None:
    x, w = sample(RNG, (2, 4, 3, 3), "f32"), sample(RNG, (4, 2, 3, 2), "f32")
    b = sample(RNG, (2 * groups,), "f32")
    op = ops.ConvTranspose((2, 3), (1, 2, 1, 2), (2, 1), (1, 2), groups)
    want = functional.conv_transpose2d(tensor(x), tensor(w), tensor(b), (2, 3), (1, 2), (1, 2), groups, (2, 1))
    close(check(op, x, w, b, ulps=500, atol=1e-5), want.numpy(), 500, 1e-5)
    check(ops.ConvTranspose((2, 3), (0, 3, 2, 1), (2, 1), (0, 0), groups), x, w, ulps=500, atol=1e-5)


def test_max_pool_positions() -> None:
    x = sample(RNG, (2, 3, 5, 6), "f32", special=True)
    op = ops.MaxPoolPositions((2, 3), (2, 1), (1, 1, 1, 1), (1, 2))
    _, want = functional.max_pool2d(tensor(np.nan_to_num(x)), (2, 3), (2, 1), (1, 1), (1, 2), return_indices=True)
    offset = 30 * np.arange(6).reshape(2, 3, 1, 1)
    np.testing.assert_array_equal(check(op, np.nan_to_num(x)), want.numpy() + offset)
    rows, columns = np.unravel_index(want.numpy(), (5, 6))
    by_columns = ops.MaxPoolPositions((2, 3), (2, 1), (1, 1, 1, 1), (1, 2), True)
    np.testing.assert_array_equal(check(by_columns, np.nan_to_num(x)), rows + 5 * columns + offset)
    check(op, x)
    check(op, sample(RNG, (2, 3, 5, 6), "u8"))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    x, grid = sample(RNG, (2, 2, 3, 4), "f32"), (RNG.random((2, 3, 2, 2)) * 4 - 2).astype(np.float32)
    got = check(ops.GridSample(mode, padding, align), x, grid, ulps=64, atol=1e-5)
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    want = functional.grid_sample(tensor(x), tensor(grid), name, padding, align)
    if mode != "cubic" or padding == "zeros":  # PyTorch brings the taps of a cubic sample inside, not its place
        np.testing.assert_allclose(got, want.numpy(), atol=1e-4)


def test_resample() -> None:
    for dtype, weight in (("f32", "f32"), ("f16", "f32"), ("f64", "f64")):
        x, i, w = sample(RNG, (3, 5, 2), dtype), RNG.integers(0, 5, (7, 3)), sample(RNG, (7, 3), weight)
        want = np.einsum("notc,ot->noc", x[:, i].astype(np.float64), w)
        np.testing.assert_allclose(check(ops.Resample(1), x, i, w, atol=1e-5), want, rtol=2e-3, atol=1e-3)
    x = np.float32([[np.inf, 1.0]])
    assert check(ops.Resample(1), x, np.int64([[0, 1]]), np.float32([[0.0, 2.0]])) == 2


@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "u64", "i64", "u16"])
def test_shifts(dtype: str) -> None:
    a, b = sample(RNG, (60,), dtype), sample(RNG, (60,), dtype)
    b = np.where(RNG.random(60) < 0.7, b % 9, b).astype(b.dtype)
    bits = int(dtype[1:])
    lo = -(1 << (bits - 1)) if dtype[0] == "i" else 0
    left, right = check(ops.ShiftLeft(), a, b), check(ops.ShiftRight(), a, b)
    for p, q, up, down in zip(a.tolist(), b.tolist(), left.tolist(), right.tolist(), strict=True):
        q = q if 0 <= q < bits else bits
        assert up == ((p << q) - lo) % (1 << bits) + lo
        assert down == p >> q


def forest() -> tuple[list[Any], list[str]]:
    """Two trees: x0 ≤ 0.5 ? leaf : (x1 ≤ -1 ? leaf : leaf), and a tree that is a leaf; x, then the nodes' columns."""
    x = np.float32([[0.5, 9], [0.6, -1], [0.6, -0.9], [np.nan, 0], [np.inf, np.nan], [-np.inf, 0]])
    feature, threshold = np.int64([0, 0, 1, 0, 0, 0]), np.float32([0.5, 0, -1, 0, 0, 0])
    yes, no = np.int64([1, 1, 3, 3, 4, 5]), np.int64([2, 1, 4, 3, 4, 5])
    nan_yes = np.array([False, False, True, False, False, False])
    names = ["f32", "i64", "f32", "i64", "i64", "bool", "i64"]
    return [x, feature, threshold, yes, no, nan_yes, np.int64([0, 5])], names


def test_tree_walk() -> None:
    arrays, names = forest()
    want = [[1, 5], [3, 5], [4, 5], [4, 5], [3, 5], [1, 5]]
    np.testing.assert_array_equal(check(ops.TreeWalk(2), *arrays, names=names), want)
    np.testing.assert_array_equal(check(ops.TreeWalk(7), *arrays, names=names), want)
    np.testing.assert_array_equal(check(ops.TreeWalk(0), *arrays, names=names), [[0, 5]] * 6)


@pytest.mark.parametrize(
    ("op", "types", "said"),
    [
        (ops.GatherElements(1), ["3x4xf32", "4x2xi64"], "indices 4x2xi64 are larger"),
        (ops.ScatterElements(axis=0, how="avg"), ["3xf32", "3xi64", "3xf32"], "reduction 'avg'"),
        (ops.ScatterND(), ["3x4xf32", "2x1xi64", "2x3xf32"], r"must have \(2, 4\)"),
        (ops.CumSum(1), ["3xf32"], "axis 1 is outside"),
        (ops.Rank(0), ["3xbool"], "takes numbers"),
        (ops.GridSample("area"), ["1x1x2x2xf32", "1x2x2x2xf32"], "mode"),
        (ops.ConvTranspose((1,), (9, 9), (1,), (0,)), ["1x1x3xf32", "1x1x2xf32"], "cut more"),
        (ops.Resample(0), ["3xf32", "2x2xi64", "2x2xf64"], "must be 2x2xf32"),
    ],
)
def test_what_is_refused(op: ops.Op, types: list[str], said: str) -> None:
    parsed = [TensorType(tuple(map(int, t.split("x")[:-1])), t.split("x")[-1]) for t in types]
    with pytest.raises(CuvilError, match=said):
        base.infer(op, parsed)


@pytest.mark.needs("cc")
def test_compiled_ops_are_their_meaning() -> None:
    from cuvil_hw.ir.program import Builder

    r = RNG
    cases: list[tuple[ops.Op, list[Any], list[str]]] = [
        *((op, [sample(r, (40,), d, special=True)], [d]) for op, _ in TRIG for d in ("f32", "f64", "f16")),
        (ops.GatherElements(1), [sample(r, (3, 4, 2), "f32"), r.integers(-4, 4, (2, 5, 2))], ["f32", "i64"]),
        (ops.GatherND(1), [sample(r, (3, 4, 2), "i8"), r.integers(-2, 2, (3, 5, 2))], ["i8", "i64"]),
        *(
            (op, [sample(r, (3, 4, 2), d), r.integers(-3, 3, (2, 5, 2)), sample(r, (2, 5, 2), d)], [d, "i64", d])
            for how in ("none", *REDUCED)
            for d in ("f32", "i8", "f16")
            for op in (ops.ScatterElements(axis=1, how=how), ops.ScatterND(how=how))
        ),
        *((op(1, a, b), [sample(r, (2, 5), "f32")], ["f32"]) for op in (ops.CumSum, ops.CumProd) for a in (True, False)
          for b in (True, False)),
        *((ops.Rank(1, a), [sample(r, (2, 9), d, special=True)], [d]) for a in (True, False) for d in ("f32", "u3")),
        (ops.PositionOf(0, 3), [r.permutation(5)], ["i64"]),
        (ops.ConvTranspose((2, 3), (1, 0, 2, 1), (2, 1), (1, 2), 2), [sample(r, (2, 4, 5, 4), "f32"),
         sample(r, (4, 3, 3, 2), "f32"), sample(r, (6,), "f32")], ["f32"] * 3),
        *((ops.MaxPoolPositions((2, 3), (2, 1), (1, 0, 1, 1), (1, 2), c), [sample(r, (2, 3, 5, 6), "f32", True)],
           ["f32"]) for c in (True, False)),
        *((ops.GridSample(m, p, a), [sample(r, (2, 2, 3, 4), "f32"), (r.random((2, 2, 3, 2)) * 4 - 2).astype("f4")],
           ["f32", "f32"]) for m in ("nearest", "linear", "cubic") for p in ("zeros", "border", "reflection")
          for a in (True, False)),
        (ops.TreeWalk(2), *forest()),
        (ops.Resample(1), [sample(r, (3, 5, 2), "f32"), r.integers(0, 5, (7, 3)), sample(r, (7, 3), "f32")],
         ["f32", "i64", "f32"]),
        *((op, [sample(r, (30,), d), sample(r, (30,), d)], [d, d]) for op in (ops.ShiftLeft(), ops.ShiftRight())
          for d in ("i8", "u16", "i64", "u64")),
    ]  # fmt: skip
    builder = Builder([(f"x{n}_{k}", TensorType(a.shape, d)) for n, (_, arrays, names) in enumerate(cases)
                       for k, (a, d) in enumerate(zip(arrays, names, strict=True))])  # fmt: skip
    outputs, taken = [], 0
    for op, arrays, _ in cases:
        outputs.append(builder.op(op, *[builder.input(taken + k) for k in range(len(arrays))]))
        taken += len(arrays)
    program = builder.finish([(f"y{n}", v) for n, v in enumerate(outputs)])
    cpu_runner.check(program, *[a for _, arrays, _ in cases for a in arrays])

"""Rules of docs/numerics.md as results written by hand, not computed by anything of ours.

Each names the words of that page which it follows. They come from IEEE 754, C, Python's integers, and what NumPy,
PyTorch and ONNX say of their operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from cuvil_hw import dtypes, ops
from cuvil_hw.ops.base import Op
from tests.support.meaning_cases import FLOATS, WRAPPING, Array, Case

NAN, INF = math.nan, math.inf
MODES = {  # of 0.5, 1.5, -0.5, -1.5, 1.25, -1.25
    "half_even": [0, 2, 0, -2, 1, -1],
    "half_up": [1, 2, 0, -1, 1, -1],
    "half_away": [1, 2, -1, -2, 1, -1],
    "half_zero": [0, 1, 0, -1, 1, -1],
    "floor": [0, 1, -1, -2, 1, -2],
    "ceil": [1, 2, 0, -1, 2, -1],
    "to_zero": [0, 1, 0, -1, 1, -1],
    "away": [1, 2, -1, -2, 2, -2],
    "sign": [1, 1, -1, -1, 1, -1],
}
HALVES = "computed in f32 and rounded once to f16"


def arrays(given: Sequence[Any], names: Sequence[str]) -> tuple[Array, ...]:
    return tuple(np.asarray(v, dtypes.to_numpy(n)) for v, n in zip(given, names, strict=True))


def rule(
    words: str,
    op: Op,
    names: str,
    given: Sequence[Any],
    want: Any,
    to: str = "",
    raises: bool = False,
    zeros: bool = True,
) -> Case:
    """`names`: of the operands' dtypes, one for all or one each. `to`: dtype of the result, the operands' by itself."""
    kinds = names.split() if " " in names else [names] * len(given)
    expected = arrays([want], [to or kinds[0]])
    return Case(op, arrays(given, kinds), tuple(kinds), zeros=zeros, want=expected, rule=words, raises=raises)


def nan_rules() -> Iterator[Case]:
    words = "**NaN propagates.**"
    x = [NAN, -1, 2]
    pool = ((2,), (1,), (0, 0), (1,))
    for d in FLOATS:
        yield rule(words, ops.Relu(), d, [x], [NAN, 0, 2], zeros=False)
        yield rule(words, ops.Clamp(-0.5, 1.0), d, [x], [NAN, -0.5, 1])
        for op, want in ((ops.Minimum(), [NAN, NAN, 2]), (ops.Maximum(), [NAN, NAN, 3])):
            yield rule(words, op, d, [[NAN, 1, 2], [1, NAN, 3]], want)
        for op in (
            ops.ReduceMax((1,)),
            ops.ReduceMin((1,)),
            ops.ReduceSum((1,)),
            ops.ReduceProd((1,)),
            ops.ReduceMean((1,)),
        ):
            yield rule(words, op, d, [[[NAN, 1, 2], [1, NAN, INF], [1, 2, NAN]]], [NAN] * 3)
        yield rule(words, ops.MaxPool(*pool), d, [[[[1, NAN, 2, 3]]]], [[[NAN, NAN, 3]]])
        yield rule(words, ops.AvgPool(*pool), d, [[[[1, NAN, 2, 4]]]], [[[NAN, NAN, 3]]])
        yield rule(words, ops.CumSum(0), d, [[1, NAN, 2]], [1, NAN, NAN])
        yield rule("the position of the (first) NaN", ops.ArgMax(0), d, [[1, NAN, INF, NAN]], 1, "i64")
        yield rule("the position of the (first) NaN", ops.ArgMin(0), d, [[-INF, 1, NAN, NAN]], 2, "i64")
        yield rule("the last with `last`", ops.ArgMax(0, False, True), d, [[NAN, INF, NAN, 5]], 2, "i64")
        # C: pow(x, ±0) = 1, pow(1, y) = 1, pow(-1, ±inf) = 1, pow(negative, broken) = NaN, pow(±0, negative odd) = ±inf
        base = [NAN, 1, -1, -1, -2, -8, 0.0, -0.0, -0.0, 0.5, 2, -INF, -INF, NAN]
        power = [0.0, NAN, INF, -INF, 3, 1 / 3, -1, -1, 2, -INF, -INF, 3, -3, 1]
        want = [1, 1, 1, 1, -8, NAN, INF, -INF, 0.0, INF, 0.0, -INF, -0.0, NAN]
        yield rule("`pow` follows C", ops.Pow(), d, [base, power], want)
        words_ = "comparisons with NaN are false"
        a, b = [NAN, 1, NAN, 0.0], [NAN, NAN, 1, -0.0]
        for op, last in ((ops.Equal(), True), (ops.Less(), False), (ops.LessEqual(), True), (ops.Greater(), False),
                         (ops.GreaterEqual(), True)):  # fmt: skip
            yield rule(words_, op, d, [a, b], [False, False, False, last], "bool")
        yield rule(
            "`where` takes only the chosen side",
            ops.Where(),
            f"bool {d} {d}",
            [[True, False], [1, NAN], [NAN, 2]],
            [1, 2],
            d,
        )
        yield rule("a cast to an integer gives 0", ops.Cast("i32"), d, [[NAN, -1.5]], [0, -1], "i32")
        yield rule(
            "a cast to bool gives true",
            ops.Cast("bool"),
            d,
            [[NAN, 0.0, -0.0, 0.5, -INF]],
            [True, False, False, True, True],
            "bool",
        )
        yield rule(
            "`quantize` gives the zero point",
            ops.Quantize((0.5,), (3,), "u8"),
            d,
            [[NAN, 1, -1, INF, -INF]],
            [3, 5, 1, 255, 0],
            "u8",
        )


def float_rules() -> Iterator[Case]:
    for d in FLOATS:
        big = float(np.finfo(dtypes.to_numpy(d)).max)
        yield rule("`1 / ±0 = ±inf`", ops.Reciprocal(), d, [[0.0, -0.0, INF, -INF, 2]], [INF, -INF, 0.0, -0.0, 0.5])
        yield rule(
            "`1 / ±0 = ±inf`",
            ops.Div(),
            d,
            [[1, -1, 0, INF, 1], [0.0, 0.0, 0.0, INF, -0.0]],
            [INF, -INF, NAN, NAN, -INF],
        )
        yield rule("`log 0 = -inf`", ops.Log(), d, [[0.0, -0.0, -1, INF, 1]], [-INF, -INF, NAN, INF, 0])
        yield rule("`inf - inf = NaN`", ops.Sub(), d, [[INF, INF, 1], [INF, -INF, INF]], [NAN, INF, -INF])
        yield rule("`0 · inf = NaN`", ops.Mul(), d, [[0, INF, big], [INF, -1, 2]], [NAN, -INF, INF])
        for op in (ops.Silu(), ops.Gelu(), ops.Mish(), ops.HardSwish()):
            yield rule("NaN at -infinity", op, d, [[-INF, INF, NAN]], [NAN, INF, NAN])
        rows_ = [[INF, 0, 1], [NAN, 0, 1], [-INF, -INF, -INF], [-INF, 0, 0], [big, -big, -big]]
        soft = [[NAN] * 3, [NAN] * 3, [NAN] * 3, [0, 0.5, 0.5], [1, 0, 0]]
        yield rule("single -infinities get probability 0", ops.Softmax(1), d, [rows_], soft)
        yield rule("**Signed zeros** are kept", ops.Neg(), d, [[0.0, -0.0]], [-0.0, 0.0])
        yield rule("**Signed zeros** are kept", ops.Mul(), d, [[0.0, -0.0, -1], [-2, -2, 0.0]], [-0.0, 0.0, -0.0])
        yield rule("**Signed zeros** are kept", ops.Add(), d, [[-0.0, 0.0, 1], [-0.0, -0.0, -1]], [-0.0, 0.0, 0.0])
        yield rule("**Signed zeros** are kept", ops.Sqrt(), d, [[-0.0, 0.0, -1]], [-0.0, 0.0, NAN])
        yield rule("**Signed zeros** are kept", ops.Round(), d, [[-0.25, -0.0, 0.25]], [-0.0, -0.0, 0.0])
        yield rule("`sign` of either zero is 0", ops.Sign(), d, [[-0.0, 0.0, -3, NAN]], [0.0, 0.0, -1, NAN])
        yield rule("ties to even", ops.Round(), d, [[0.5, 1.5, 2.5, -0.5, -1.5, -2.5]], [0.0, 2, 2, -0.0, -2, -2])
        whole = "**Remainders** of floats"
        yield rule(whole, ops.Mod(False), d, [[5, -5, 5, -5, 1, -1, INF, 6, -6], [3, 3, -3, -3, 0, INF, 2, 3, 3]],
                   [2, 1, -1, -2, NAN, INF, NAN, 0.0, 0.0])  # fmt: skip
        yield rule(whole, ops.Mod(True), d, [[5, -5, 5, -5, 1, -1, INF, 6, -6], [3, 3, -3, -3, 0, INF, 2, 3, 3]],
                   [2, -2, 2, -2, NAN, -1, NAN, 0.0, -0.0])  # fmt: skip
        yield rule("`hi` wins where the bounds cross", ops.Clamp(2.0, -2.0), d, [[-5, 0, 5]], [-2, -2, -2])
    words = "overflow gives ±infinity"
    yield rule(words, ops.Cast("f16"), "f32", [[65519, 65520, -65520, 1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-26]],
               [65504, INF, -INF, 1, 1 + 2**-9, 0.0, 2**-24], "f16")  # fmt: skip
    yield rule(
        words,
        ops.Cast("f32"),
        "f64",
        [[1e39, -1e39, 1 + 2**-24, 1 + 3 * 2**-24, NAN]],
        [INF, -INF, 1, 1 + 2**-22, NAN],
        "f32",
    )
    yield rule("of casts from integers", ops.Cast("f32"), "i64", [[2**24 + 1, 2**24 + 3, -(2**63), 2**63 - 1]],
               [2.0**24, 2.0**24 + 4, -(2.0**63), 2.0**63], "f32")  # fmt: skip
    yield rule("of casts from integers", ops.Cast("f16"), "i32", [[2049, 2051, 65519, 65520, -(2**31)]],
               [2048, 2052, 65504, INF, -INF], "f16")  # fmt: skip
    # 2048 + 1 + 1 is 2048 where each sum is rounded to f16, and 300² leaves f16.
    words = HALVES
    yield rule(words, ops.ReduceSum((0,)), "f16", [[2048, 1, 1, 1, 1]], 2052)
    yield rule(words, ops.CumSum(0), "f16", [[2048, 1, 1]], [2048, 2048, 2050])
    yield rule(words, ops.ReduceMean((0,)), "f16", [[60000, 60000]], 60000)
    yield rule(words, ops.ReduceProd((0,)), "f16", [[300, 300, 2**-10]], 88)
    yield rule(words, ops.MatMul(), "f16", [[[300, 300]], [[300], [-300]]], [[0]])
    yield rule(words, ops.Linear(), "f16", [[[2048, 1, 1]], [[1, 1, 1]]], [[2050]])
    yield rule(words, ops.Conv((1,), (0, 0), (1,)), "f16", [[[[300, 300]]], [[[300, -300]]]], [[[0]]])
    yield rule(words, ops.AvgPool((2,), (1,), (0, 0), (1,)), "f16", [[[[60000, 60000]]]], [[[60000]]])
    yield rule(words, ops.ScatterElements("add", 0), "f16 i64 f16", [[2048], [0, 0], [1, 1]], [2050])


def integer_rules() -> Iterator[Case]:
    for d in WRAPPING:
        lo, hi = dtypes.int_range(d)
        down = -1 if lo else hi  # what -1 is in the type
        words = "**Two's complement, wrapping**"
        yield rule(words, ops.Add(), d, [[hi, hi, lo], [1, hi, lo]], [lo, -2 if lo else hi - 1, 0])
        yield rule(words, ops.Sub(), d, [[lo, lo, hi], [1, hi, lo]], [hi, 1, -1 if lo else hi])
        yield rule(words, ops.Mul(), d, [[hi, hi, lo], [hi, 2, down]], [1, -2 if lo else hi - 1, lo])
        yield rule(words, ops.ReduceSum((0,)), d, [[hi, 1, 5]], lo + 5)
        yield rule(words, ops.ReduceProd((0,)), d, [[hi, hi, hi]], hi)
        yield rule(words, ops.CumSum(0), d, [[hi, 1, 5]], [hi, lo, lo + 5])
        yield rule(words, ops.CumProd(0), d, [[hi, 2, 1]], [hi, -2 if lo else hi - 1, -2 if lo else hi - 1])
        yield rule(words, ops.ScatterElements("add", 0), f"{d} i64 {d}", [[hi], [0], [1]], [lo])
        words = "its own negative and its own magnitude"
        yield rule(words, ops.Neg(), d, [[lo, 1, 0]], [lo, down, 0])
        yield rule(words, ops.Abs(), d, [[lo, hi, down]], [lo, hi, 1 if lo else hi])
        words = "**Division** truncates towards zero"
        if lo:
            a, b = [7, -7, 7, -7, lo, 5, lo, 0], [2, 2, -2, -2, -1, 0, 0, 0]
            yield rule(words, ops.Div(), d, [a, b], [3, -3, -3, 3, lo, 0, 0, 0])
            yield rule("the sign of the divisor", ops.Mod(False), d, [a, b], [1, 1, -1, -1, 0, 0, 0, 0])
            yield rule("of the dividend (as C)", ops.Mod(True), d, [a, b], [1, -1, 1, -1, 0, 0, 0, 0])
        else:
            a, b = [7, hi, hi, 0], [2, hi, 0, 0]
            yield rule(words, ops.Div(), d, [a, b], [3, 1, 0, 0])
            yield rule("The remainder of a division by zero is 0", ops.Mod(False), d, [a, b], [1, 0, 0, 0])
        bits = (hi - lo).bit_length()
        words = "shifting by the width or more"
        shifts, ones = [0, 1, bits - 1, bits, bits + 1, min(hi, 120)], [hi] * 6
        yield rule(
            words, ops.ShiftLeft(), d, [ones, shifts], [hi, -2 if lo else hi - 1, lo or 1 << (bits - 1), 0, 0, 0]
        )
        yield rule(words, ops.ShiftRight(), d, [ones, shifts], [hi, hi >> 1, hi >> (bits - 1), 0, 0, 0])
        if lo:
            yield rule(
                "(of a negative number shifted right: -1)",
                ops.ShiftRight(),
                d,
                [[lo, lo, -1, 5], [1, bits, 2, -1]],
                [lo // 2, -1, -1, 0],
            )
            yield rule("by a negative number", ops.ShiftLeft(), d, [[1, -1], [-1, lo]], [0, 0])
    words = "keeps the bits, NaNs' payloads too"
    floats = [1, -0.0, INF, 2.0**-149]
    patterns = [0x3F800000, 1 << 31, 0x7F800000, 1]
    yield rule(words, ops.Bitcast("u32"), "f32", [floats], patterns, "u32")
    yield rule(words, ops.Bitcast("f32"), "i32", [[n - (n >> 31 << 32) for n in patterns]], floats, "f32")
    yield rule(words, ops.Bitcast("i16"), "f16", [[1, -2, -INF]], [0x3C00, -0x4000, -0x400], "i16")
    yield rule(words, ops.Bitcast("f64"), "u64", [[0x3FF << 52, 0xC01 << 52]], [1, -4], "f64")
    yield rule(words, ops.Bitcast("i8"), "u8", [[127, 128, 255]], [127, -128, -1], "i8")
    words = "**Casts** between integers wrap"
    yield rule(words, ops.Cast("i8"), "i32", [[127, 128, -129, 256, -(2**31)]], [127, -128, 127, 0, 0], "i8")
    yield rule(words, ops.Cast("u8"), "i8", [[-1, -128, 127]], [255, 128, 127], "u8")
    yield rule(words, ops.Cast("i5"), "i32", [[15, 16, -17, 31]], [15, -16, 15, -1], "i5")
    yield rule(words, ops.Cast("u64"), "i64", [[-1, -(2**63)]], [2**64 - 1, 2**63], "u64")
    yield rule(words, ops.Cast("i64"), "u64", [[2**64 - 1, 2**63]], [-1, -(2**63)], "i64")
    words = "truncates towards zero and saturates"
    for d in FLOATS:
        for to in (*WRAPPING, "i5", "u20"):
            lo, hi = dtypes.int_range(to)
            yield rule(words, ops.Cast(to), d, [[1.75, -0.75, INF, -INF, NAN]], [1, 0, hi, lo, 0], to)
    for d in ("f32", "f64"):
        yield rule(words, ops.Cast("i8"), d, [[127.9, 128, -128.9, -129.5, 1e30]], [127, 127, -128, -128, 127], "i8")
        yield rule(words, ops.Cast("i32"), d, [[2.0**31, -(2.0**31), 2.0**40]], [2**31 - 1, -(2**31), 2**31 - 1], "i32")
        yield rule(words, ops.Cast("u64"), d, [[2.0**63, 2.0**64, -1]], [2**63, 2**64 - 1, 0], "u64")
    yield rule('`add` with `acc = "i9"`', ops.Add("i9"), "i8", [[127, -128], [127, -128]], [254, -256], "i9")


def quantized_rules() -> Iterator[Case]:
    words = "saturate(round(x / scale) + zero point)"
    yield rule(
        words,
        ops.Quantize((1.0,), (1,), "i8"),
        "f32",
        [[0.5, 1.5, -0.5, -1.5, 126.5, 200, -200]],
        [1, 3, 1, -1, 127, 127, -128],
        "i8",
    )
    words = "the sum in f32 too"
    yield rule(
        words, ops.Quantize((1.0,), (1,), "i8", 1, True), "f32", [[0.5, 1.5, -0.5, NAN, INF]], [2, 2, 0, 1, 127], "i8"
    )
    words = "the difference is exact, then rounded to f32"
    yield rule(
        words,
        ops.Dequantize((0.5,), (-1,)),
        "i32",
        [[2**24, 2**24 + 2, -(2**31)]],
        [2.0**23, 2.0**23 + 2, -(2.0**30)],
        "f32",
    )
    words = "round(((x - input zero point) · multiplier + offset) / 2^shift)"
    yield rule(words, ops.Rescale((1,), (1,), "i4"), "i8", [[1, -1, 3, -3, 100, -100]], [0, 0, 2, -2, 7, -8], "i4")
    yield rule(words, ops.Rescale((1 << 30,), (30,), "u8", -1, 2), "i8", [[127, -128, -3, 0]], [130, 0, 0, 3], "u8")
    yield rule(
        words,
        ops.Rescale((1, -3), (1, 2), "i8", 0, 5, 1, "half_even", (0, 2)),
        "i8",
        [[[1, 1], [3, 0], [-1, 4]]],
        [[5, 5], [7, 5], [5, 3]],
        "i8",
    )
    quarters = [[2, 6, -2, -6, 5, -5]]
    for mode, want in MODES.items():
        words = f"| `{mode}` | {want[0]}, {want[1]}, {want[2]}, {want[3]} | {want[4]}, {want[5]} |"
        yield rule(words, ops.Rescale((1,), (2,), "i8", rounding=mode), "i8", quarters, want, "i8")
        floats = [[v / 4 for v in quarters[0]]]
        yield rule(words, ops.Quantize((1.0,), (0,), "i8", rounding=mode), "f32", floats, want, "i8")
    yield rule("a table with one entry", ops.Lut((5, -6, 7, -8), "i4"), "i2", [[-2, -1, 0, 1]], [5, -6, 7, -8], "i4")
    words = "padding holds x's zero point and so adds nothing"
    yield rule(
        words, ops.Conv((1,), (1, 1), (1,), 1, 7, (2,), "i20"), "u8 i8", [[[[9, 7]]], [[[3, 4, 5]]]], [[[4, 2]]], "i20"
    )


def order_rules() -> Iterator[Case]:
    for d in FLOATS:
        w = [[[INF, 1, 2]]]
        yield rule("not even `0 · inf`", ops.Conv((1,), (1, 1), (1,)), d, [[[[1, 2]]], w], [[[5, INF]]])
        yield rule(
            "Padding of `max_pool` never wins",
            ops.MaxPool((2,), (1,), (1, 1), (1,)),
            d,
            [[[[-INF, -5]]]],
            [[[-INF, -5, -5]]],
        )
        yield rule(
            "divides by the cells of the input", ops.AvgPool((2,), (1,), (1, 1), (1,)), d, [[[[2, 4]]]], [[[2, 3, 4]]]
        )
        yield rule(
            "those of the padding too", ops.AvgPool((2,), (1,), (1, 1), (1,), True), d, [[[[2, 4]]]], [[[1, 3, 2]]]
        )
        yield rule(
            "equal elements keep their order",
            ops.Rank(0),
            d,
            [[1, NAN, 3, 1, INF, NAN, 3]],
            [5, 0, 3, 6, 2, 1, 4],
            "i64",
        )
        yield rule(
            "NaN counts as larger than everything",
            ops.Rank(0, False),
            d,
            [[1, NAN, -INF, 1, INF]],
            [1, 4, 0, 2, 3],
            "i64",
        )
        yield rule("taps of weight 0 don't count", ops.Resample(0), f"{d} i64 {'f64' if d == 'f64' else 'f32'}",
                   [[INF, 3, NAN], [[0, 1], [1, 2]], [[0, 1], [0.5, 0]]], [3, 1.5])  # fmt: skip
        yield rule(
            'or nothing with "zeros"',
            ops.GridSample("nearest", "zeros"),
            d,
            [[[[5, 6]]], [[[NAN], [0.5], [9]]]],
            [[[0, 6, 0]]],
        )
        yield rule(
            "a nearest sample at NaN takes place 0",
            ops.GridSample("nearest", "border"),
            d,
            [[[[5, 6]]], [[[NAN], [9]]]],
            [[[5, 6]]],
        )
        yield rule(
            "the first of equals",
            ops.MaxPoolPositions((3,), (1,), (0, 0), (1,)),
            d,
            [[[[1, 2, 2, NAN, NAN]]]],
            [[[1, 3, 3]]],
            "i64",
        )
        tree = ([0, 0, 0], [0.5, 0, 0], [1, 1, 2], [2, 1, 2], [True, False, False], [0])
        names = f"{d} i64 {d} i64 i64 bool i64"
        yield rule(
            "the branch that the node names",
            ops.TreeWalk(1),
            names,
            [[[0.5], [0.75], [NAN], [-INF]], *tree],
            [[1], [2], [1], [1]],
            "i64",
        )
    for d in (*FLOATS, "i8", "u3", "i64"):
        yield rule("the first of equal elements", ops.ArgMax(0), d, [[1, 3, 0, 3]], 1, "i64")
        yield rule("the last with `last`", ops.ArgMin(0, False, True), d, [[1, 0, 2, 0]], 3, "i64")
        yield rule("equal elements keep their order", ops.Rank(0), d, [[1, 3, 1, 3, 2]], [3, 0, 4, 1, 2], "i64")
        yield rule(
            "for one element the last wins",
            ops.ScatterElements("none", 0),
            f"{d} i64 {d}",
            [[0, 0], [1, 1, -1], [1, 2, 3]],
            [0, 3],
        )
        words = "read the nearest element"
        yield rule(words, ops.Gather(0), f"{d} i64", [[1, 2, 3], [3, -4, 100, -1]], [3, 1, 3, 3], raises=True)
        yield rule(words, ops.Gather(0), f"{d} i8", [[1, 2, 3], [127, -128, 1, 0]], [3, 1, 2, 1], raises=True)
        yield rule(words, ops.GatherElements(0), f"{d} i32", [[1, 2], [2, -3, 2**31 - 1]], [2, 1, 2], raises=True)
        yield rule(words, ops.GatherND(), f"{d} i64", [[1, 2, 3], [[3], [-4], [-1]]], [3, 1, 3], raises=True)
        words = "write nothing for an index outside"
        yield rule(
            words, ops.ScatterElements("none", 0), f"{d} i64 {d}", [[1, 2], [2, -3, 0], [3, 3, 3]], [3, 2], raises=True
        )
        yield rule(
            words,
            ops.ScatterND("max") if d != "u3" else ops.ScatterND(),
            f"{d} i64 {d}",
            [[1, 2], [[2], [-3]], [3, 3]],
            [1, 2],
            raises=True,
        )
    yield rule(
        "read the nearest element",
        ops.Resample(0),
        "f32 i64 f32",
        [[1, 2], [[5], [-5]], [[1], [1]]],
        [2, 1],
        raises=True,
    )
    yield rule("counts as no position", ops.PositionOf(0, 3), "i64", [[2, 0, 0]], [3, 0, 0])


def empty_rules() -> Iterator[Case]:
    words = "Tensors may have extents of 0"
    for d in (*FLOATS, "i8", "u64"):
        ends = (-INF, INF) if d[0] == "f" else dtypes.int_range(d)
        nothing = np.zeros((2, 0))
        neutral: list[tuple[Op, Any]] = [
            (ops.ReduceSum((1,)), 0),
            (ops.ReduceProd((1,)), 1),
            (ops.ReduceMax((1,)), ends[0]),
            (ops.ReduceMin((1,)), ends[1]),
        ]
        neutral += [(ops.ReduceMean((1,)), NAN)] if d[0] == "f" else []
        for op, value in neutral:
            yield rule(words, op, d, [nothing], [value, value], zeros=False)
        for op in (ops.Neg(), ops.Relu(), ops.CumSum(1), ops.Transpose((0, 1)), ops.Rank(1)):
            yield rule(words, op, d, [nothing], nothing, "i64" if isinstance(op, ops.Rank) else "")
        yield rule(words, ops.Add(), d, [nothing, nothing], nothing)
        yield rule(words, ops.Concat(1), d, [nothing, [[1], [2]]], [[1], [2]])
        yield rule(words, ops.Pad((0, 1, 0, 0), 1.0), d, [nothing], [[1], [1]])
        yield rule(words, ops.Gather(1), f"{d} i64", [nothing, []], nothing)
        yield rule(words, ops.ScatterND(), f"{d} i64 {d}", [[1, 2], np.zeros((0, 1)), []], [1, 2])
    for d in FLOATS:
        yield rule(words, ops.MatMul(), d, [np.zeros((2, 0)), np.zeros((0, 1))], [[0], [0]])
        yield rule(words, ops.Linear(), d, [np.zeros((1, 0)), np.zeros((2, 0)), [1, 2]], [[1, 2]])
        yield rule(words, ops.Softmax(1), d, [np.zeros((2, 0))], np.zeros((2, 0)))


@cache
def rules() -> tuple[Case, ...]:
    return (*nan_rules(), *float_rules(), *integer_rules(), *quantized_rules(), *order_rules(), *empty_rules())


@cache
def beyond() -> tuple[Case, ...]:
    """Rules about what the tables of meaning_cases.py don't hold: sums of f16, indices outside, tensors without
    elements, ties that matter. Targets that give what the reference gives follow the others too."""
    sums = (c for c in float_rules() if c.rule == HALVES)
    return (*sums, *quantized_rules(), *order_rules(), *empty_rules())

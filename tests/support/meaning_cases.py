"""Every op on every kind of element type that it takes, with the values that rules are about.

The tables here say what is run; what must come out is the op's meaning (`evaluate`). meaning_rules.py has results that
were written by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from cuvil_hw import dtypes, ops
from cuvil_hw.contract.device import Array
from cuvil_hw.ops.base import Op

FLOATS = ("f16", "f32", "f64")
WRAPPING = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
ODD = ("i2", "i5", "u3", "i12", "u20")
INTEGERS = WRAPPING + ODD
ALL = (*FLOATS, *INTEGERS, "bool")
SOME = ("f16", "f32", "f64", "i8", "u64", "u3", "bool")  # of ops that move elements whatever they are


@dataclass(frozen=True)
class Case:
    """One op on operands of dtypes `names`. `want`: results, where they were written by hand; `rule`: the words of
    docs/numerics.md that they follow. `raises`: the reference raises, as docs say, what devices can't. `atol`: of an
    op whose formula cancels, in its own units. `zeros`: the signs of zeros are specified."""

    op: Op
    arrays: tuple[Array, ...]
    names: tuple[str, ...]
    atol: float = 0.0
    zeros: bool = True
    want: tuple[Array, ...] = field(default=(), repr=False)
    rule: str = ""
    raises: bool = False

    def __str__(self) -> str:
        return f"{self.op} on {', '.join(self.names)}" + (f" ({self.rule})" if self.rule else "")


def values(dtype: str) -> Array:
    """What rules are about: of floats NaN, infinities, zeros, ties, ends of the range and a subnormal number; of
    integers both ends, zero and its neighbours."""
    kind = dtypes.to_numpy(dtype)
    if dtype == "bool":
        return np.asarray([False, True])
    if dtypes.is_float(dtype):
        info = np.finfo(kind)
        far = [float(info.max), -float(info.max), float(info.tiny), float(info.tiny) / 4]
        odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, -3.0, 7.25, 90.0, -90.0]
        return np.asarray([*odd, *far], kind)
    lo, hi = dtypes.int_range(dtype)
    near = [v for v in (lo, lo + 1, -7, -2, -1, 0, 1, 2, 3, 7, hi - 1, hi) if lo <= v <= hi]
    return np.asarray(sorted(set(near)), kind)


def pairs(dtype: str) -> tuple[Array, Array]:
    """Each value with each."""
    v = values(dtype)
    return np.repeat(v, len(v)), np.tile(v, len(v))


def rows(dtype: str, shape: Sequence[int], seed: int, special: bool = True) -> Array:
    """Random elements: of `values` where `special`, else small whole numbers and halves, whose sums are exact."""
    rng = np.random.default_rng(seed)
    if special or dtype == "bool":
        return np.asarray(rng.choice(values(dtype), tuple(shape)))
    if dtypes.is_float(dtype):
        return np.asarray(rng.integers(-8, 9, tuple(shape)) / 2, dtypes.to_numpy(dtype))
    lo, hi = dtypes.int_range(dtype)
    return np.asarray(rng.integers(lo, hi, tuple(shape), dtypes.to_numpy(dtype).type, endpoint=True))


# Of casts from integers: one of each way to wrap.
NARROWED = (*FLOATS, "i8", "u8", "i16", "u32", "i64", "u64", "i5", "u3", "bool")

# op, integer types that it takes beside floats, absolute error of a formula that cancels
UNARY: tuple[tuple[Op, tuple[str, ...], float], ...] = (
    (ops.Neg(), WRAPPING, 0),
    (ops.Abs(), WRAPPING, 0),
    (ops.Exp(), (), 0),
    (ops.Log(), (), 1e-7),
    (ops.Sqrt(), (), 0),
    (ops.Reciprocal(), (), 0),
    (ops.Tanh(), (), 0),
    (ops.Sigmoid(), (), 0),
    (ops.Erf(), (), 0),
    (ops.Sin(), (), 1e-7),
    (ops.Cos(), (), 1e-7),
    (ops.Tan(), (), 1e-6),
    (ops.Asin(), (), 0),
    (ops.Acos(), (), 1e-7),
    (ops.Atan(), (), 0),
    (ops.Sinh(), (), 0),
    (ops.Cosh(), (), 0),
    (ops.Asinh(), (), 0),
    (ops.Acosh(), (), 0),
    (ops.Atanh(), (), 0),
    (ops.Floor(), (), 0),
    (ops.Ceil(), (), 0),
    (ops.Round(), (), 0),
    (ops.Sign(), INTEGERS, 0),
    (ops.Relu(), INTEGERS, 0),
    (ops.Clamp(-1.0, 1.0), INTEGERS, 0),
    (ops.Clamp(hi=-0.0), (), 0),
    (ops.LeakyRelu(0.2), (), 0),
    (ops.Elu(1.3), (), 0),
    (ops.Selu(), (), 0),
    (ops.Gelu(), (), 1e-5),
    (ops.Gelu("tanh"), (), 1e-5),
    (ops.Silu(), (), 0),
    (ops.HardSigmoid(), (), 0),
    (ops.HardSwish(), (), 0),
    (ops.Softplus(), (), 0),
    (ops.Mish(), (), 0),
)

BINARY: tuple[tuple[Op, tuple[str, ...]], ...] = (
    (ops.Add(), FLOATS + WRAPPING),
    (ops.Sub(), FLOATS + WRAPPING),
    (ops.Mul(), FLOATS + WRAPPING),
    (ops.Add("i34"), ("i8", "u32", *ODD)),
    (ops.Sub("i34"), ("i8", "u32", *ODD)),
    (ops.Mul("i41"), ("i8", "u16", *ODD)),
    (ops.Div(), FLOATS + WRAPPING),
    (ops.Mod(False), FLOATS + INTEGERS),
    (ops.Mod(True), FLOATS + INTEGERS),
    (ops.Pow(), FLOATS),
    (ops.Minimum(), FLOATS + INTEGERS),
    (ops.Maximum(), FLOATS + INTEGERS),
    (ops.Equal(), ("f16", "f32", "f64", "i5", "i32", "u64", "bool")),
    (ops.Less(), ("f16", "f32", "f64", "i5", "i32", "u64")),
    (ops.LessEqual(), ("f16", "f32", "f64", "i5", "i32", "u64")),
    (ops.Greater(), ("f16", "f32", "f64", "i5", "i32", "u64")),
    (ops.GreaterEqual(), ("f16", "f32", "f64", "i5", "i32", "u64")),
    (ops.LogicalAnd(), ("bool",)),
    (ops.LogicalOr(), ("bool",)),
    (ops.LogicalXor(), ("bool",)),
    (ops.BitwiseAnd(), ("i8", "u16", "i32", "u64", *ODD)),
    (ops.BitwiseOr(), ("i8", "u16", "i32", "u64", *ODD)),
    (ops.BitwiseXor(), ("i8", "u16", "i32", "u64", *ODD)),
    (ops.ShiftLeft(), WRAPPING),
    (ops.ShiftRight(), WRAPPING),
)

# A minimum or maximum of two zeros may be either (docs/numerics.md); sums of one zero likewise.
EITHER_ZERO = (ops.Minimum, ops.Maximum, ops.Relu, ops.Clamp, ops.HardSigmoid, ops.HardSwish, ops.Softplus, ops.Mish,
               ops.ReduceMax, ops.ReduceMin, ops.MaxPool, ops.ReduceSum, ops.ReduceMean, ops.CumSum, ops.AvgPool,
               ops.Conv, ops.ConvTranspose, ops.Linear, ops.MatMul, ops.ScatterElements, ops.ScatterND, ops.Resample,
               ops.GridSample, ops.BatchNorm)  # fmt: skip


def case(op: Op, arrays: Sequence[Array], names: Sequence[str], atol: float = 0.0) -> Case:
    return Case(op, tuple(arrays), tuple(names), atol, not isinstance(op, EITHER_ZERO))


def unary() -> Iterator[Case]:
    for op, integers, atol in UNARY:
        for dtype in FLOATS + integers:
            yield case(op, [values(dtype)], [dtype], atol)
    for dtype in FLOATS:
        yield case(ops.IsNan(), [values(dtype)], [dtype])
    yield case(ops.LogicalNot(), [values("bool")], ["bool"])
    for dtype in ("i2", "i5", "i8", "u8", "u32", "i64"):
        yield case(ops.BitwiseNot(), [values(dtype)], [dtype])
    for dtype, to in itertools.product(("f16", "f32", "f64"), ALL):
        more = np.asarray([254.5, 255.5, -128.5, -129, 2049, 65520, 65519, 4e9, -4e9, 2.0**63, 2.0**64, 1e20, -1e20])
        with np.errstate(over="ignore"):
            yield case(ops.Cast(to), [np.concatenate([values(dtype), more.astype(values(dtype).dtype)])], [dtype])
    for dtype, to in itertools.product(("i8", "u8", "i32", "u32", "i64", "u64", "i5", "u3", "u20", "bool"), NARROWED):
        more = [v for v in (2**24 + 1, 2**24 + 3, 2**53 + 1, 65520, 65519) if v <= dtypes.int_range(dtype)[1]]
        x = values(dtype)
        yield case(ops.Cast(to), [np.concatenate([x, np.asarray(more, x.dtype)])], [dtype])
    for dtype, to in itertools.permutations(("f32", "i32", "u32"), 2):
        yield case(ops.Bitcast(to), [bits(to, dtype)], [dtype])
    for dtype, to in (("f16", "i16"), ("u16", "f16"), ("f64", "u64"), ("i64", "f64"), ("i8", "u8"), ("u64", "i64")):
        yield case(ops.Bitcast(to), [bits(to, dtype)], [dtype])


def bits(dtype: str, held: str) -> Array:
    """What rules are about of both types, and NaNs with payloads, as values of the second."""
    kind = dtypes.to_numpy(held)
    unsigned = np.dtype(f"u{kind.itemsize}")
    some = [values(t).view(unsigned) for t in (dtype, held)]
    ones = np.iinfo(unsigned).max
    return np.concatenate([*some, np.asarray([1, ones, ones >> 1, ones - (ones >> 9)], unsigned)]).view(kind)


def binary() -> Iterator[Case]:
    for op, names in BINARY:
        for dtype in names:
            yield case(op, pairs(dtype), [dtype, dtype])
    for dtype in SOME:
        a, b = pairs(dtype)
        yield case(ops.Where(), [rows("bool", a.shape, 1), a, b], ["bool", dtype, dtype])


def reductions() -> Iterator[Case]:
    for cls in (ops.ReduceSum, ops.ReduceProd):
        for dtype in FLOATS + WRAPPING:
            yield case(cls((1, 2), dtype[0] == "u"), [rows(dtype, (3, 4, 5), 2)], [dtype])
        for dtype in ("f32", "i8"):
            for axes in ((), (0,)):
                yield case(cls(axes, axes == (0,)), [rows(dtype, (3, 4, 5), 2)], [dtype])
        yield case(cls((0,), False, "i40"), [rows("i5", (3, 4), 3)], ["i5"])
    for dtype in FLOATS:
        yield case(ops.ReduceMean((1,)), [rows(dtype, (3, 4, 2), 4)], [dtype])
    for extreme in (ops.ReduceMax, ops.ReduceMin):
        for dtype in FLOATS + INTEGERS:
            yield case(extreme((1,), True), [rows(dtype, (5, 3), 5)], [dtype])
    for arg in (ops.ArgMax, ops.ArgMin):
        for dtype in FLOATS + INTEGERS:
            for last in (False, True) if dtype in SOME else (False,):
                yield case(arg(1, last, last), [rows(dtype, (6, 5), 6)], [dtype])
    for run in (ops.CumSum, ops.CumProd):
        for dtype in FLOATS + WRAPPING:
            yield case(run(1, dtype[0] == "i", dtype[0] == "u"), [rows(dtype, (2, 6), 7)], [dtype])
    for dtype in FLOATS + INTEGERS:
        for largest in (False, True) if dtype in SOME else (True,):
            yield case(ops.Rank(1, largest), [rows(dtype, (2, 9), 8)], [dtype])
    for dtype in ("i64", "i8", "u3"):
        yield case(ops.PositionOf(0, 5), [np.asarray([[2, 1], [0, 1], [1, 3]], dtypes.to_numpy(dtype))], [dtype])
    for dtype in FLOATS:
        x = rows(dtype, (6, 5), 9)
        x[0], x[1] = 0, [1, -np.inf, 2, 0.5, -1]
        for composite in (ops.Softmax(1), ops.LogSoftmax(1), ops.Softmax(0)):
            yield case(composite, [x], [dtype], 1e-6)


def moves() -> Iterator[Case]:
    index = np.int64([[0, -1], [4, 2]])
    for dtype in SOME:
        x, y = rows(dtype, (3, 5), 10), rows(dtype, (3, 5), 11)
        yield case(ops.Reshape((5, 3)), [x], [dtype])
        yield case(ops.Transpose((1, 0)), [x], [dtype])
        yield case(ops.Slice((2, 4), (2, 3), (-1, -2)), [x], [dtype])
        yield case(ops.Concat(0), [x, x[:0], y], [dtype] * 3)
        yield case(ops.BroadcastTo((2, 3, 5)), [x[:, :1]], [dtype])
        for mode in ("constant", "reflect", "edge"):
            yield case(ops.Pad((1, 0, 2, 1), 1.0, mode), [x], [dtype])
        yield case(ops.Gather(1), [x, index], [dtype, "i64"])
        yield case(ops.GatherElements(1), [x, np.int8([[0, -5], [4, 2], [1, 1]])], [dtype, "i8"])
        yield case(ops.GatherND(), [x, np.int32([[0, -1], [-3, 4]])], [dtype, "i32"])
        yield case(ops.ScatterElements("none", 1), [x, np.int64([[1, 1, -1]]), y[:1, :3]], [dtype, "i64", dtype])
        yield case(ops.ScatterND(), [x, np.int64([[1], [1], [-3]]), y], [dtype, "i64", dtype])
    for how in ("add", "mul", "max", "min"):
        for dtype in FLOATS + WRAPPING:
            x, y = rows(dtype, (2, 4), 12), rows(dtype, (2, 4), 13)
            indices = np.int64([[1, 1, 1, 0], [3, 3, -1, 2]])
            scatter = ops.ScatterElements(how, 1)
            yield case(scatter, [x, indices, y], [dtype, "i64", dtype])
        yield case(ops.ScatterND(how), [x, np.int64([[1], [1]]), y], [dtype, "i64", dtype])


def layers() -> Iterator[Case]:
    window = ((2, 1), (1, 0, 1, 1), (1, 2))
    pool = ((2, 3), *window)
    for dtype in FLOATS:
        x, w, b = (rows(dtype, s, 14, False) for s in ((1, 4, 5, 6), (6, 2, 3, 2), (6,)))
        odd = rows(dtype, (1, 4, 5, 6), 15)
        wide = w.copy()
        wide.reshape(-1)[::7] = np.inf
        some = x.copy()
        some[0, 1, 2, 3], some[0, 3, 0, 0] = np.nan, np.inf
        yield case(ops.Conv(*window, 2), [some, w, b], [dtype] * 3)
        yield case(ops.Conv(*window, 2), [x, wide], [dtype] * 2)
        yield case(ops.ConvTranspose((2, 1), (1, 0, 1, 1), (1, 2), (0, 0)), [some, w[:4], b[:2]], [dtype] * 3)
        yield case(ops.Linear(), [some, rows(dtype, (3, 6), 16, False)], [dtype] * 2)
        yield case(ops.MatMul(), [some, rows(dtype, (6, 5), 17, False)], [dtype] * 2)
        yield case(ops.MaxPool(*pool), [odd], [dtype])
        yield case(ops.MaxPoolPositions(*pool), [odd], [dtype])
        for count in (False, True):
            yield case(ops.AvgPool(*pool, count), [some], [dtype])
        stats = [np.abs(rows(dtype, (4,), 18 + n, False)) for n in range(4)]
        stats[3][0] = -1
        yield case(ops.BatchNorm(), [some, *stats], [dtype] * 5)
        yield case(ops.InstanceNorm(), [some, *stats[:2]], [dtype] * 3, 1e-5)
        yield case(ops.GroupNorm(2), [some, *stats[:2]], [dtype] * 3, 1e-5)
        yield case(ops.LayerNorm(3), [some, x[0, 0, 0], x[0, 1, 0]], [dtype] * 3, 1e-5)
        taps = np.asarray([[0, 1], [0.25, 0.75], [1, 0]], np.float64 if dtype == "f64" else np.float32)
        at = np.int64([[0, 1], [1, -1], [2, 3]])
        yield case(ops.Resample(1), [odd, at, taps], [dtype, "i64", "f64" if dtype == "f64" else "f32"])
        grid = np.asarray([-3, -1, -0.5, 0, 0.25, 1, 1.5, np.nan], x.dtype)
        places = np.stack(np.meshgrid(grid, grid), -1)[None]
        for mode, padding in (("nearest", "zeros"), ("linear", "border"), ("cubic", "reflection"), ("linear", "edge")):
            inside = places if mode == "nearest" and padding == "zeros" else np.nan_to_num(places)
            yield case(ops.GridSample(mode, padding), [x, inside], [dtype] * 2, 1e-5)
        sample = np.asarray([[np.nan, 1], [0.5, -np.inf], [np.inf, 0], [-0.0, 1]], x.dtype)
        feature, yes, no = np.int64([0, 1, 0, 0, 0]), np.int64([1, 3, 2, 3, 4]), np.int64([2, 4, 2, 3, 4])
        threshold, nan_yes = np.asarray([0.5, 0, 0, 0, 0], x.dtype), np.asarray([True, False, False, False, False])
        tree = [feature, threshold, yes, no, nan_yes, np.int64([0, 1])]
        yield case(ops.TreeWalk(2), [sample, *tree], [dtype, "i64", dtype, "i64", "i64", "bool", "i64"])
        yield case(ops.Quantize((0.5,), (3,), "i8"), [values(dtype)], [dtype])
    q, k = rows("u8", (1, 4, 5, 6), 20, False), rows("i8", (6, 2, 3, 2), 21, False)
    yield case(ops.Conv(*window, 2, 7, (1, -2, 3, -4, 5, -6), "i24"), [q, k], ["u8", "i8"])
    yield case(ops.Linear(3, (1,), "i32"), [q, rows("i4", (5, 6), 22, False)], ["u8", "i4"])
    yield case(ops.MatMul(3, (1, 2), "i20"), [q, rows("i8", (6, 2), 23, False)], ["u8", "i8"])
    yield case(ops.SumPool(*pool, "i12", 3), [q], ["u8"])
    for dtype in INTEGERS:
        yield case(ops.MaxPool(*pool), [rows(dtype, (1, 2, 4, 6), 24)], [dtype])
        yield case(ops.MaxPoolPositions(*pool), [rows(dtype, (1, 2, 4, 6), 25)], [dtype])
        yield case(ops.Dequantize((0.5, 0.1), (3, -2), 0), [rows(dtype, (2, 9), 26)], [dtype])
    for dtype in ("i2", "u3", "i8", "u8", "i16", "i24", "i32", "u32"):
        yield case(ops.Quantize((0.5,), (1,), dtype), [values("f32")], ["f32"])
        yield case(ops.Quantize((0.5, 0.3), (1, 0), dtype, 0, True), [rows("f32", (2, 12), 27)], ["f32"])
    for dtype in ("i2", "u3", "i8", "u8", "i16", "i32"):
        for to in ("i4", "u8", "i32"):
            yield case(ops.Rescale((1 << 29, 3), (30,), to, 1, 1, 0), [rows(dtype, (2, 9), 28)], [dtype])
    for dtype in ("i2", "u3", "i8", "u8"):
        lo, hi = dtypes.int_range(dtype)
        yield case(ops.Lut(tuple(range(-(hi - lo) - 1, 0)), "i9"), [values(dtype)], [dtype])


def narrowed(cases: Sequence[Case]) -> Iterator[Case]:
    """The cases of f32 in bf16, casts of all kinds to it, and its bits."""
    for c in cases:
        if "f32" in c.names and not isinstance(c.op, ops.Bitcast):
            kept = 2 if isinstance(c.op, ops.Resample) else len(c.names)  # its weights are f32
            names = tuple("bf16" if name == "f32" and n < kept else name for n, name in enumerate(c.names))
            arrays = (dtypes.convert(a, n) if n == "bf16" else a for a, n in zip(c.arrays, names, strict=True))
            yield Case(c.op, tuple(arrays), names, c.atol, c.zeros)
    for dtype in ALL:
        yield case(ops.Cast("bf16"), [values(dtype)], [dtype])
    halves = np.asarray([0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0x7F7F8000, 0x8000, 0x18000, 0x7F800001], "u4")
    yield case(ops.Cast("bf16"), [halves.view(np.float32)], ["f32"])
    bits = np.asarray([0, 1, 0x7F, 0x80, 0x3F80, 0x7F80, 0x7FC1, 0x8000, 0x8001, 0xFF80, 0xFFFF], np.uint16)
    yield case(ops.Bitcast("bf16"), [bits], ["u16"])
    yield case(ops.Bitcast("i16"), [bits.view(dtypes.BF16)], ["bf16"])


@cache
def everything() -> tuple[Case, ...]:
    cases = (*unary(), *binary(), *reductions(), *moves(), *layers())
    return (*cases, *narrowed(cases))

"""The steps that random graphs are made of: each draws an op with attributes and operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from cuvil_hw import dtypes, ops
from cuvil_hw.ops.base import Op
from tests.support import fpga_networks as layers
from tests.support.graph_maker import NATIVE, ODD, Graph, Kind, Skip, Step, Value

EXACT_BINARY = (ops.Minimum, ops.Maximum, ops.Add, ops.Sub, ops.Mul)
COMPARISONS = (ops.Equal, ops.Less, ops.LessEqual, ops.Greater, ops.GreaterEqual)
LOGIC = (ops.LogicalAnd, ops.LogicalOr, ops.LogicalXor)
BITS = (ops.BitwiseAnd, ops.BitwiseOr, ops.BitwiseXor)


def bits(x: Value) -> int:
    width = dtypes.int_width(x.type.dtype)
    return width[1] if width is not None else 0


def wrapping(x: Value) -> bool:
    return x.type.dtype in NATIVE


# ---- integers -------------------------------------------------------------------------------------------------------


def wrapped_arithmetic(g: Graph) -> Value:
    x = g.integer(wrapping)
    kind = g.rng.choice([ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Mod])
    return g.op(ops.Mod(g.chance(0.5)) if kind is ops.Mod else kind(), x, g.like(x))


def wide_arithmetic(g: Graph) -> Value:
    """Into the width that holds every result."""
    kind = g.rng.choice([ops.Add, ops.Sub, ops.Mul])
    x = g.integer(lambda v: bits(v) <= (23 if kind is ops.Mul else 46))  # accumulators have 48 bits at most
    return g.op(kind(f"i{2 * bits(x) + 1}" if kind is ops.Mul else f"i{bits(x) + 2}"), x, g.like(x))


def extreme(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.dtype != "bool")
    return g.op(g.rng.choice([ops.Minimum, ops.Maximum])(), x, g.like(x))


def compared(g: Graph) -> Value:
    x = g.pick()
    return g.op(g.rng.choice(COMPARISONS)(), x, g.like(x))


def logic(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.dtype == "bool")
    return g.op(ops.LogicalNot(), x) if g.chance(0.25) else g.op(g.rng.choice(LOGIC)(), x, g.like(x))


def bitwise(g: Graph) -> Value:
    x = g.integer()
    return g.op(ops.BitwiseNot(), x) if g.chance(0.25) else g.op(g.rng.choice(BITS)(), x, g.like(x))


def shifted(g: Graph) -> Value:
    x = g.integer()
    by = g.like(x) if g.chance(0.3) else g.const(x.type.shape, x.type.dtype, min(bits(x) + 1, 100))
    return g.op(g.rng.choice([ops.ShiftLeft, ops.ShiftRight])(), x, by)


def unary_integer(g: Graph) -> Value:
    return g.op(g.rng.choice([ops.Abs, ops.Neg, ops.Sign, ops.Relu, ops.Relu])(), g.integer())


def cast_integer(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.dtype == "bool" or dtypes.is_int(v.type.dtype))
    return g.op(ops.Cast(g.rng.choice([*NATIVE, *ODD, "i8", "i8", "i16", "bool"])), x)


def chosen(g: Graph) -> Value:
    x = g.pick()
    truths = [v for v in g.values if v.type == x.type.with_dtype("bool")]
    cond = g.rng.choice(truths) if truths else g.op(g.rng.choice(COMPARISONS)(), g.sure(x), g.sure(g.like(x)))
    return g.op(ops.Where(), cond, x, g.like(x))


def rescaled(g: Graph) -> Value:
    return g.rescaled(g.integer(lambda v: bits(v) <= 48), dtype=g.rng.choice(["", "", "", "i17", "u9", "i24", "i32"]))


def clamped(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.dtype != "bool" and v.type.size > 0 and v.exact and bool(np.isfinite(v.data).all()))
    if bits(x) > 52:
        raise Skip  # bounds are doubles
    return g.clamped(x)


def table(g: Graph) -> Value:
    return layers.table(g, g.integer(lambda v: bits(v) <= 8 and v.type.size > 0))


# ---- shapes, of any type --------------------------------------------------------------------------------------------


def reshaped(g: Graph) -> Value:
    x = g.pick()
    parts = [n for n in x.type.shape if n != 1]
    if g.chance(0.3) and 0 not in parts:
        parts = [prod(parts)]
    elif g.chance(0.3):
        g.rng.shuffle(parts)
    for _ in range(g.rng.randint(0, 2)):
        parts.insert(g.rng.randint(0, len(parts)), 1)
    at = [d for d, n in enumerate(parts) if n in (4, 6, 10, 12, 15, 20)]
    if at:
        d = g.rng.choice(at)
        parts[d : d + 1] = [2, parts[d] // 2] if parts[d] % 2 == 0 else [3, parts[d] // 3]
    return g.op(ops.Reshape(tuple(parts)), x)


def transposed(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.rank > 1)
    return g.op(ops.Transpose(tuple(g.rng.sample(range(x.type.rank), x.type.rank))), x)


def cut(g: Graph) -> Value:
    return layers.cut(g, g.pick(lambda v: v.type.size > 0))


def padded(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.rank > 0)
    mode = g.rng.choice(["constant", "constant", "edge", "reflect"])
    pads = tuple(g.rng.choice([0, 0, 1, 2]) for _ in range(2 * x.type.rank))
    value = 0.0
    if dtypes.is_int(x.type.dtype) and bits(x) <= 52:
        value = float(g.rng.choice([0, *dtypes.int_range(x.type.dtype)]))
    return g.op(ops.Pad(pads, value, mode), x)


def joined(g: Graph) -> Value:
    x = g.pick()
    return g.op(ops.Concat(g.axis(x)), *[x, *[g.like(x) for _ in range(g.rng.choice([1, 1, 2]))]])


def spread(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.rank < 5)
    shape = [g.rng.randint(2, 4) if n == 1 and g.chance(0.4) else n for n in x.type.shape]
    return g.op(ops.BroadcastTo(tuple(([g.rng.randint(1, 3)] if g.chance(0.4) else []) + shape)), x)


def gathered(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.size > 0)
    axis = g.axis(x)
    n = x.type.shape[axis]
    kind = g.rng.choice(["gather", "elements", "scatter"])
    if kind == "gather":
        shape: Sequence[int] = [g.rng.randint(1, 4) for _ in range(g.rng.choice([0, 1, 1, 2]))]
    else:
        shape = [g.rng.randint(1, s) for s in x.type.shape]
    where = g.const(shape, g.rng.choice(["i64", "i32"]), data=g.draw.integers(-n, n, tuple(shape)))
    if kind == "gather":
        return g.op(ops.Gather(axis), x, where)
    if kind == "elements":
        return g.op(ops.GatherElements(axis), x, where)
    how = g.rng.choice(["none", "max", "min"] if x.type.dtype != "bool" else ["none"])
    return g.op(ops.ScatterElements(how, axis), x, where, g.const(shape, x.type.dtype))


def positions(g: Graph, extents: Sequence[int], shape: Sequence[int]) -> Value:
    """(*shape, len(extents)) positions in dimensions of these extents, from the end too."""
    where = np.stack([g.draw.integers(-n, n, tuple(shape)) for n in extents], axis=-1)
    return g.const(where.shape, "i64", data=where)


def picked(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.size > 0 and v.type.rank > 0)
    depth = g.rng.randint(1, x.type.rank)
    shape = [g.rng.randint(1, 4) for _ in range(g.rng.choice([1, 1, 2]))]
    where = positions(g, x.type.shape[:depth], shape)
    if g.chance(0.5):
        return g.op(ops.GatherND(), x, where)
    how = g.rng.choice(["none", "max", "min"] if x.type.dtype != "bool" else ["none"])
    return g.op(ops.ScatterND(how), x, where, g.const((*shape, *x.type.shape[depth:]), x.type.dtype))


def place_of(g: Graph) -> Value:
    x = g.integer(lambda v: v.type.size > 0)
    if g.chance(0.5) and x.type.rank in (3, 4):
        kernel, strides, pads, dilations = layers.spatial_attributes(g, x.type.shape[2:])
        return g.op(ops.MaxPoolPositions(kernel, strides, pads, dilations, g.chance(0.3)), x)
    axis = g.axis(x)
    return g.op(ops.PositionOf(axis, g.rng.randint(1, 5)), g.op(ops.Rank(axis, g.chance(0.5)), x))


# ---- reductions and scans -------------------------------------------------------------------------------------------


def axes_of(g: Graph, x: Value) -> tuple[int, ...]:
    if not x.type.rank:
        raise Skip
    return tuple(sorted(g.rng.sample(range(x.type.rank), g.rng.randint(1, x.type.rank))))


def reduced(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.dtype != "bool")
    axes, keep = axes_of(g, x), g.chance(0.5)
    if dtypes.is_float(x.type.dtype):
        kind = g.rng.choice([ops.ReduceMax, ops.ReduceMin, ops.ReduceSum, ops.ReduceMean])
        return g.op(kind(axes, keep), x, exact=kind in (ops.ReduceMax, ops.ReduceMin))
    kind = g.rng.choice([ops.ReduceMax, ops.ReduceMin, ops.ReduceSum, ops.ReduceProd])
    if kind is ops.ReduceSum and bits(x) <= 38 and (not wrapping(x) or g.chance(0.7)):
        return g.op(ops.ReduceSum(axes, keep, f"i{bits(x) + 10}"), x)
    return g.op(kind(axes, keep), x)


def position(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.dtype != "bool" and v.exact)
    return g.op(g.rng.choice([ops.ArgMax, ops.ArgMin])(g.axis(x), g.chance(0.5), g.chance(0.3)), x)


def scanned(g: Graph) -> Value:
    x = g.integer(wrapping)
    kind = g.rng.choice([ops.CumSum, ops.CumProd])
    return g.op(kind(g.axis(x), g.chance(0.3), g.chance(0.3)), x)


def ranked(g: Graph) -> Value:
    x = g.pick(lambda v: v.type.dtype != "bool" and v.exact)
    return g.op(ops.Rank(g.axis(x), g.chance(0.5)), x)


# ---- layers on integers, as fpga_networks has them ------------------------------------------------------------------


def layer(make: Callable[[Graph, Value], Value], low: int, high: int, width: int = 16) -> Step:
    def step(g: Graph) -> Value:
        x = g.integer(lambda v: low <= v.type.rank <= high and bits(v) <= width and v.type.size > 0)
        if low > 2 and prod(x.type.shape[2:]) < 2:
            raise Skip
        return make(g, x)

    step.__name__ = make.__name__
    return step


def product(g: Graph) -> Value:
    """Of two computed matrices, or with a constant one."""
    x = g.integer(lambda v: v.type.rank >= 2 and bits(v) <= 16)
    *front, m, k = x.type.shape
    n = g.rng.choice([1, 2, 3, 5])
    found = [v for v in g.values if v.type.shape == (*front, k, m) and 1 <= bits(v) <= 16]
    w = g.rng.choice(found) if found and g.chance(0.5) else g.const((*front, k, n) if g.chance(0.5) else (k, n), "i8")
    return g.op(ops.MatMul(g.zero_point(x.type.dtype), (0,), "i48"), x, w)


LAYERS = (
    layer(layers.conv, 3, 4), layer(layers.conv, 3, 4), layer(layers.pool, 3, 4), layer(layers.linear, 2, 4),
    layer(layers.global_pool, 3, 4), layer(layers.residual, 2, 4), layer(layers.product, 2, 4), product,
)  # fmt: skip
ANY_TYPE = (extreme, compared, chosen, clamped, reshaped, transposed, cut, padded, joined, spread, gathered, reduced,
            position, logic, logic, picked)  # fmt: skip
INTEGER = (
    *(wrapped_arithmetic,) * 2, *(wide_arithmetic,) * 2, bitwise, shifted, unary_integer, *(cast_integer,) * 2,
    *(rescaled,) * 2, table, scanned, ranked, place_of,
)  # fmt: skip

# ---- floats ---------------------------------------------------------------------------------------------------------

SMOOTH: tuple[Op, ...] = (
    ops.Sigmoid(), ops.Tanh(), ops.Erf(), ops.Elu(0.7), ops.Selu(), ops.Gelu(), ops.Gelu("tanh"), ops.Silu(),
    ops.HardSigmoid(), ops.HardSwish(), ops.Softplus(), ops.Mish(), ops.LeakyRelu(0.1), ops.Sin(), ops.Cos(),
    ops.Atan(), ops.Asinh(),
)  # fmt: skip
STEEP: tuple[Op, ...] = (ops.Exp(), ops.Log(), ops.Sqrt(), ops.Reciprocal(), ops.Tan(), ops.Acos(), ops.Atanh())
PIECES: tuple[Op, ...] = (ops.Floor(), ops.Ceil(), ops.Round(), ops.Sign(), ops.Neg(), ops.Abs(), ops.Relu())


def float_arithmetic(g: Graph) -> Value:
    x = g.real(lambda v: v.peak < 1e6)
    kind = g.rng.choice([ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Mod, ops.Pow])
    if kind is ops.Pow:
        power = g.const(x.type.shape, x.type.dtype, data=g.draw.integers(-2, 4, x.type.shape))
        return g.op(ops.Pow(), g.sure(x), power, exact=False)
    y = g.like(x)
    if kind is ops.Mod:
        return g.op(ops.Mod(g.chance(0.5)), g.sure(x), g.sure(y))
    if kind in (ops.Mul, ops.Div):
        x, y = g.sure(x), g.sure(y)
    return g.op(kind(), x, y)


def smooth(g: Graph) -> Value:
    return g.op(g.rng.choice(SMOOTH), g.real(lambda v: v.peak < 1e6), exact=False)


def steep(g: Graph) -> Value:
    op = g.rng.choice(STEEP)
    return g.op(op, g.real(lambda v: v.exact), exact=isinstance(op, ops.Sqrt | ops.Reciprocal))


def pieces(g: Graph) -> Value:
    op = g.rng.choice(PIECES)
    continuous = isinstance(op, ops.Neg | ops.Abs | ops.Relu)
    return g.op(op, g.real(lambda v: v.exact or continuous))


def float_casts(g: Graph) -> Value:
    x = g.pick(lambda v: v.exact)
    if dtypes.is_float(x.type.dtype):
        return g.op(ops.Cast(g.rng.choice(["i8", "u8", "i32", "i16", "bool"])), x)
    return g.op(ops.Cast("f32"), x)


def quantized(g: Graph) -> Value:
    if g.chance(0.4):
        x = g.integer(lambda v: bits(v) <= 24)
        lo, hi = dtypes.int_range(x.type.dtype)
        return g.op(ops.Dequantize((g.rng.choice([0.5, 0.1, 0.037]),), (g.rng.choice([0, 0, lo, hi]),)), x)
    x = g.real(lambda v: v.exact)
    channels = x.type.shape[1] if x.type.rank > 1 and g.chance(0.4) else 1
    scale = tuple(g.rng.choice([0.5, 0.1, 0.037, 1.0]) for _ in range(max(channels, 1)))
    dtype = g.rng.choice(["i8", "u8", "i4", "u2", "i16", "i24"])
    op = ops.Quantize(scale, (g.zero_point(dtype),), dtype, 1, g.chance(0.3))
    return g.op(op, x)


def float_layer(g: Graph) -> Value:
    x = g.real(lambda v: v.type.rank in (3, 4) and v.type.size > 0 and v.peak < 1e4)
    kernel, strides, pads, dilations = layers.spatial_attributes(g, x.type.shape[2:])
    c = x.type.shape[1]
    match g.rng.choice(["conv", "conv", "max", "avg"]):
        case "conv":
            groups = g.rng.choice([1, c])
            out = groups * g.rng.choice([1, 2])
            operands = [x, g.const((out, c // groups, *kernel), "f32")]
            operands += [g.const((out,), "f32")] if g.chance(0.5) else []
            return g.op(ops.Conv(strides, pads, dilations, groups), *operands, exact=False)
        case "max":
            return g.op(ops.MaxPool(kernel, strides, pads, dilations), x)
    return g.op(ops.AvgPool(kernel, strides, pads, dilations, g.chance(0.5)), x, exact=False)


def float_product(g: Graph) -> Value:
    x = g.real(lambda v: v.type.rank >= 2 and v.peak < 1e4)
    k, n = x.type.shape[-1], g.rng.choice([1, 2, 3, 5])
    if g.chance(0.5):
        return g.op(ops.Linear(), x, g.const((n, k), "f32"), exact=False)
    return g.op(ops.MatMul(), x, g.const((k, n), "f32"), exact=False)


def normalized(g: Graph) -> Value:
    x = g.real(lambda v: v.type.rank >= 2 and v.type.size > 0 and v.peak < 1e3)
    if g.chance(0.6):
        kind = g.rng.choice([ops.Softmax, ops.LogSoftmax])
        return g.op(kind(g.axis(x)), x, exact=False)
    c = x.type.shape[1]
    scale, bias, mean = (g.const((c,), "f32") for _ in range(3))
    var = g.const((c,), "f32", data=g.draw.uniform(0.5, 2, c))
    return g.op(ops.BatchNorm(), x, scale, bias, mean, var, exact=False)


FLOAT = (
    *(float_arithmetic,) * 3, *(smooth,) * 2, steep, *(pieces,) * 2, float_casts, quantized, *(float_layer,) * 2,
    float_product, normalized,
)  # fmt: skip

INTEGERS = Kind((*ANY_TYPE, *INTEGER, *LAYERS))
FLOATS = Kind((*ANY_TYPE, *FLOAT, *FLOAT, cast_integer, wide_arithmetic), floats=True)
EMPTY = Kind((*ANY_TYPE, *INTEGER, *FLOAT), floats=True, zero_sized=True)
KINDS = {"integers": INTEGERS, "floats": FLOATS, "empty": EMPTY}

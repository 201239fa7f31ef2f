"""Random small integer networks, whose shapes, types and attributes meet every branch of the streaming lowering."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.ir import SSAValue

from cuvil_hw import dtypes, ops
from cuvil_hw.ir.program import Array, Builder, Program
from cuvil_hw.ops.base import Op, evaluate, infer
from cuvil_hw.ops.rounding import MODES
from cuvil_hw.types import TensorType

NARROW = ("i8", "u8", "i8", "u8", "i4", "u4", "i12", "i16", "i5", "u3", "u16", "i2", "i1", "u1")
WEIGHTS = ("i8", "i8", "i4", "i2", "i16", "u8", "i1")


@dataclass(frozen=True)
class Value:
    """A tensor of the program with what it holds for one random input, which tells sensible ranges."""

    ssa: SSAValue
    type: TensorType
    data: Array


@dataclass
class Network:
    """A program under construction."""

    builder: Builder
    rng: random.Random
    draw: np.random.Generator
    outputs: list[tuple[str, Value]] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def input(self, n: int, kind: TensorType) -> Value:
        lo, hi = dtypes.int_range(kind.dtype)
        data = self.draw.integers(lo, hi, kind.shape, np.int64, endpoint=True).astype(dtypes.to_numpy(kind.dtype))
        return Value(self.builder.input(n), kind, data)

    def const(self, shape: tuple[int, ...], dtype: str, bound: int | None = None) -> Value:
        lo, hi = dtypes.int_range(dtype)
        if bound is not None:
            lo, hi = max(lo, -bound), min(hi, bound)
        data = self.draw.integers(lo, hi, shape, np.int64, endpoint=True).astype(dtypes.to_numpy(dtype))
        return Value(self.builder.const(data, dtype), TensorType(shape, dtype), data)

    def op(self, op: Op, *values: Value) -> Value:
        (kind,) = infer(op, [v.type for v in values])
        (data,) = evaluate(op, [v.data for v in values])
        self.trace.append(f"{op} on {', '.join(str(v.type) for v in values)}")
        return Value(self.builder.op(op, *[v.ssa for v in values]), kind, data)

    def zero_point(self, dtype: str) -> int:
        lo, hi = dtypes.int_range(dtype)
        return self.rng.choice([0, 0, lo, hi, self.rng.randint(lo, hi)])

    def rescaled(self, x: Value, axis: int = 1, dtype: str = "") -> Value:
        """Into a narrow type, mostly so that some values saturate and most don't."""
        dtype = dtype or self.rng.choice(NARROW)
        lo, hi = dtypes.int_range(dtype)
        zp = self.rng.choice([0, self.rng.randint(lo, hi)])
        spread = max(int(np.abs(x.data.astype(np.int64)).max(initial=1)), 1)
        wanted = max(hi - lo, 2) / (2 * spread) * self.rng.choice([0.5, 1, 1.5])
        shift = max(1, min(30, int(np.floor(16 - np.log2(wanted)))))
        top = max(1, min((1 << 30) - 1, round(wanted * (1 << shift))))
        channels = x.type.shape[axis] if x.type.rank > axis else 0
        each = channels > 1 and self.rng.random() < 0.6
        multiplier = tuple(max(0, round(top * self.rng.uniform(0.4, 1.2))) for _ in range(channels if each else 1))
        return self.op(ops.Rescale(multiplier, (shift,), dtype, 0, zp, axis, *self.rounding(multiplier, shift)), x)

    def rounding(self, multiplier: tuple[int, ...], shift: int) -> tuple[str, tuple[int, ...], int]:
        """A mode, offsets of a few steps and guard bits."""
        offset = tuple(self.rng.randint(-2 << shift, 2 << shift) for _ in multiplier)
        guard = self.rng.choice([0, 0, self.rng.randint(0, shift - 1)])
        return self.rng.choice(["half_even", *MODES]), self.rng.choice([(0,), offset]), guard

    def clamped(self, x: Value) -> Value:
        lo, hi = sorted((self.rng.choice(x.data.ravel().tolist()), self.rng.choice(x.data.ravel().tolist())))
        return self.op(ops.Clamp(float(lo), self.rng.choice([float(hi), float("inf")])), x)

    def finished(self, name: str) -> Program:
        return self.builder.finish([(n, v.ssa) for n, v in self.outputs])


def spatial_attributes(
    net: Network, spatial: tuple[int, ...], largest_pad: bool = True
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(kernel, strides, pads, dilations) that fit, odd on purpose."""
    kernel, strides, begin, end, dilations = [], [], [], [], []
    for size in spatial:
        k = net.rng.choice([1, 2, 3, 3, 5, size])
        d = net.rng.choice([1, 1, 2])
        lo = net.rng.randint(0, min(k - 1, 2))
        hi = net.rng.randint(0, min(k - 1, 2))
        while d * (k - 1) + 1 > size + (lo + hi if largest_pad else 0):
            k, d = (k, d - 1) if d > 1 else (k - 1, 1)
        lo, hi = min(lo, d * (k - 1)), min(hi, d * (k - 1))
        kernel.append(k)
        dilations.append(d)
        strides.append(net.rng.choice([1, 1, 2, 3]))
        begin.append(lo)
        end.append(hi)
    return tuple(kernel), tuple(strides), (*begin, *end), tuple(dilations)


def conv(net: Network, x: Value) -> Value:
    _n, c, *spatial = x.type.shape
    kernel, strides, pads, dilations = spatial_attributes(net, tuple(spatial))
    groups = net.rng.choice([1, 1, c, *[g for g in range(2, c) if c % g == 0]])
    out = groups * net.rng.choice([1, 1, 2, 3]) if groups > 1 else net.rng.choice([1, 2, 3, 4, 5, 6, 8])
    dtype = net.rng.choice(WEIGHTS)
    if dtypes.int_width(x.type.dtype)[1] + dtypes.int_width(dtype)[1] > 24:  # type: ignore[index]
        dtype = "i8"  # sums of 16 by 16 bit products need more than i32
    w = net.const((out, c // groups, *kernel), dtype)
    lo, hi = dtypes.int_range(dtype)
    w_zp = net.rng.choice([(0,), (0,), (net.rng.randint(lo, hi),), tuple(net.rng.randint(lo, hi) for _ in range(out))])
    operands = [x, w] + ([net.const((out,), "i32", 5000)] if net.rng.random() < 0.7 else [])
    op = ops.Conv(strides, pads, dilations, groups, net.zero_point(x.type.dtype), w_zp, "i32")
    return net.rescaled(net.op(op, *operands))


def linear(net: Network, x: Value) -> Value:
    k = x.type.shape[-1]
    out = net.rng.choice([1, 2, 3, 5, 8])
    wide = dtypes.int_width(x.type.dtype)[1] > 8  # type: ignore[index]
    operands = [x, net.const((out, k), "i8" if wide else net.rng.choice(WEIGHTS))]
    if net.rng.random() < 0.7:
        operands.append(net.const((out,), "i32", 5000))
    y = net.op(ops.Linear(net.zero_point(x.type.dtype), (0,), "i32"), *operands)
    return net.rescaled(y, y.type.rank - 1)


def pool(net: Network, x: Value) -> Value:
    kernel, strides, pads, dilations = spatial_attributes(net, x.type.shape[2:])
    if net.rng.random() < 0.5:
        strides, dilations = kernel, tuple(1 for _ in kernel)
    if net.rng.random() < 0.5:
        return net.op(ops.MaxPool(kernel, strides, pads, dilations), x)
    return net.rescaled(net.op(ops.SumPool(kernel, strides, pads, dilations, "i32", net.zero_point(x.type.dtype)), x))


def global_pool(net: Network, x: Value) -> Value:
    spatial = x.type.shape[2:]
    ones, zeros = tuple(1 for _ in spatial), tuple(0 for _ in (*spatial, *spatial))
    return net.rescaled(net.op(ops.SumPool(spatial, spatial, zeros, ones, "i32"), x))


def flatten(net: Network, x: Value) -> Value:
    return net.op(ops.Reshape((x.type.shape[0], prod(x.type.shape[1:]))), x)


def reshape(net: Network, x: Value) -> Value:
    shape = list(x.type.shape)
    at = net.rng.randrange(1, len(shape)) if len(shape) > 1 else 0
    split = next((f for f in (2, 3, 5) if shape[at] % f == 0 and shape[at] > f), 1)
    return net.op(ops.Reshape((*shape[:at], split, shape[at] // split, *shape[at + 1 :])), x)


def transpose(net: Network, x: Value) -> Value:
    perm = list(range(1, x.type.rank))
    net.rng.shuffle(perm)
    return net.op(ops.Transpose((0, *perm)), x)


def cut(net: Network, x: Value) -> Value:
    starts, sizes, steps = [], [], []
    for size in x.type.shape:
        step = net.rng.choice([1, 1, 2, -1])
        taken = net.rng.randint(1, -(-size // abs(step)))
        room = size - 1 - (taken - 1) * abs(step)
        start = net.rng.randint(0, room)
        starts.append(start if step > 0 else size - 1 - start)
        sizes.append(taken)
        steps.append(step)
    return net.op(ops.Slice(tuple(starts), tuple(sizes), tuple(steps)), x)


def pad(net: Network, x: Value) -> Value:
    begin = [0, *[net.rng.randint(0, 1) for _ in x.type.shape[1:]]]
    end = [0, *[net.rng.randint(0, 2) for _ in x.type.shape[1:]]]
    lo, hi = dtypes.int_range(x.type.dtype)
    mode = net.rng.choice(["constant", "constant", "edge"])
    return net.op(ops.Pad((*begin, *end), float(net.rng.choice([0, lo, hi])), mode), x)


def concat(net: Network, x: Value) -> Value:
    axis = net.rng.randrange(1, x.type.rank) if x.type.rank > 1 else 0
    other = net.op(ops.Clamp(float(net.rng.choice(x.data.ravel().tolist()))), x)
    return net.op(ops.Concat(axis), *net.rng.choice([[x, other], [other, x], [x, other, x]]))


def residual(net: Network, x: Value) -> Value:
    """x + f(x) with two scales, f a convolution of the same shape or an elementwise function."""
    branch = x
    if x.type.rank >= 3 and net.rng.random() < 0.8:
        for _ in range(net.rng.choice([1, 2])):
            spatial = x.type.shape[2:]
            kernel = tuple(net.rng.choice([1, 3]) for _ in spatial)
            half = tuple(k // 2 for k in kernel)
            ones = tuple(1 for _ in spatial)
            c = branch.type.shape[1]
            w = net.const((c, c, *kernel), "i8")
            op = ops.Conv(ones, (*half, *half), ones, 1, net.zero_point(branch.type.dtype), (0,), "i32")
            branch = net.rescaled(net.op(op, branch, w))
    else:
        branch = net.rescaled(net.op(ops.Cast("i32"), branch))
    wide = [net.op(ops.Cast("i32"), v) for v in (x, branch)]
    scaled = [net.op(ops.Rescale((net.rng.randint(1 << 10, 1 << 12),), (9,), "i24"), v) for v in wide]
    total = net.op(net.rng.choice([ops.Add("i26"), ops.Sub("i26"), ops.Maximum()]), *scaled)
    return net.rescaled(total)


def product(net: Network, x: Value) -> Value:
    """x · f(x), or x times a constant per channel."""
    if net.rng.random() < 0.5:
        return net.rescaled(net.op(ops.Mul("i36"), x, net.op(ops.Minimum(), x, net.clamped(x))))
    c = x.type.shape[1] if x.type.rank > 1 else x.type.shape[0]
    shape = (c, *[1] * (x.type.rank - 2)) if x.type.rank > 1 else (c,)
    factor = net.op(ops.BroadcastTo(x.type.shape), net.const(shape, x.type.dtype))
    return net.rescaled(net.op(ops.Mul("i36"), x, factor))


def table(net: Network, x: Value) -> Value:
    if dtypes.int_width(x.type.dtype)[1] > 8:  # type: ignore[index]
        x = net.rescaled(net.op(ops.Cast("i32"), x), dtype="i8")
    lo, hi = dtypes.int_range(x.type.dtype)
    out = net.rng.choice(NARROW)
    low, high = dtypes.int_range(out)
    values = [low, high, *[net.rng.randint(low, high) for _ in range(hi - lo - 1)]]  # never the same for all
    net.rng.shuffle(values)
    return net.op(ops.Lut(tuple(values), out), x)


def chosen(net: Network, x: Value) -> Value:
    """Elementwise choice between x and something else."""
    other = net.clamped(x)
    return net.op(ops.Where(), net.op(net.rng.choice([ops.Less(), ops.GreaterEqual()]), x, other), other, x)


def reduced(net: Network, x: Value) -> Value:
    axes = tuple(sorted(net.rng.sample(range(1, x.type.rank), net.rng.randint(1, x.type.rank - 1))))
    keep = net.rng.random() < 0.5
    op = net.rng.choice([ops.ReduceMax(axes, keep), ops.ReduceMin(axes, keep), ops.ReduceSum(axes, keep, "i32")])
    y = net.op(op, x)
    return net.rescaled(y) if y.type.dtype == "i32" else y


def position(net: Network, x: Value) -> Value:
    axis = net.rng.randrange(1, x.type.rank)
    kind = net.rng.choice([ops.ArgMax, ops.ArgMin])
    y = net.op(kind(axis, net.rng.random() < 0.5, net.rng.random() < 0.3), x)
    return net.op(ops.Cast(net.rng.choice(["i16", "i32"])), y) if net.rng.random() < 0.5 else y


def verdict(net: Network, x: Value) -> Value:
    """A comparison with itself changed: a bool for each element."""
    return net.op(net.rng.choice([ops.Less(), ops.Equal(), ops.GreaterEqual()]), x, net.clamped(x))


ANY: tuple[Callable[[Network, Value], Value], ...] = (
    reshape, transpose, cut, pad, concat, residual, product, table, chosen, Network.clamped, linear, flatten,
)  # fmt: skip
SPATIAL = (conv, conv, conv, conv, pool, pool, residual, global_pool)
LAST = (position, reduced, verdict)


def steps(net: Network, x: Value) -> tuple[Callable[[Network, Value], Value], ...]:
    rank = x.type.rank
    spatial = SPATIAL * 2 if 3 <= rank <= 4 and prod(x.type.shape[2:]) > 1 else ()
    return (*ANY, *spatial, *((linear,) * 3 if rank == 2 else ()))


def chain(net: Network, x: Value, length: int) -> list[Value]:
    """`length` random layers after one another; every intermediate value."""
    values = [x]
    for _ in range(length):
        y = net.rng.choice(steps(net, values[-1]))(net, values[-1])
        if 0 < y.type.size <= 2500 and y.type.rank <= 5:
            values.append(y)
    return values


def network(seed: int, chains: int = 4) -> tuple[Program, list[str]]:
    """A program of several independent chains (one compilation for all), and what was put into it."""
    rng = random.Random(seed)
    kinds = []
    for _ in range(chains):
        rank = rng.choice([2, 3, 4, 4, 4])
        c = rng.choice([1, 2, 3, 4, 6, 8])
        spatial = [rng.randint(2, 9) for _ in range(rank - 2)]
        kinds.append(TensorType((1, c if spatial else rng.choice([1, 5, 12, 16]), *spatial), rng.choice(NARROW)))
    builder = Builder([(f"x{n}", kind) for n, kind in enumerate(kinds)], f"random{seed}")
    net = Network(builder, rng, np.random.default_rng(seed))
    for n, kind in enumerate(kinds):
        net.trace.append(f"chain {n}: {kind}")
        values = chain(net, net.input(n, kind), rng.randint(1, 4))
        last = rng.choice(LAST)(net, values[-1]) if values[-1].type.rank > 1 and rng.random() < 0.3 else values[-1]
        net.outputs.append((f"y{n}", last))
        if rng.random() < 0.4:  # an output that is used inside too, or an input that is returned as it is
            net.outputs.append((f"also{n}", rng.choice(values)))
    if rng.random() < 0.3:
        net.outputs.append(("fixed", net.const((1, 3, 2), "i8")))
    return net.finished(f"random{seed}"), net.trace

"""Pools: the maximum, the sum or the mean of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as cartesian
from math import prod
from typing import ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import (
    Expr,
    Tensor,
    all_of,
    binary,
    cast,
    const,
    inside,
    lookup,
    reduce,
    select,
)
from cuvil_hw.ops.base import Array
from cuvil_hw.ops.interval import Interval, window_bounds
from cuvil_hw.ops.nn import WindowOp, checked, positions, taps, untouched, windows
from cuvil_hw.types import TensorType


def lowest(dtype: str) -> float | int:
    """The neutral element of a maximum."""
    return -np.inf if dtypes.is_float(dtype) else dtypes.int_range(dtype)[0]


@dataclass(frozen=True)
class MaxPool(WindowOp):
    """Largest value under each window; padding never wins, NaN wins. x (N, C, *spatial). Windows must touch x."""

    mnemonic: ClassVar[str] = "max_pool"
    monotone = "first"
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.want(x.rank == len(self.kernel) + 2, f"kernel {self.kernel} on {x}")
        out = self.extents(x.shape[2:], self.kernel, self.strides, self.pads, self.dilations)
        bad = untouched(x.shape[2:], self.kernel, self.strides, self.pads, self.dilations) if any(self.pads) else None
        self.want(bad is None, f"a window covers only padding along spatial dimension {bad}; make the pads smaller")
        return TensorType((*x.shape[:2], *out), x.dtype)

    def axis_after(self, axis: int, x: TensorType) -> int | None:
        return axis if axis < 2 else None

    def evaluate(self, x: Array) -> Array:
        view = windows(x, self.kernel, self.strides, self.pads, self.dilations, lowest(dtypes.from_numpy(x.dtype)))
        return np.asarray(view.max(axis=tuple(range(2 + len(self.kernel), view.ndim))))

    def compute(self, x: Tensor) -> Tensor:
        ks = taps(self.kernel)
        low = const(lowest(x.dtype), x.dtype)

        def at(n: Expr, c: Expr, *p: Expr) -> Expr:
            where = positions(p, ks, self.strides, self.pads, self.dilations)
            valid = all_of([inside(q, size) for q, size in zip(where, x.shape[2:], strict=True)])
            return reduce("max", ks, select(valid, x[(n, c, *where)], low), low)

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class SumPool(WindowOp):
    """Integer window sums Σ (x - x_zp) in `acc`; padding adds nothing. With `rescale` by 1/count: average pooling."""

    mnemonic: ClassVar[str] = "sum_pool"
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    acc: str
    x_zp: int = 0

    def infer(self, x: TensorType) -> TensorType:
        self.want(dtypes.is_int(x.dtype) and dtypes.is_int(self.acc), f"sums integers, not {x.dtype}")
        self.want(x.rank == len(self.kernel) + 2, f"kernel {self.kernel} on {x}")
        out = self.extents(x.shape[2:], self.kernel, self.strides, self.pads, self.dilations)
        return TensorType((*x.shape[:2], *out), self.acc)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval:
        return window_bounds(ranges[0], self.x_zp, prod(self.kernel))

    def evaluate(self, x: Array) -> Array:
        view = windows(x.astype(np.int64) - self.x_zp, self.kernel, self.strides, self.pads, self.dilations, 0)
        return checked(self, view.sum(axis=tuple(range(2 + len(self.kernel), view.ndim))), self.acc)

    def compute(self, x: Tensor) -> Tensor:
        ks = taps(self.kernel)
        zero = const(0, self.acc)

        def at(n: Expr, c: Expr, *p: Expr) -> Expr:
            where = positions(p, ks, self.strides, self.pads, self.dilations)
            valid = all_of([inside(q, size) for q, size in zip(where, x.shape[2:], strict=True)])
            return reduce(
                "sum", ks, select(valid, cast(x[(n, c, *where)], self.acc) - const(self.x_zp, self.acc), zero), zero
            )

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class AvgPool(WindowOp):
    """Mean under each window, floats. The divisor counts input cells, plus padding cells when `count_include_pad`, but
    never the last `extra` cells of each end pad (they exist only because of ceil_mode); `divisor` > 0 overrides it."""

    mnemonic: ClassVar[str] = "avg_pool"
    integer_form = "sum"
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    count_include_pad: bool = False
    extra: tuple[int, ...] = ()
    divisor: int = 0

    def infer(self, x: TensorType) -> TensorType:
        self.want(dtypes.is_float(x.dtype), f"averages floats, not {x.dtype}")
        self.want(x.rank == len(self.kernel) + 2, f"kernel {self.kernel} on {x}")
        out = self.extents(x.shape[2:], self.kernel, self.strides, self.pads, self.dilations)
        counted = self.count_include_pad or self.divisor or not any(self.pads)
        bad = None if counted else untouched(x.shape[2:], self.kernel, self.strides, self.pads, self.dilations)
        self.want(bad is None, f"a window covers only padding along spatial dimension {bad}; make the pads smaller")
        return TensorType((*x.shape[:2], *out), x.dtype)

    def counts(self, spatial: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Divisor along each spatial dimension, by output position; the divisor of a window is their product."""
        n = len(self.kernel)
        result = []
        for d, size in enumerate(spatial):
            k, s, dil, lo, hi = self.kernel[d], self.strides[d], self.dilations[d], self.pads[d], self.pads[n + d]
            last = size + hi - (self.extra[d] if self.extra else 0) if self.count_include_pad else size
            first = -lo if self.count_include_pad else 0
            starts = range(-lo, size + hi - dil * (k - 1), s)
            # Taps from the first that isn't before `first`, up to the first that isn't before `last`.
            result.append(tuple(max(0, min(k, -((p - last) // dil)) - max(0, -((p - first) // dil))) for p in starts))
        return tuple(result)

    def uniform_divisor(self, spatial: Sequence[int]) -> int | None:
        """The divisor when it is the same for every window, else None."""
        if self.divisor:
            return self.divisor
        products = {prod(c) for c in cartesian(*[set(c) for c in self.counts(spatial)])}
        return products.pop() if len(products) == 1 else None

    def evaluate(self, x: Array) -> Array:
        n = len(self.kernel)
        view = windows(x, self.kernel, self.strides, self.pads, self.dilations, 0)
        total = view.sum(axis=tuple(range(2 + n, view.ndim)), dtype=np.float32 if x.dtype == np.float16 else None)
        if self.divisor:
            return np.asarray(total / total.dtype.type(self.divisor), x.dtype)
        count = np.ones((), total.dtype)
        for d, c in enumerate(self.counts(x.shape[2:])):
            count = count * np.asarray(c, total.dtype).reshape([-1 if e == d else 1 for e in range(n)])
        return np.asarray(total / count, x.dtype)

    def compute(self, x: Tensor) -> Tensor:
        ks, counts = taps(self.kernel), () if self.divisor else self.counts(x.shape[2:])
        acc = "f32" if x.dtype == "f16" else x.dtype

        def at(n: Expr, c: Expr, *p: Expr) -> Expr:
            where = positions(p, ks, self.strides, self.pads, self.dilations)
            valid = all_of([inside(q, size) for q, size in zip(where, x.shape[2:], strict=True)])
            total = reduce("sum", ks, select(valid, cast(x[(n, c, *where)], acc), const(0, acc)), const(0, acc))
            divisor: Expr = const(float(self.divisor or 1), acc)
            if not self.divisor:
                for q, table in zip(p, counts, strict=True):
                    divisor = binary("mul", divisor, lookup(tuple(float(t) for t in table), q, acc))
            return cast(binary("div", total, divisor), x.dtype)

        return Tensor(self.infer(x.type), at)

"""Transposed convolution, and the positions of the largest elements under windows."""

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
    Reduce,
    State,
    Tensor,
    all_of,
    binary,
    cast,
    const,
    inside,
    reduce,
    reduction,
    select,
    unary,
)
from cuvil_hw.ops.base import Array, Op
from cuvil_hw.ops.elementwise import check_dtype, work_dtype, working
from cuvil_hw.ops.nn import WindowOp, positions, taps
from cuvil_hw.ops.pool import MaxPool
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class ConvTranspose(Op):
    """y[n, o, p] = b[o] + Σ x[n, c, q] · w[c, o, k] over all q, k with q·s + k·d = p + pad: the gradient of Conv.

    x (N, C, *spatial), w (C, O/groups, *kernel), b (O,) optional; floats. `pads` (begin…, end…) cut the result,
    `output_padding` adds rows to its end.
    """

    mnemonic: ClassVar[str] = "conv_transpose"
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int = 1

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        n = len(self.strides)
        self.want(x.rank == w.rank == n + 2, f"x {x} and w {w} with {n} strides")
        self.want(
            len(self.dilations) == len(self.output_padding) == n and len(self.pads) == 2 * n,
            f"attributes don't fit {n} spatial dimensions",
        )
        self.want(min((*self.strides, *self.dilations, *w.shape[2:])) >= 1, "strides, dilations, kernel: ≥ 1")
        self.want(min((*self.pads, *self.output_padding)) >= 0, "pads and output padding can't be negative")
        check_dtype(self, "float", x.dtype)
        self.want(w.dtype == x.dtype, f"x is {x.dtype}, w is {w.dtype}")
        self.want(self.groups >= 1 and x.shape[1] % self.groups == 0, f"{x.shape[1]} channels in {self.groups} groups")
        self.want(w.shape[0] == x.shape[1], f"x has {x.shape[1]} channels, w wants {w.shape[0]}")
        out = w.shape[1] * self.groups
        self.want(b is None or b == TensorType((out,), x.dtype), f"bias {b} must have {out} values of {x.dtype}")
        extents = tuple(
            s * (size - 1) + extra + d * (k - 1) + 1 - lo - hi
            for size, k, s, d, extra, lo, hi in zip(
                x.shape[2:], w.shape[2:], self.strides, self.dilations, self.output_padding, self.pads[:n],
                self.pads[n:], strict=True,
            )
        )  # fmt: skip
        fits = all(e > 0 for e in x.shape[2:]) and all(e >= 0 for e in extents)
        self.want(fits, f"pads {self.pads} cut more than there is of {x}")
        return TensorType((x.shape[0], out, *extents), x.dtype)

    def count_products(self, types: Sequence[TensorType], size: int) -> int:
        return types[0].size * prod(types[1].shape[1:])

    def evaluate(self, x: Array, w: Array, b: Array | None = None) -> Array:
        kind = TensorType(x.shape, dtypes.from_numpy(x.dtype))
        shape = self.infer(kind, kind.with_shape(w.shape), None if b is None else kind.with_shape(b.shape)).shape
        n, (rows, out), kernel = len(self.strides), shape[:2], w.shape[2:]
        g, per = self.groups, w.shape[1]
        xs = working(x).reshape(rows, g, x.shape[1] // g, *x.shape[2:])
        ws = working(w).reshape(g, x.shape[1] // g, per, *kernel)
        full = [e + lo + hi for e, lo, hi in zip(shape[2:], self.pads[:n], self.pads[n:], strict=True)]
        y = np.zeros((rows, out, *full), xs.dtype)
        for k in cartesian(*(range(e) for e in kernel)):
            term = np.einsum("ngc...,gco->ngo...", xs, ws[(slice(None),) * 3 + k]).reshape(rows, out, *x.shape[2:])
            at = [
                slice(t * d, t * d + s * (size - 1) + 1, s)
                for t, d, s, size in zip(k, self.dilations, self.strides, x.shape[2:], strict=True)
            ]
            y[(slice(None), slice(None), *at)] += term
        cut = [slice(lo, lo + e) for lo, e in zip(self.pads[:n], shape[2:], strict=True)]
        y = y[(slice(None), slice(None), *cut)]
        y = y if b is None else y + working(b).reshape(-1, *[1] * n)
        return np.asarray(y, x.dtype)

    def compute(self, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        kind = self.infer(x.type, w.type, b.type if b else None)
        per_in, per_out, acc = x.shape[1] // self.groups, w.shape[1], work_dtype(kind.dtype)
        c, ks = reduction("c", per_in), taps(w.shape[2:])

        def at(n: Expr, o: Expr, *p: Expr) -> Expr:
            channel = (o // max(per_out, 1)) * per_in + c
            where, fits = [], []
            for q, k, s, d, lo, size, taken in zip(
                p, ks, self.strides, self.dilations, self.pads, x.shape[2:], w.shape[2:], strict=False
            ):
                shift = -(-d * (taken - 1) // s)  # keeps the dividend natural
                ahead = q + (lo + s * shift) - k * d
                where.append(ahead // s - shift)
                if s > 1:
                    fits.append(binary("eq", ahead % s, 0))
                fits.append(inside(where[-1], size))
            term = cast(x[(n, channel, *where)], acc) * cast(w[(channel, o % max(per_out, 1), *ks)], acc)
            term = select(all_of(fits), term, const(0, acc))
            return cast(reduce("sum", (*ks, c), term, cast(b[o], acc) if b else const(0, acc)), kind.dtype)

        return Tensor(kind, at)


@dataclass(frozen=True)
class MaxPoolPositions(WindowOp):
    """Where in x (flat, row-major, over all dimensions; i64) MaxPool finds its result: the first of equals, or the
    first NaN. `column_major`: positions count the spatial dimensions with the first one fastest."""

    mnemonic: ClassVar[str] = "max_pool_positions"
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    column_major: bool = False

    def infer(self, x: TensorType) -> TensorType:
        pool = MaxPool(self.kernel, self.strides, self.pads, self.dilations)
        return TensorType(pool.infer(x).shape, "i64")

    def steps(self, shape: tuple[int, ...]) -> list[int]:
        """Distance in flat positions between neighbours, by dimension."""
        spatial = shape[2:]
        if self.column_major:
            inner = [prod(spatial[:d]) for d in range(len(spatial))]
        else:
            inner = [prod(spatial[d + 1 :]) for d in range(len(spatial))]
        return [shape[1] * prod(spatial), prod(spatial), *inner]

    def evaluate(self, x: Array) -> Array:
        kind = TensorType(x.shape, dtypes.from_numpy(x.dtype))
        n, steps = len(self.kernel), self.steps(x.shape)
        out = self.infer(kind).shape
        best = np.zeros(out, x.dtype)
        where = np.full(out, -1, np.int64)
        grid = np.ogrid[tuple(slice(e) for e in out)]
        for k in cartesian(*(range(e) for e in self.kernel)):
            at = [g * s + t * d - p for g, t, s, d, p in zip(
                grid[2:], k, self.strides, self.dilations, self.pads, strict=False)]  # fmt: skip
            valid = np.ones(out, np.bool_)
            for q, size in zip(at, x.shape[2:], strict=True):
                valid = valid & (q >= 0) & (q < size)
            clipped = [np.clip(q, 0, size - 1) for q, size in zip(at, x.shape[2:], strict=True)]
            element = np.broadcast_to(x[(grid[0], grid[1], *clipped)], out)
            flat = sum((g * s for g, s in zip((*grid[:2], *clipped), steps, strict=True)), np.zeros(out, np.int64))
            nan = (element != element) & ~(best != best)
            take = valid & ((where < 0) | (element > best) | nan)
            best, where = np.where(take, element, best), np.where(take, flat, where)
        assert n == x.ndim - 2
        return where

    def compute(self, x: Tensor) -> Tensor:
        ks, steps = taps(self.kernel), self.steps(x.shape)

        def at(n: Expr, c: Expr, *p: Expr) -> Expr:
            where = positions(p, ks, self.strides, self.pads, self.dilations)
            valid = all_of([inside(q, size) for q, size in zip(where, x.shape[2:], strict=True)])
            best, found = State(x.dtype, 0), State("i64", 1)
            element = select(valid, x[(n, c, *where)], best)
            take = binary("or", binary("lt", found, 0), binary("gt", element, best))
            if dtypes.is_float(x.dtype):
                nan = binary("and", unary("isnan", element), unary("not", unary("isnan", best)))
                take = binary("or", take, nan)
            take = binary("and", valid, take)
            flat: Expr = const(0, "i64")
            for q, step in zip((n, c, *where), steps, strict=True):
                flat = flat + cast(q, "i64") * const(step, "i64")
            update = (select(take, element, best), select(take, flat, found))
            return Reduce("i64", "argmax", ks, (const(0, x.dtype), const(-1, "i64")), update, 1)

        return Tensor(self.infer(x.type), at)

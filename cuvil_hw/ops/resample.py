"""Interpolation: along one axis with given weights (resize), and at given places (grid sample)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as cartesian
from typing import Any, ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Expr, Iter, Tensor, binary, cast, const, index, reduce, reduction, select, unary
from cuvil_hw.ops.base import Array, Op
from cuvil_hw.ops.elementwise import check_dtype, work_dtype, working
from cuvil_hw.ops.index import nearest, positive
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class Resample(Op):
    """y[…, o, …] = Σ_t weights[o, t] · x[…, indices[o, t], …] along `axis`; taps of weight 0 are skipped, so 0 · inf
    gives no NaN.

    x floats; indices (O, T) integers inside the axis; weights (O, T) in f32, or f64 for an f64 x.
    """

    mnemonic: ClassVar[str] = "resample"
    axis: int

    def infer(self, x: TensorType, indices: TensorType, weights: TensorType) -> TensorType:
        check_dtype(self, "float", x.dtype)
        self.want(0 <= self.axis < x.rank and x.shape[self.axis] > 0, f"axis {self.axis} of {x}")
        self.want(dtypes.is_int(indices.dtype) and indices.rank == 2, f"indices are {indices}, must be integers (O, T)")
        want = TensorType(indices.shape, work_dtype(x.dtype))
        self.want(weights == want, f"weights are {weights}, must be {want}")
        return x.with_shape((*x.shape[: self.axis], indices.shape[0], *x.shape[self.axis + 1 :]))

    def evaluate(self, x: Array, indices: Array, weights: Array) -> Array:
        at = positive(indices, x.shape[self.axis], self)
        rows = np.moveaxis(working(x), self.axis, -1)[..., at]
        terms = np.where(weights == 0, weights.dtype.type(0), rows * weights)
        return np.asarray(np.moveaxis(terms.sum(axis=-1, dtype=weights.dtype), -1, self.axis), x.dtype)

    def compute(self, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        t = reduction("t", indices.shape[1])
        work = work_dtype(x.dtype)

        def at(*i: Expr) -> Expr:
            o = i[self.axis]
            p = nearest(indices[o, t], x.shape[self.axis])
            weight, zero = weights[o, t], const(0, work)
            term = weight * cast(x[(*i[: self.axis], p, *i[self.axis + 1 :])], work)
            return cast(reduce("sum", (t,), select(binary("eq", weight, 0), zero, term), zero), x.dtype)

        return Tensor(self.infer(x.type, indices.type, weights.type), at)


TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
SHARPNESS = -0.75  # of Keys' cubic convolution kernel, as ONNX and PyTorch have it


@dataclass(frozen=True)
class GridSample(Op):
    """Samples x (N, C, *spatial) at the positions grid (N, *out, r).

    r is the number of spatial dimensions; coordinates are in reverse order of these (the last dimension first). -1 and
    1 are the ends of each dimension: the borders of the outermost pixels, or their centres if `align_corners`.

    `mode`: "nearest" (ties to even), "linear" or "cubic" (separable, Keys with a = -3/4).

    `padding`, for positions outside: "zeros"; "border": moved to the nearest pixel; "reflection": mirrored at the ends;
    "edge": the position stays, and each tap reads the nearest pixel. "border" and "reflection" move the position before
    the taps are taken. A nearest sample at NaN reads position 0, or gives 0 with "zeros".
    """

    mnemonic: ClassVar[str] = "grid_sample"
    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False

    def infer(self, x: TensorType, grid: TensorType) -> TensorType:
        check_dtype(self, "float", x.dtype)
        check_dtype(self, "float", grid.dtype)
        self.want(self.mode in TAPS, f"mode is one of {', '.join(TAPS)}, not {self.mode!r}")
        self.want(self.padding in ("zeros", "border", "edge", "reflection"), f"padding {self.padding!r}")
        n = x.rank - 2
        self.want(n >= 1 and grid.rank == n + 2 and grid.shape[-1] == n, f"grid {grid} doesn't fit x {x}")
        self.want(grid.shape[0] == x.shape[0], f"batches of x {x} and grid {grid} differ")
        self.want(all(e > 0 for e in x.shape[2:]), f"{x} has nothing to sample")
        return x.with_shape((*x.shape[:2], *grid.shape[1:-1]))

    def ends(self, size: int) -> tuple[float, float]:
        """The borders at which coordinates are mirrored."""
        return (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)

    def evaluate(self, x: Array, grid: Array) -> Array:
        work = np.float64 if x.dtype == np.float64 else np.float32
        n, out = x.ndim - 2, grid.shape[1:-1]
        indices: list[list[Array]] = []
        weights: list[list[Array]] = []
        dropped: list[list[Array]] = []
        for d, size in enumerate(x.shape[2:]):
            g: Array = grid[..., n - 1 - d].astype(work)
            c = (g + 1) / 2 * (size - 1) if self.align_corners else ((g + 1) * size - 1) / 2
            c = np.asarray(np.rint(c) if self.mode == "nearest" else c)
            c = self._bring_inside(c, size, work)
            first = np.floor(c)
            factors = self._factors(c - first)
            indices.append([])
            weights.append([])
            dropped.append([])
            for tap, factor in enumerate(factors):
                p = first + work(tap - (1 if self.mode == "cubic" else 0))
                if self.padding == "reflection":
                    p = self._bring_inside(p, size, work)
                outside = ~((p >= 0) & (p <= size - 1))
                p = np.clip(np.where(np.isnan(p), 0, np.trunc(p)), 0, size - 1).astype(np.int64)
                drop = outside if self.padding == "zeros" else np.zeros_like(outside)
                indices[-1].append(p)
                weights[-1].append(factor)
                dropped[-1].append(drop)
        y = np.zeros((*x.shape[:2], *out), work)
        batch = np.arange(x.shape[0]).reshape(-1, *[1] * n)
        moved = np.moveaxis(working(x), 1, -1)
        for taps in cartesian(range(TAPS[self.mode]), repeat=n):
            value = np.moveaxis(moved[(batch, *(indices[d][t] for d, t in enumerate(taps)))], -1, 1)
            weight = np.ones((x.shape[0], *out), work)
            drop = np.zeros(weight.shape, np.bool_)
            for d, t in enumerate(taps):
                weight, drop = weight * weights[d][t], drop | dropped[d][t]
            value = np.where(drop[:, None], work(0), value)
            y += value * weight[:, None]
        return np.asarray(y, x.dtype)

    def _bring_inside(self, c: Array, size: int, work: Any) -> Array:
        if self.padding in ("zeros", "edge"):
            return c
        lo, hi = (work(v) for v in self.ends(size))
        if self.padding == "border":
            return np.where((c < lo) | (c > hi), np.clip(c, work(0), work(size - 1)), c)
        span = hi - lo
        if span == 0:
            return np.zeros_like(c)
        away = np.where(c < lo, lo - c, c - hi)
        turns = np.floor(away / span)
        rest = away - turns * span
        even = turns - 2 * np.floor(turns / 2) == 0
        below, above = np.where(even, lo + rest, hi - rest), np.where(even, hi - rest, lo + rest)
        return np.where(c < lo, below, np.where(c > hi, above, c))

    def _factors(self, f: Array) -> list[Array]:
        if self.mode == "nearest":
            return [np.ones_like(f)]
        if self.mode == "linear":
            return [1 - f, f]
        a = f.dtype.type(SHARPNESS)

        def far(v: Array) -> Array:
            return np.asarray(((a * v - 5 * a) * v + 8 * a) * v - 4 * a)

        def near(v: Array) -> Array:
            return np.asarray(((a + 2) * v - (a + 3)) * v * v + 1)

        return [far(f + 1), near(f), near(1 - f), far(2 - f)]

    def compute(self, x: Tensor, grid: Tensor) -> Tensor:
        n, count = x.type.rank - 2, TAPS[self.mode]
        ts = [reduction(f"t{d}", count) for d in range(n)]
        work = work_dtype(x.dtype)

        def at(b: Expr, c: Expr, *o: Expr) -> Expr:
            where: list[Expr] = []
            weight: Expr = const(1, work)
            valid: Expr = const(True, "bool")
            for d, size in enumerate(x.shape[2:]):
                g = cast(grid[(b, *o, index(n - 1 - d))], work)
                p, factor, ok = self._tap(g, size, ts[d], work)
                where.append(p)
                weight = weight * factor
                valid = ok if d == 0 else binary("and", valid, ok)
            pixel = cast(x[(b, c, *where)], work)
            if self.padding == "zeros":
                pixel = select(valid, pixel, const(0, work))
            return cast(reduce("sum", ts, pixel * weight, const(0, work)), x.dtype)

        return Tensor(self.infer(x.type, grid.type), at)

    def _tap(self, g: Expr, size: int, t: Iter, work: str) -> tuple[Expr, Expr, Expr]:
        """(index, weight, whether it is inside) of tap `t` along one dimension."""
        one = binary("add", g, 1.0)
        if self.align_corners:
            c = binary("mul", binary("div", one, 2.0), size - 1.0)
        else:
            c = binary("div", binary("sub", binary("mul", one, float(size)), 1.0), 2.0)
        c = unary("round", c) if self.mode == "nearest" else c
        c = self._mirrored(c, size)
        first = unary("floor", c)
        tap = cast(cast(t, "i64"), work)
        p = first + (binary("sub", tap, 1.0) if self.mode == "cubic" else tap)
        if self.padding == "reflection":
            p = self._mirrored(p, size)
        ok = binary("and", binary("ge", p, 0.0), binary("le", p, size - 1.0))
        whole = cast(p, "i64")
        at = cast(binary("min", binary("max", whole, 0), size - 1), "index")
        return at, self._factor(c - first, t, work), ok

    def _mirrored(self, c: Expr, size: int) -> Expr:
        if self.padding in ("zeros", "edge"):
            return c
        lo, hi = self.ends(size)
        if self.padding == "border":
            clipped = binary("min", binary("max", c, 0.0), size - 1.0)
            return select(binary("or", binary("lt", c, lo), binary("gt", c, hi)), clipped, c)
        span = hi - lo
        if span == 0:
            return const(0, c.dtype)
        low, high = const(lo, c.dtype), const(hi, c.dtype)
        below, above = binary("lt", c, low), binary("gt", c, high)
        away = select(below, low - c, c - high)
        turns = unary("floor", binary("div", away, span))
        rest = away - binary("mul", turns, span)
        even = binary("eq", turns - binary("mul", unary("floor", binary("div", turns, 2.0)), 2.0), 0.0)
        inner = select(binary("eq", below, even), low + rest, high - rest)
        return select(binary("or", below, above), inner, c)

    def _factor(self, f: Expr, t: Iter, work: str) -> Expr:
        if self.mode == "nearest":
            return const(1, work)
        one = const(1, work)
        if self.mode == "linear":
            return select(binary("eq", t, 0), one - f, f)
        a = SHARPNESS

        def far(v: Expr) -> Expr:
            inner = binary("sub", binary("mul", v, a), 5 * a)
            return binary("sub", binary("add", inner * v, 8 * a) * v, 4 * a)

        def near(v: Expr) -> Expr:
            return binary("add", binary("sub", binary("mul", v, a + 2), a + 3) * v * v, 1.0)

        ends = select(binary("eq", t, 0), far(binary("add", f, 1.0)), far(const(2, work) - f))
        middle = select(binary("eq", t, 1), near(f), near(one - f))
        return select(_is_end(t), ends, middle)


def _is_end(t: Iter) -> Expr:
    return binary("or", binary("eq", t, 0), binary("eq", t, 3))

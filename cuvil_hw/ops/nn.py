"""Convolution and dense layers, channels first, any number of spatial dimensions, and what all windows share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import (
    Expr,
    Iter,
    Tensor,
    all_of,
    cast,
    const,
    inside,
    lookup,
    reduce,
    reduction,
    select,
)
from cuvil_hw.ops.base import Array, Op, container
from cuvil_hw.ops.elementwise import work_dtype, working
from cuvil_hw.types import TensorType


def contract(a: Array, b: Array) -> Array:
    """Matrix product. i64 is exact: computed in f64 (fast) if that holds every possible sum (|sums| < 2^53), else in
    integers."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.asarray(a @ b)
    if largest(a) * largest(b) * a.shape[-1] < 1 << 53:
        return np.asarray(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    return np.asarray(a @ b)


def largest(a: Array) -> int:
    """Largest magnitude in an integer array."""
    return max(abs(int(a.min())), abs(int(a.max()))) if a.size else 0


def checked(op: Op, acc: Array, dtype: str) -> Array:
    """Exact integers in the accumulator's dtype; raises if a value doesn't fit, which means that the width was derived
    wrongly."""
    if dtypes.is_int(dtype) and acc.size:
        lo, hi = dtypes.int_range(dtype)
        if acc.min() < lo or acc.max() > hi:
            raise OverflowError(f"{op.mnemonic}: accumulator {dtype} overflows: [{acc.min()}, {acc.max()}]")
    return container(acc, dtype)


@dataclass(frozen=True)
class WindowOp(Op):
    """Shared by ops that slide a window: `pads` is (begin…, end…) as in ONNX."""

    def extents(
        self,
        spatial: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
    ) -> tuple[int, ...]:
        n = len(spatial)
        self.want(
            len(kernel) == len(strides) == len(dilations) == n and len(pads) == 2 * n,
            f"attributes don't fit {n} spatial dims",
        )
        self.want(
            min((*strides, *dilations, *kernel), default=1) >= 1, "kernel, strides and dilations must be positive"
        )
        self.want(min(pads, default=0) >= 0, "negative pads: use slice")
        out = []
        for size, k, s, d, lo, hi in zip(spatial, kernel, strides, dilations, pads[:n], pads[n:], strict=True):
            span = size + lo + hi - d * (k - 1) - 1
            self.want(span >= 0, f"window {k} (dilation {d}) is larger than the padded extent {size + lo + hi}")
            out.append(span // s + 1)
        return tuple(out)


def windows(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    fill: float | int,
) -> Array:
    """All windows of x (N, C, *spatial) as a view (N, C, *out, *kernel) of the padded array."""
    n = len(kernel)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:n], pads[n:], strict=True)], constant_values=fill)
    span = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(padded, span, axis=tuple(range(2, 2 + n)))
    step = [slice(None)] * 2 + [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in dilations]
    return np.asarray(view[tuple(step)])


def untouched(
    spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> int | None:
    """A spatial dimension in which some window covers only padding; None if every window covers some input."""
    for d, (size, k, s, dil, lo) in enumerate(zip(spatial, kernel, strides, dilations, pads, strict=False)):
        last = size + pads[len(spatial) + d] - dil * (k - 1)
        at = np.arange(-lo, last, s)[:, None] + dil * np.arange(k)
        if not ((at >= 0) & (at < size)).any(axis=1).all():
            return d
    return None


def taps(kernel: Sequence[int]) -> tuple[Iter, ...]:
    return tuple(reduction(f"k{d}", k) for d, k in enumerate(kernel))


def positions(
    out: Sequence[Expr], k: Sequence[Expr], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> list[Expr]:
    """Input positions under tap `k` of the window at `out`."""
    return [o * s + t * d - p for o, t, s, p, d in zip(out, k, strides, pads, dilations, strict=False)]


@dataclass(frozen=True)
class Conv(WindowOp):
    """y[n,o,p] = b[o] + Σ_{c,k} (x[n, g·C/G + c, p·s + k·d - pad] - x_zp) · (w[o,c,k] - w_zp[o]).

    x (N, C, *spatial), w (O, C/groups, *kernel), b (O,) optional, of the accumulator's dtype. Padding adds nothing (it
    holds x_zp). Floats: `acc` is empty and the result has x's dtype. Integers: `acc` names the accumulator, wide
    enough by interval analysis.
    """

    mnemonic: ClassVar[str] = "conv"
    integer_form, layer_axis = "layer", 1
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1
    x_zp: int = 0
    w_zp: tuple[int, ...] = (0,)
    acc: str = ""

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        self.want(x.rank >= 3 and w.rank == x.rank, f"x {x} and w {w} need the same rank ≥ 3")
        self.want(
            self.groups >= 1 and x.shape[1] == w.shape[1] * self.groups,
            f"x has {x.shape[1]} channels, w wants {w.shape[1] * self.groups}",
        )
        self.want(w.shape[0] % self.groups == 0, f"{w.shape[0]} output channels in {self.groups} groups")
        dtype = result_dtype(self, x, w, b, self.acc)
        self.want(b is None or b.shape == w.shape[:1], "bias must have one value per output channel")
        self.want(len(self.w_zp) in (1, w.shape[0]), f"{len(self.w_zp)} weight zero points for {w.shape[0]} channels")
        out = self.extents(x.shape[2:], w.shape[2:], self.strides, self.pads, self.dilations)
        return TensorType((x.shape[0], w.shape[0], *out), dtype)

    def count_products(self, types: Sequence[TensorType], size: int) -> int:
        return size * prod(types[1].shape[1:])

    def evaluate(self, x: Array, w: Array, b: Array | None = None) -> Array:
        dtype = x.dtype
        if self.acc:
            x = x.astype(np.int64) - self.x_zp
            w = w.astype(np.int64) - np.asarray(self.w_zp, np.int64).reshape(-1, *[1] * (w.ndim - 1))
        x, w = working(x), working(w)
        kernel, (o, per_group) = w.shape[2:], w.shape[:2]
        taps_first = w.reshape(1, self.groups, o // self.groups, per_group * prod(kernel)).swapaxes(2, 3)
        out, cols = self.columns(x, kernel)
        if any(self.pads) and not np.isfinite(w).all():  # padding adds nothing, but 0 · inf would be NaN
            _, valid = self.columns(np.ones(x.shape, np.bool_), kernel)
            terms = np.where(valid[..., None], cols[..., None] * taps_first[:, :, None], w.dtype.type(0))
            y = terms.sum(axis=3, dtype=w.dtype)
        else:
            y = contract(cols, taps_first)
        y = y.swapaxes(2, 3).reshape(x.shape[0], o, *out)
        if b is not None:
            y = y + working(b).reshape(1, -1, *[1] * len(out))
        return checked(self, y, self.acc) if self.acc else np.asarray(y, dtype)

    def columns(self, x: Array, kernel: Sequence[int]) -> tuple[tuple[int, ...], Array]:
        """(output extents, windows of x as (N, groups, positions, channels of a group · taps)), for a matrix
        product."""
        n, c = x.shape[0], x.shape[1] // self.groups
        view = windows(x, kernel, self.strides, self.pads, self.dilations, 0)
        out = view.shape[2 : 2 + len(kernel)]
        cols = view.reshape(n, self.groups, c, *out, *kernel)
        return out, np.moveaxis(cols, 2, 2 + len(out)).reshape(n, self.groups, prod(out), c * prod(kernel))

    def compute(self, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        kind = self.infer(x.type, w.type, b.type if b else None)
        spatial, per_group, acc = x.shape[2:], w.shape[1], work_dtype(kind.dtype)
        c, ks = reduction("c", per_group), taps(w.shape[2:])

        def at(n: Expr, o: Expr, *p: Expr) -> Expr:
            channel = (o // max(w.shape[0] // self.groups, 1)) * per_group + c
            where = positions(p, ks, self.strides, self.pads, self.dilations)
            term = product(x[(n, channel, *where)], w[(o, c, *ks)], acc, self.x_zp, self.w_zp, o)
            valid = all_of([inside(q, size) for q, size in zip(where, spatial, strict=True)])
            term = select(valid, term, const(0, acc))
            return cast(reduce("sum", (*ks, c), term, cast(b[o], acc) if b else const(0, acc)), kind.dtype)

        return Tensor(kind, at)


def product(x: Expr, w: Expr, acc: str, x_zp: int, w_zp: tuple[int, ...], o: Expr) -> Expr:
    """(x - x_zp) · (w - w_zp[o]) in the accumulator's dtype."""
    a, b = cast(x, acc), cast(w, acc)
    if dtypes.is_int(acc):
        a = a - const(x_zp, acc) if x_zp else a
        zero = const(w_zp[0], acc) if len(w_zp) == 1 else lookup(w_zp, o, acc)
        b = b if len(w_zp) == 1 and not w_zp[0] else b - zero
    return a * b


def result_dtype(op: Op, x: TensorType, w: TensorType, b: TensorType | None, acc: str, stored: bool = False) -> str:
    """dtype of a multiply-accumulate: x's for floats, `acc` for integers. `stored`: w may be integers beside floats."""
    if acc:
        op.want(
            dtypes.is_int(x.dtype) and dtypes.is_int(w.dtype) and dtypes.is_int(acc), f"integer form on {x} and {w}"
        )
        op.want(
            b is None or (dtypes.is_int(b.dtype) and b.dtype == acc), f"bias must have the accumulator's type {acc}"
        )
        return acc
    same = x.dtype == w.dtype or (stored and dtypes.is_int(w.dtype))
    op.want(dtypes.is_float(x.dtype) and same, f"{x} and {w} must be floats of one type (integers need `acc`)")
    op.want(b is None or b.dtype == x.dtype, "bias must have the type of x")
    return x.dtype


@dataclass(frozen=True)
class Linear(Op):
    """y[…, o] = b[o] + Σ_k (x[…, k] - x_zp) · (w[o, k] - w_zp[o]); `acc` as in Conv.

    x (…, K), w (O, K), b (O,) optional. Beside floats x, w may be integers: they are converted, and have no zero point.
    """

    mnemonic: ClassVar[str] = "linear"
    integer_form = "layer"
    x_zp: int = 0
    w_zp: tuple[int, ...] = (0,)
    acc: str = ""

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        self.want(x.rank >= 1 and w.rank == 2 and x.shape[-1] == w.shape[1], f"x {x} doesn't fit w {w}")
        dtype = result_dtype(self, x, w, b, self.acc, stored=True)
        self.want(b is None or b.shape == w.shape[:1], "bias must have one value per output feature")
        self.want(len(self.w_zp) in (1, w.shape[0]), f"{len(self.w_zp)} weight zero points for {w.shape[0]} features")
        return TensorType((*x.shape[:-1], w.shape[0]), dtype)

    def count_products(self, types: Sequence[TensorType], size: int) -> int:
        return size * types[1].shape[1]

    def evaluate(self, x: Array, w: Array, b: Array | None = None) -> Array:
        dtype = x.dtype
        if self.acc:
            x = x.astype(np.int64) - self.x_zp
            w = w.astype(np.int64) - np.asarray(self.w_zp, np.int64).reshape(-1, 1)
        elif w.dtype.kind in "iu":
            w = w.astype(working(x).dtype)
        y = contract(working(x), working(w).T)
        y = y if b is None else y + working(b)
        return checked(self, y, self.acc) if self.acc else np.asarray(y, dtype)

    def compute(self, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        kind = self.infer(x.type, w.type, b.type if b else None)
        k, acc = reduction("k", w.shape[1]), work_dtype(kind.dtype)

        def at(*i: Expr) -> Expr:
            o = i[-1]
            term = product(x[(*i[:-1], k)], w[(o, k)], acc, self.x_zp, self.w_zp, o)
            return cast(reduce("sum", (k,), term, cast(b[o], acc) if b else const(0, acc)), kind.dtype)

        return Tensor(kind, at)

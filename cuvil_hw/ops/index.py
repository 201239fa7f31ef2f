"""Ops that read or change elements at positions given by integer tensors. Negative indices count from the end.

An index out of range is an error in the input: `evaluate` raises ShapeError. Loops on devices can't raise; they read
the nearest element instead, and write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import (
    Expr,
    Iter,
    Reduce,
    State,
    Tensor,
    all_of,
    binary,
    cast,
    const,
    index,
    inside,
    reduction,
    select,
)
from cuvil_hw.ops.base import Array, Op, ShapeError
from cuvil_hw.ops.elementwise import check_dtype, work_dtype, working
from cuvil_hw.types import TensorType


def positive(indices: Array, extent: int, op: Op) -> Array:
    """Indices converted to [0, extent). Raises ShapeError for one outside [-extent, extent)."""
    wide = indices.astype(np.int64)
    outside = (wide < -extent) | (wide >= extent)
    if outside.any():
        raise ShapeError(f"{op.mnemonic}: index {wide[outside].flat[0]} is outside [-{extent}, {extent})")
    return np.where(wide < 0, wide + extent, wide)


def counted(position: Expr, extent: int) -> Expr:
    """The same for one element, as i64; positions out of range stay out of range."""
    p = cast(position, "i64")
    return select(binary("lt", p, 0), binary("add", p, extent), p)


def nearest(position: Expr, extent: int) -> Expr:
    """The index clamped to the valid range."""
    return cast(binary("min", binary("max", counted(position, extent), 0), extent - 1), "index")


@dataclass(frozen=True)
class GatherElements(Op):
    """y[i…] = x[i… with indices[i…] in place of the index along `axis`]; y has the shape of `indices`, which is at most
    x's in the other dimensions."""

    mnemonic: ClassVar[str] = "gather_elements"
    moves, monotone = True, "first"
    takes_indices = True
    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        self.want(0 <= self.axis < x.rank == indices.rank, f"axis {self.axis} of {x} by {indices}")
        self.want(dtypes.is_int(indices.dtype), f"indices must be integers, not {indices.dtype}")
        fits = all(a <= b or d == self.axis for d, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True)))
        self.want(fits, f"indices {indices} are larger than {x}")
        self.want(x.shape[self.axis] > 0 or indices.size == 0, f"axis {self.axis} of {x} is empty")
        return x.with_shape(indices.shape)

    def evaluate(self, x: Array, indices: Array) -> Array:
        where: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
        where[self.axis] = positive(indices, x.shape[self.axis], self)
        return np.asarray(x[tuple(where)])

    def compute(self, x: Tensor, indices: Tensor) -> Tensor:
        def at(*i: Expr) -> Expr:
            p = nearest(indices[i], x.shape[self.axis])
            return x[(*i[: self.axis], p, *i[self.axis + 1 :])]

        return Tensor(self.infer(x.type, indices.type), at)


@dataclass(frozen=True)
class GatherND(Op):
    """y[b…, i…, s…] = x[b…, indices[b…, i…, 0], indices[b…, i…, 1], …, s…]: the last dimension of `indices` holds
    positions. `batch_dims`: leading dimensions that x and indices share."""

    mnemonic: ClassVar[str] = "gather_nd"
    moves, monotone = True, "first"
    takes_indices = True
    batch_dims: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        b = self.batch_dims
        self.want(dtypes.is_int(indices.dtype), f"indices must be integers, not {indices.dtype}")
        self.want(0 <= b < indices.rank and b <= x.rank, f"{b} batch dimensions of {x} and {indices}")
        depth = indices.shape[-1]
        self.want(x.shape[:b] == indices.shape[:b], f"batch dimensions of {x} and {indices} differ")
        self.want(depth <= x.rank - b, f"{depth} positions in the {x.rank - b} dimensions of {x} after the batch")
        picked = x.shape[b : b + depth]
        self.want(min(picked, default=1) > 0 or indices.size == 0, f"{x} has no elements to take")
        return x.with_shape((*indices.shape[:-1], *x.shape[b + depth :]))

    def evaluate(self, x: Array, indices: Array) -> Array:
        b, depth = self.batch_dims, indices.shape[-1]
        lead = np.ogrid[tuple(slice(n) for n in indices.shape[:-1])]
        where = [*lead[:b], *(positive(indices[..., d], x.shape[b + d], self) for d in range(depth))]
        if not where:
            return np.broadcast_to(x, (*indices.shape[:-1], *x.shape))
        return np.asarray(x[tuple(where)])

    def compute(self, x: Tensor, indices: Tensor) -> Tensor:
        b, depth, rank = self.batch_dims, indices.shape[-1], indices.type.rank

        def at(*i: Expr) -> Expr:
            lead, rest = i[: rank - 1], i[rank - 1 :]
            where = [nearest(indices[(*lead, index(d))], x.shape[b + d]) for d in range(depth)]
            return x[(*lead[:b], *where, *rest)]

        return Tensor(self.infer(x.type, indices.type), at)


UFUNCS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class _Scatter(Op):
    """Writes updates into a copy of x.

    `how`: "none" (the last update wins), or "add", "mul", "max", "min" (combine with the element that is there). Every
    result element checks, in order, all updates that could target it: slow for many updates, but free of races. Sums of
    f16 are computed in f32.
    """

    how: str = "none"

    def check(self, x: TensorType, indices: TensorType, updates: TensorType) -> None:
        self.want(dtypes.is_int(indices.dtype), f"indices must be integers, not {indices.dtype}")
        self.want(updates.dtype == x.dtype, f"updates are {updates.dtype}, x is {x.dtype}")
        self.want(self.how in ("none", *UFUNCS), f"reduction {self.how!r}")
        if self.how != "none":
            check_dtype(self, "wrapping", x.dtype)

    def put(self, x: Array, where: tuple[Any, ...], updates: Array) -> Array:
        if self.how == "none":
            y = x.copy()
            y[where] = updates
            return y
        y = working(x).copy()
        UFUNCS[self.how].at(y, where, working(updates))
        return np.asarray(y, x.dtype)

    def fold(self, x: Expr, iters: Sequence[Iter], match: Expr, update: Callable[[], Expr], dtype: str) -> Expr:
        """x after all updates, in the order of `iters`."""
        work = dtype if self.how == "none" else work_dtype(dtype)
        state = State(work, 0)
        new = cast(update(), work)
        combined = new if self.how == "none" else binary(self.how, state, new)
        return cast(Reduce(work, "scatter", tuple(iters), (cast(x, work),), (select(match, combined, state),)), dtype)


@dataclass(frozen=True)
class ScatterElements(_Scatter):
    """x with updates[i…] put at i… with indices[i…] in place of the index along `axis`."""

    mnemonic: ClassVar[str] = "scatter_elements"
    takes_indices = True
    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        self.check(x, indices, updates)
        self.want(0 <= self.axis < x.rank == indices.rank, f"axis {self.axis} of {x} by {indices}")
        self.want(indices.shape == updates.shape, f"indices {indices} and updates {updates} differ in shape")
        fits = all(a <= b or d == self.axis for d, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True)))
        self.want(fits, f"indices {indices} are larger than {x}")
        return x

    def evaluate(self, x: Array, indices: Array, updates: Array) -> Array:
        where: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
        where[self.axis] = positive(indices, x.shape[self.axis], self)
        return self.put(x, tuple(where), updates)

    def compute(self, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        if not indices.type.size:
            return x
        k = reduction("k", indices.shape[self.axis])

        def at(*i: Expr) -> Expr:
            other = (*i[: self.axis], k, *i[self.axis + 1 :])
            here = [inside(p, n) for d, (p, n) in enumerate(zip(i, indices.shape, strict=True)) if d != self.axis]
            valid = all_of(here)
            target = counted(indices[other], x.shape[self.axis])
            match = binary("eq", target, cast(i[self.axis], "i64"))
            match = select(valid, match, const(False, "bool"))
            return self.fold(x[i], (k,), match, lambda: updates[other], x.dtype)

        return Tensor(self.infer(x.type, indices.type, updates.type), at)


@dataclass(frozen=True)
class ScatterND(_Scatter):
    """x with updates[i…, s…] put at [indices[i…, 0], indices[i…, 1], …, s…]."""

    mnemonic: ClassVar[str] = "scatter_nd"
    takes_indices = True

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        self.check(x, indices, updates)
        self.want(indices.rank >= 1 and indices.shape[-1] <= x.rank, f"positions {indices} in {x}")
        want = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
        self.want(updates.shape == want, f"updates have shape {updates.shape}, must have {want}")
        return x

    def evaluate(self, x: Array, indices: Array, updates: Array) -> Array:
        depth = indices.shape[-1]
        if not depth:
            rows = updates.reshape(prod(indices.shape[:-1]), *x.shape)
            return np.asarray(self.put(x[None], (np.zeros(len(rows), np.int64),), rows)[0])
        return self.put(x, tuple(positive(indices[..., d], x.shape[d], self) for d in range(depth)), updates)

    def compute(self, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        if not updates.type.size:
            return x
        depth = indices.shape[-1]
        ks = tuple(reduction(f"k{d}", n) for d, n in enumerate(indices.shape[:-1]))

        def at(*i: Expr) -> Expr:
            targets = [counted(indices[(*ks, index(d))], x.shape[d]) for d in range(depth)]
            match = all_of([binary("eq", t, cast(p, "i64")) for t, p in zip(targets, i, strict=False)])
            return self.fold(x[i], ks, match, lambda: updates[(*ks, *i[depth:])], x.dtype)

        return Tensor(self.infer(x.type, indices.type, updates.type), at)

"""Ops whose elements depend on all others along an axis: running sums and products, ranks, inverse permutations.

Each result element is a reduction of its own, so the work grows with the square of the extent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Expr, Tensor, binary, cast, const, reduce, reduction, select, unary
from cuvil_hw.ops.base import Array, Op
from cuvil_hw.ops.elementwise import check_dtype, work_dtype, working
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class _Running(Op):
    """Along `axis`, combines every element with those before it (after it if `reverse`), itself excluded if
    `exclusive`. Integers of 8, 16, 32 or 64 bits wrap; f16 accumulates in f32."""

    kind: ClassVar[str]
    neutral: ClassVar[int]
    ufunc: ClassVar[Any]
    axis: int
    exclusive: bool = False
    reverse: bool = False

    def infer(self, x: TensorType) -> TensorType:
        self.want(0 <= self.axis < x.rank, f"axis {self.axis} is outside rank {x.rank}")
        check_dtype(self, "wrapping", x.dtype)
        return x

    def evaluate(self, x: Array) -> Array:
        view = np.flip(working(x), self.axis) if self.reverse else working(x)
        run = type(self).ufunc.accumulate(view, axis=self.axis, dtype=view.dtype)
        if self.exclusive:
            first = np.full_like(np.take(run, [0], self.axis), self.neutral) if x.size else run
            run = np.concatenate([first, np.delete(run, -1, self.axis)], self.axis) if x.size else run
        return np.asarray(np.flip(run, self.axis) if self.reverse else run, x.dtype)

    def compute(self, x: Tensor) -> Tensor:
        k = reduction("k", x.shape[self.axis])
        work = work_dtype(x.dtype)
        neutral = const(self.neutral, work)
        order = ("gt" if self.exclusive else "ge") if self.reverse else ("lt" if self.exclusive else "le")

        def at(*i: Expr) -> Expr:
            element = cast(x[(*i[: self.axis], k, *i[self.axis + 1 :])], work)
            term = select(binary(order, k, i[self.axis]), element, neutral)
            return cast(reduce(self.kind, (k,), term, neutral), x.dtype)

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class CumSum(_Running):
    """Running sum."""

    mnemonic, kind, neutral, ufunc = "cum_sum", "sum", 0, np.add


@dataclass(frozen=True)
class CumProd(_Running):
    """Running product."""

    mnemonic, kind, neutral, ufunc = "cum_prod", "prod", 1, np.multiply


@dataclass(frozen=True)
class Rank(Op):
    """How many elements along `axis` come before each one in sorted order (i64): ascending, or descending if `largest`.
    Equal elements keep their order; NaN counts as larger than everything."""

    mnemonic: ClassVar[str] = "rank"
    axis: int
    largest: bool = True

    def infer(self, x: TensorType) -> TensorType:
        self.want(0 <= self.axis < x.rank, f"axis {self.axis} is outside rank {x.rank}")
        check_dtype(self, "number", x.dtype)
        return x.with_dtype("i64")

    def evaluate(self, x: Array) -> Array:
        if self.largest:
            back = np.argsort(np.flip(x, self.axis), axis=self.axis, kind="stable")
            order = x.shape[self.axis] - 1 - np.flip(back, self.axis)
        else:
            order = np.argsort(x, axis=self.axis, kind="stable")
        return np.argsort(order, axis=self.axis, kind="stable").astype(np.int64)

    def compute(self, x: Tensor) -> Tensor:
        k = reduction("k", x.shape[self.axis])
        zero, one = const(0, "i64"), const(1, "i64")

        def at(*i: Expr) -> Expr:
            mine, other = x[i], x[(*i[: self.axis], k, *i[self.axis + 1 :])]
            before = binary("gt" if self.largest else "lt", other, mine)
            equal = binary("eq", other, mine)
            if dtypes.is_float(x.dtype):
                nans = unary("isnan", other), unary("isnan", mine)
                first, second = nans if self.largest else nans[::-1]
                before = binary("or", before, binary("and", first, unary("not", second)))
                equal = binary("or", equal, binary("and", *nans))
            earlier = binary("and", equal, binary("lt", k, i[self.axis]))
            return reduce("sum", (k,), select(binary("or", before, earlier), one, zero), zero)

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class PositionOf(Op):
    """y[…, p, …] = the position k along `axis` where x[…, k, …] = p, for 0 ≤ p < count: the inverse of a permutation.

    x is an integer tensor. A p that doesn't occur gives 0; if it occurs several times, the sum of its positions.
    """

    mnemonic: ClassVar[str] = "position_of"
    axis: int
    count: int

    def infer(self, x: TensorType) -> TensorType:
        self.want(0 <= self.axis < x.rank and self.count >= 0, f"axis {self.axis}, count {self.count} of {x}")
        check_dtype(self, "int", x.dtype)
        return TensorType((*x.shape[: self.axis], self.count, *x.shape[self.axis + 1 :]), "i64")

    def evaluate(self, x: Array) -> Array:
        rows = np.moveaxis(x, self.axis, -1)[..., None, :] == np.arange(self.count)[:, None]
        found = (rows * np.arange(x.shape[self.axis])).sum(axis=-1, dtype=np.int64)
        return np.moveaxis(found, -1, self.axis)

    def compute(self, x: Tensor) -> Tensor:
        k = reduction("k", x.shape[self.axis])
        zero = const(0, "i64")

        def at(*i: Expr) -> Expr:
            rank = cast(x[(*i[: self.axis], k, *i[self.axis + 1 :])], "i64")
            hit = binary("eq", rank, cast(i[self.axis], "i64"))
            return reduce("sum", (k,), select(hit, cast(k, "i64"), zero), zero)

        return Tensor(self.infer(x.type), at)

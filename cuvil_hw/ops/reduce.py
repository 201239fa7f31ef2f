"""Reductions along axes, softmax and batched matrix product. f16 accumulates in f32."""

from __future__ import annotations

from collections.abc import Sequence
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
    binary,
    cast,
    const,
    index,
    reduce,
    reduction,
    select,
    unary,
)
from cuvil_hw.extent.size import broadcast
from cuvil_hw.ops.base import Array, Emit, Op, container
from cuvil_hw.ops.binary import Div, Sub
from cuvil_hw.ops.cast import Cast
from cuvil_hw.ops.elementwise import Exp, Log, check_dtype, work_dtype, working, wraps
from cuvil_hw.ops.interval import Interval, window_bounds
from cuvil_hw.ops.nn import checked, contract, largest, product, result_dtype
from cuvil_hw.ops.pool import lowest
from cuvil_hw.ops.shape import BroadcastTo
from cuvil_hw.types import TensorType


def highest(dtype: str) -> float | int:
    """The neutral element of a minimum."""
    return np.inf if dtypes.is_float(dtype) else dtypes.int_range(dtype)[1]


def reduced(x: TensorType, axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """Shape after reducing `axes`."""
    if keepdims:
        return tuple(1 if d in axes else e for d, e in enumerate(x.shape))
    return tuple(e for d, e in enumerate(x.shape) if d not in axes)


def place(i: Sequence[Expr], rank: int, inner: dict[int, Iter], keepdims: bool) -> tuple[Expr, ...]:
    """The operand's index: reduction iterators on the reduced axes, result indices on the others."""
    outer = iter([p for d, p in enumerate(i) if d not in inner] if keepdims else i)
    return tuple(inner[d] if d in inner else next(outer) for d in range(rank))


@dataclass(frozen=True)
class _Reduction(Op):
    """`axes`: non-negative, distinct; without axes x is returned unchanged. `keepdims` keeps reduced axes with extent
    1. Reducing zero elements gives the neutral element."""

    takes: ClassVar[str] = "number"
    kind: ClassVar[str]
    axes: tuple[int, ...]
    keepdims: bool = False

    def infer(self, x: TensorType) -> TensorType:
        self.want(all(0 <= a < x.rank for a in self.axes), f"axes {self.axes} are outside rank {x.rank}")
        self.want(len(set(self.axes)) == len(self.axes), f"axes {self.axes} repeat")
        self.check(x.dtype)
        return TensorType(reduced(x, self.axes, self.keepdims), self.result_dtype(x.dtype))

    def check(self, dtype: str) -> None:
        check_dtype(self, self.takes, dtype)

    def result_dtype(self, dtype: str) -> str:
        return dtype

    def neutral(self, dtype: str) -> float | int:
        raise NotImplementedError

    def evaluate(self, x: Array) -> Array:
        return np.asarray(self.fold(working(x)), x.dtype)

    def fold(self, x: Array) -> Any:
        raise NotImplementedError

    def compute(self, x: Tensor) -> Tensor:
        kind = self.infer(x.type)
        work = work_dtype(kind.dtype)
        inner = {a: reduction(f"r{n}", x.shape[a]) for n, a in enumerate(self.axes)}

        def at(*i: Expr) -> Expr:
            term = cast(x[place(i, x.type.rank, inner, self.keepdims)], work)
            if not inner:
                return cast(self.finish(term, x.shape), kind.dtype)
            total = reduce(self.kind, tuple(inner.values()), term, const(self.neutral(work), work))
            return cast(self.finish(total, x.shape), kind.dtype)

        return Tensor(kind, at)

    def finish(self, total: Expr, shape: Sequence[int]) -> Expr:
        return total


@dataclass(frozen=True)
class _Accumulated(_Reduction):
    """Integers of 8, 16, 32 or 64 bits wrap; `acc` as in Add (ops/binary.py)."""

    acc: str = ""

    def check(self, dtype: str) -> None:
        if self.acc:
            self.want(dtypes.is_int(self.acc), f"acc {self.acc!r} is not an integer type")
        check_dtype(self, "int" if self.acc else "wrapping", dtype)

    def result_dtype(self, dtype: str) -> str:
        return self.acc or dtype

    def evaluate(self, x: Array) -> Array:
        if self.acc:
            count = prod(x.shape[a] for a in self.axes)
            bits = largest(x).bit_length()
            bits = bits + count.bit_length() if self.kind == "sum" else bits * count
            return checked(self, np.asarray(self.fold(x.astype(np.int64 if bits < 63 else object))), self.acc)
        return np.asarray(self.fold(working(x)), x.dtype)


@dataclass(frozen=True)
class ReduceSum(_Accumulated):
    """Sum; 0 for zero elements."""

    mnemonic, kind = "reduce_sum", "sum"
    integer_form = "sum"

    def neutral(self, dtype: str) -> float | int:
        return 0

    def fold(self, x: Array) -> Any:
        return x.sum(axis=self.axes, keepdims=self.keepdims, dtype=x.dtype)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval | None:
        return window_bounds(ranges[0], 0, prod(types[0].shape[a] for a in self.axes)) if self.acc else None


@dataclass(frozen=True)
class ReduceProd(_Accumulated):
    """Product; 1 for zero elements."""

    mnemonic, kind = "reduce_prod", "prod"

    def neutral(self, dtype: str) -> float | int:
        return 1

    def fold(self, x: Array) -> Any:
        return x.prod(axis=self.axes, keepdims=self.keepdims, dtype=x.dtype)


@dataclass(frozen=True)
class ReduceMean(_Reduction):
    """Sum divided by the count, floats; NaN for zero elements."""

    mnemonic, kind, takes = "reduce_mean", "sum", "float"
    integer_form = "sum"

    def neutral(self, dtype: str) -> float | int:
        return 0

    def fold(self, x: Array) -> Any:
        return x.sum(axis=self.axes, keepdims=self.keepdims, dtype=x.dtype) / x.dtype.type(self.count(x.shape))

    def count(self, shape: Sequence[int]) -> int:
        return prod(shape[a] for a in self.axes)

    def finish(self, total: Expr, shape: Sequence[int]) -> Expr:
        return binary("div", total, float(self.count(shape)))


@dataclass(frozen=True)
class _Extreme(_Reduction):
    """Of nothing: the end of the type's range. Arrays don't carry the width of narrow integers: refused."""

    def infer(self, x: TensorType) -> TensorType:
        out = super().infer(x)
        empty = x.size == 0 and out.size > 0
        self.want(not empty or dtypes.is_float(x.dtype) or wraps(x.dtype), f"{x} has no element to choose; cast first")
        return out


@dataclass(frozen=True)
class ReduceMax(_Extreme):
    """Largest element, NaN if any is NaN; -infinity (the lowest integer) for zero elements."""

    mnemonic, kind, monotone = "reduce_max", "max", "first"

    def neutral(self, dtype: str) -> float | int:
        return lowest(dtype)

    def fold(self, x: Array) -> Any:
        return x.max(axis=self.axes, keepdims=self.keepdims, initial=lowest(dtypes.from_numpy(x.dtype)))


@dataclass(frozen=True)
class ReduceMin(_Extreme):
    """Smallest element, NaN if any is NaN; infinity (the highest integer) for zero elements."""

    mnemonic, kind, monotone = "reduce_min", "min", "first"

    def neutral(self, dtype: str) -> float | int:
        return highest(dtype)

    def fold(self, x: Array) -> Any:
        return x.min(axis=self.axes, keepdims=self.keepdims, initial=highest(dtypes.from_numpy(x.dtype)))


@dataclass(frozen=True)
class _Arg(Op):
    """Position (i64) of the extreme along a non-empty `axis`: the first of equal ones, or the last if `last`. NaN
    counts as the extreme."""

    kind: ClassVar[str]
    axis: int
    keepdims: bool = False
    last: bool = False

    def infer(self, x: TensorType) -> TensorType:
        self.want(0 <= self.axis < x.rank, f"axis {self.axis} is outside rank {x.rank}")
        self.want(x.shape[self.axis] > 0, f"axis {self.axis} of {x} is empty: there is no position to give")
        check_dtype(self, "number", x.dtype)
        return TensorType(reduced(x, (self.axis,), self.keepdims), "i64")

    def evaluate(self, x: Array) -> Array:
        find = np.argmax if self.kind == "argmax" else np.argmin
        view = np.flip(x, self.axis) if self.last else x
        at = np.asarray(find(view, axis=self.axis), np.int64)
        at = np.expand_dims(at, self.axis) if self.keepdims else at  # find's own keepdims is of NumPy 1.22
        return np.asarray(x.shape[self.axis] - 1 - at if self.last else at, np.int64)

    def compute(self, x: Tensor) -> Tensor:
        k = reduction("k", x.shape[self.axis])
        start = lowest(x.dtype) if self.kind == "argmax" else highest(x.dtype)
        better = ("gt", "ge") if self.kind == "argmax" else ("lt", "le")

        def at(*i: Expr) -> Expr:
            element = x[place(i, x.type.rank, {self.axis: k}, self.keepdims)]
            best, where = State(x.dtype, 0), State("i64", 1)
            take = binary(better[self.last], element, best)
            if dtypes.is_float(x.dtype):
                nan = unary("isnan", element)
                if not self.last:
                    nan = binary("and", nan, unary("not", unary("isnan", best)))
                take = binary("or", take, nan)
            update = (select(take, element, best), select(take, cast(k, "i64"), where))
            return Reduce("i64", self.kind, (k,), (const(start, x.dtype), const(0, "i64")), update, 1)

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class ArgMax(_Arg):
    """Position of the largest."""

    mnemonic, kind = "arg_max", "argmax"


@dataclass(frozen=True)
class ArgMin(_Arg):
    """Position of the smallest."""

    mnemonic, kind = "arg_min", "argmin"


@dataclass(frozen=True)
class _SoftmaxLike(Op):
    composite: ClassVar[bool] = True
    axis: int

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, "float", x.dtype)
        self.want(0 <= self.axis < x.rank, f"axis {self.axis} is outside rank {x.rank}")
        return x

    def centred(self, emit: Emit, x: Any) -> tuple[Any, Any]:
        """(x minus its maximum, sum of its exponentials broadcast along the axis), in the work dtype."""
        kind = emit.type(x)
        if work_dtype(kind.dtype) != kind.dtype:
            x = emit.op(Cast(work_dtype(kind.dtype)), x)
        wide = BroadcastTo(kind.shape)
        x = emit.op(Sub(), x, emit.op(wide, emit.op(ReduceMax((self.axis,), True), x)))
        return x, emit.op(wide, emit.op(ReduceSum((self.axis,), True), emit.op(Exp(), x)))


def narrowed(emit: Emit, value: Any, dtype: str) -> Any:
    """`value` cast to `dtype` where it has another."""
    return value if emit.type(value).dtype == dtype else emit.op(Cast(dtype), value)


@dataclass(frozen=True)
class Softmax(_SoftmaxLike):
    """e^(x - max) / Σ e^(x - max) along `axis`; a row with +inf or NaN, or all -inf, is NaN."""

    mnemonic: ClassVar[str] = "softmax"

    def evaluate(self, x: Array) -> Array:
        w = working(x)
        e = np.exp(w - w.max(axis=self.axis, keepdims=True, initial=-np.inf))
        return np.asarray(e / e.sum(axis=self.axis, keepdims=True), x.dtype)

    def decompose(self, emit: Emit, x: Any) -> Any:
        low, total = self.centred(emit, x)
        return narrowed(emit, emit.op(Div(), emit.op(Exp(), low), total), emit.type(x).dtype)


@dataclass(frozen=True)
class LogSoftmax(_SoftmaxLike):
    """(x - max) - log Σ e^(x - max) along `axis`."""

    mnemonic: ClassVar[str] = "log_softmax"

    def evaluate(self, x: Array) -> Array:
        w = working(x)
        low = w - w.max(axis=self.axis, keepdims=True, initial=-np.inf)
        return np.asarray(low - np.log(np.exp(low).sum(axis=self.axis, keepdims=True)), x.dtype)

    def decompose(self, emit: Emit, x: Any) -> Any:
        low, total = self.centred(emit, x)
        return narrowed(emit, emit.op(Sub(), low, emit.op(Log(), total)), emit.type(x).dtype)


@dataclass(frozen=True)
class MatMul(Op):
    """y[…, m, n] = Σ_k (a[…, m, k] - x_zp) · (b[…, k, n] - w_zp[n]); leading dimensions broadcast by NumPy's rule.

    a (…, M, K), b (…, K, N). `w_zp`: one value or one per column. `acc` as in Conv.
    """

    mnemonic: ClassVar[str] = "mat_mul"
    integer_form = "layer"
    x_zp: int = 0
    w_zp: tuple[int, ...] = (0,)
    acc: str = ""

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self.want(a.rank >= 2 and b.rank >= 2, f"{a} and {b} need rank 2 or more")
        self.want(a.shape[-1] == b.shape[-2], f"{a} has {a.shape[-1]} columns, {b} has {b.shape[-2]} rows")
        try:
            lead = broadcast(a.shape[:-2], b.shape[:-2])
        except ValueError:
            raise self.fail(f"leading dimensions of {a} and {b} don't broadcast") from None
        dtype = result_dtype(self, a, b, None, self.acc)
        self.want(len(self.w_zp) in (1, b.shape[-1]), f"{len(self.w_zp)} zero points for {b.shape[-1]} columns")
        return TensorType((*lead, a.shape[-2], b.shape[-1]), dtype)

    def count_products(self, types: Sequence[TensorType], size: int) -> int:
        return size * types[0].shape[-1]

    def evaluate(self, a: Array, b: Array) -> Array:
        if self.acc:
            y = contract(a.astype(np.int64) - self.x_zp, b.astype(np.int64) - np.asarray(self.w_zp, np.int64))
            return checked(self, y, self.acc)
        return container(contract(working(a), working(b)), dtypes.from_numpy(a.dtype))

    def compute(self, a: Tensor, b: Tensor) -> Tensor:
        kind = self.infer(a.type, b.type)
        k = reduction("k", a.shape[-1])
        work = work_dtype(kind.dtype)

        def at(*i: Expr) -> Expr:
            *lead, m, n = i
            left, right = a[(*aligned(lead, a.shape[:-2]), m, k)], b[(*aligned(lead, b.shape[:-2]), k, n)]
            return cast(
                reduce("sum", (k,), product(left, right, work, self.x_zp, self.w_zp, n), const(0, work)), kind.dtype
            )

        return Tensor(kind, at)


def aligned(lead: Sequence[Expr], shape: Sequence[int]) -> list[Expr]:
    """Index into leading dimensions that broadcast."""
    tail = lead[len(lead) - len(shape) :]
    return [index(0) if extent == 1 else p for p, extent in zip(tail, shape, strict=True)]

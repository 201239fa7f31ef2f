"""Operations that move elements and compute nothing: any dtype, bits unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Expr, Tensor, all_of, binary, cast, const, index, inside, select
from cuvil_hw.extent.size import stretches
from cuvil_hw.ops.base import Array, Op, ShapeError, Splat
from cuvil_hw.ops.interval import Interval
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements in row-major order under another shape; extents are explicit (no -1)."""

    mnemonic: ClassVar[str] = "reshape"
    moves, monotone = True, "first"
    is_view = costs_nothing = True
    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.want(all(e >= 0 for e in self.shape), f"negative extent in {self.shape}")
        self.want(prod(self.shape) == x.size, f"{x} has {x.size} elements, shape {self.shape} has {prod(self.shape)}")
        return x.with_shape(self.shape)

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return True

    def axis_after(self, axis: int, x: TensorType) -> int | None:
        before = prod(x.shape[:axis])
        found = (d for d, n in enumerate(self.shape) if prod(self.shape[:d]) == before and n == x.shape[axis])
        return next(found, None)

    def evaluate(self, x: Array) -> Array:
        return x.reshape(self.shape)

    def compute(self, x: Tensor) -> Tensor:
        def at(*i: Expr) -> Expr:
            flat: Expr = index(0)
            for position, stride in zip(i, strides(self.shape), strict=True):
                flat = flat + position * stride
            where: list[Expr] = []
            for d, (extent, stride) in enumerate(zip(x.shape, strides(x.shape), strict=True)):
                step = flat // stride
                where.append(step if d == 0 else step % max(extent, 1))
            return x[tuple(where)]

        return Tensor(self.infer(x.type), at)


def strides(shape: Sequence[int]) -> list[int]:
    """Row-major strides in elements; extents of zero count as one, so that none is zero."""
    return [prod(max(e, 1) for e in shape[d + 1 :]) for d in range(len(shape))]


@dataclass(frozen=True)
class Transpose(Op):
    """Result dimension d is operand dimension perm[d]."""

    mnemonic: ClassVar[str] = "transpose"
    moves, monotone = True, "first"
    is_view = costs_nothing = True
    perm: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.want(
            sorted(self.perm) == list(range(x.rank)),
            f"perm {self.perm} isn't a permutation of the {x.rank} dimensions of {x}",
        )
        return x.with_shape(tuple(x.shape[p] for p in self.perm))

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return self.perm == tuple(range(len(self.perm)))

    def axis_after(self, axis: int, x: TensorType) -> int | None:
        return self.perm.index(axis)

    def evaluate(self, x: Array) -> Array:
        return x.transpose(self.perm)

    def compute(self, x: Tensor) -> Tensor:
        back = sorted(range(len(self.perm)), key=lambda d: self.perm[d])
        return Tensor(self.infer(x.type), lambda *i: x[tuple(i[d] for d in back)])


@dataclass(frozen=True)
class Slice(Op):
    """y[i] = x[starts + i · steps], 0 ≤ i < sizes, for every dimension. Steps may be negative, not zero; every element
    that is taken must exist (front ends clamp)."""

    mnemonic: ClassVar[str] = "slice"
    moves, monotone = True, "first"
    costs_nothing = True
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.want(
            len(self.starts) == len(self.sizes) == len(self.steps) == x.rank,
            f"needs starts, sizes and steps for {x.rank} dimensions",
        )
        for d, (start, size, step) in enumerate(zip(self.starts, self.sizes, self.steps, strict=True)):
            self.want(step != 0 and size >= 0, f"dimension {d}: step 0 or negative size")
            last = start + (size - 1) * step
            fits = 0 <= start < x.shape[d] and 0 <= last < x.shape[d]
            self.want(size == 0 or fits, f"dimension {d}: elements {start}…{last} of {x.shape[d]}")
        return x.with_shape(self.sizes)

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return all(step == 1 for step in self.steps)

    def evaluate(self, x: Array) -> Array:
        cuts = []
        for start, size, step in zip(self.starts, self.sizes, self.steps, strict=True):
            stop = start + size * step
            cuts.append(slice(start, None if stop < 0 else stop, step) if size else slice(0, 0))
        return x[tuple(cuts)]

    def compute(self, x: Tensor) -> Tensor:
        def at(*i: Expr) -> Expr:
            return x[tuple(p * step + start for p, start, step in zip(i, self.starts, self.steps, strict=True))]

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class Pad(Op):
    """Adds elements around x: `pads` (begin…, end…), one of each per dimension, ≥ 0.

    `mode`: "constant" (`value`), "reflect" (mirrored at the border element, which isn't repeated; pads smaller than the
    extent) or "edge" (the border repeated).
    """

    mnemonic: ClassVar[str] = "pad"
    moves, monotone = True, "first"
    pads: tuple[int, ...]
    value: float = 0.0
    mode: str = "constant"

    def infer(self, x: TensorType) -> TensorType:
        self.want(
            len(self.pads) == 2 * x.rank, f"{len(self.pads)} pads for {x.rank} dimensions; needs begin and end of each"
        )
        self.want(min(self.pads, default=0) >= 0, "negative pads: use slice")
        self.want(
            self.mode in ("constant", "reflect", "edge"), f'mode is "constant", "reflect" or "edge", not {self.mode!r}'
        )
        if self.mode == "constant" and not dtypes.is_float(x.dtype):
            lo, hi = dtypes.int_range(x.dtype)
            self.want(
                lo <= self.value <= hi and self.value == int(self.value), f"value {self.value} isn't one of {x.dtype}"
            )
        begin, end = self.sides(x.rank)
        for d, (size, lo, hi) in enumerate(zip(x.shape, begin, end, strict=True)):
            if self.mode == "reflect":
                self.want(
                    max(lo, hi) < max(size, 1),
                    f"dimension {d}: reflects at most {max(size - 1, 0)} elements, not {max(lo, hi)}",
                )
            elif self.mode == "edge":
                self.want(size > 0 or lo + hi == 0, f"dimension {d} is empty: it has no edge")
        return x.with_shape(tuple(size + lo + hi for size, lo, hi in zip(x.shape, begin, end, strict=True)))

    def sides(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.pads[:rank], self.pads[rank:]

    def fill(self, dtype: str) -> float | int:
        return self.value if dtypes.is_float(dtype) else int(self.value)

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return not any(self.pads)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval:
        value = int(self.value) if self.mode == "constant" else ranges[0].lo
        return ranges[0].join(Interval(value, value))

    def evaluate(self, x: Array) -> Array:
        widths = list(zip(*self.sides(x.ndim), strict=True))
        if not widths:
            return x
        match self.mode:
            case "constant":
                inside = tuple(slice(lo, lo + n) for (lo, _), n in zip(widths, x.shape, strict=True))
                dtype = dtypes.from_numpy(x.dtype)
                shape = tuple(lo + n + hi for (lo, hi), n in zip(widths, x.shape, strict=True))
                y = np.full(shape, dtypes.convert(self.fill(dtype), dtype), x.dtype)
                y[inside] = x
                return y
            case "reflect":
                return np.pad(x, widths, mode="reflect")
            case _:
                return np.pad(x, widths, mode="edge")

    def compute(self, x: Tensor) -> Tensor:
        begin, _ = self.sides(x.type.rank)

        def at(*i: Expr) -> Expr:
            where = [p - lo for p, lo in zip(i, begin, strict=True)]
            if self.mode == "constant":
                valid = all_of([inside(p, size) for p, size in zip(where, x.shape, strict=True)])
                return select(valid, x[tuple(where)], const(self.fill(x.dtype), x.dtype))
            if self.mode == "edge":
                return x[
                    tuple(binary("min", binary("max", p, 0), size - 1) for p, size in zip(where, x.shape, strict=True))
                ]
            mirrored = [binary("max", p, -p) for p in where]
            far = [index(2 * (size - 1)) - p for p, size in zip(mirrored, x.shape, strict=True)]
            return x[tuple(binary("min", p, q) for p, q in zip(mirrored, far, strict=True))]

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class Concat(Op):
    """One or more tensors of one dtype joined along `axis`; other extents are equal."""

    mnemonic: ClassVar[str] = "concat"
    moves, monotone = True, "all"
    axis: int

    def infer(self, *xs: TensorType) -> TensorType:
        self.want(bool(xs), "needs at least one operand")
        first = xs[0]
        self.want(0 <= self.axis < first.rank, f"axis {self.axis} is outside rank {first.rank}")
        for x in xs[1:]:
            self.want(x.dtype == first.dtype, f"dtypes differ: {first} and {x}; insert cast")
            self.want(self.rest(x) == self.rest(first), f"{first} and {x} differ outside axis {self.axis}")
        shape = list(first.shape)
        shape[self.axis] = sum(x.shape[self.axis] for x in xs)
        return first.with_shape(tuple(shape))

    def rest(self, x: TensorType) -> tuple[int, ...]:
        return x.shape[: self.axis] + x.shape[self.axis + 1 :] if x.rank > self.axis else (-1,)

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return len(types) == 1

    def evaluate(self, *xs: Array) -> Array:
        return np.concatenate(xs, axis=self.axis)

    def compute(self, *xs: Tensor) -> Tensor:
        def at(*i: Expr) -> Expr:
            parts: list[tuple[int, Expr]] = []  # (end of the operand's range, its element)
            end = 0
            for x in xs:
                where = (*i[: self.axis], i[self.axis] - end, *i[self.axis + 1 :])
                end += x.shape[self.axis]
                if x.shape[self.axis] or (x is xs[-1] and not parts):
                    parts.append((end, x[where]))
            return halves(i[self.axis], parts)

        def halves(i: Expr, parts: list[tuple[int, Expr]]) -> Expr:
            """The part that contains `i`, found by bisection, so that hundreds of parts need only a few comparisons."""
            if len(parts) == 1:
                return parts[0][1]
            middle = len(parts) // 2
            return select(binary("lt", i, parts[middle - 1][0]), halves(i, parts[:middle]), halves(i, parts[middle:]))

        return Tensor(self.infer(*[x.type for x in xs]), at)


@dataclass(frozen=True)
class BroadcastTo(Op):
    """x repeated to `shape` by NumPy's rule: dimensions align at the end, extent 1 stretches."""

    mnemonic: ClassVar[str] = "broadcast_to"
    moves, monotone = True, "first"
    is_view = costs_nothing = True
    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        tail = self.shape[len(self.shape) - x.rank :] if x.rank <= len(self.shape) else ()
        fits = len(tail) == x.rank and all(stretches(e, to) for e, to in zip(x.shape, tail, strict=True))
        self.want(fits and all(e >= 0 for e in self.shape), f"{x} doesn't broadcast to {self.shape}")
        return x.with_shape(self.shape)

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        return True

    def evaluate(self, x: Array) -> Array:
        return np.broadcast_to(x, self.shape)

    def compute(self, x: Tensor) -> Tensor:
        def at(*i: Expr) -> Expr:
            tail = i[len(i) - x.type.rank :]
            return x[tuple(index(0) if extent == 1 else p for p, extent in zip(tail, x.shape, strict=True))]

        return Tensor(self.infer(x.type), at)


@dataclass(frozen=True)
class Gather(Op):
    """x (…, axis, …) and integer `indices` of any shape: result (…, *indices, …). Negative indices count from the end.

    An index outside [-n, n) is an error of the input: `evaluate` raises ShapeError; on devices that can't raise, the
    loops take the nearest element, so memory outside x is never read.
    """

    mnemonic: ClassVar[str] = "gather"
    moves, monotone = True, "first"
    takes_indices = True
    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        self.want(0 <= self.axis < x.rank, f"axis {self.axis} is outside rank {x.rank}")
        self.want(dtypes.is_int(indices.dtype), f"indices must be integers, not {indices.dtype}")
        self.want(x.shape[self.axis] > 0 or indices.size == 0, f"axis {self.axis} of {x} is empty")
        return x.with_shape((*x.shape[: self.axis], *indices.shape, *x.shape[self.axis + 1 :]))

    def evaluate(self, x: Array, indices: Array) -> Array:
        n = x.shape[self.axis]
        outside = (indices < -n) | (indices >= n) if indices.dtype.kind == "i" else indices >= n
        if outside.any():
            raise ShapeError(f"gather: index {indices[outside].flat[0]} is outside [-{n}, {n}) of axis {self.axis}")
        return np.take(x, indices.astype(np.int64), axis=self.axis)

    def compute(self, x: Tensor, indices: Tensor) -> Tensor:
        last = x.shape[self.axis] - 1

        def at(*i: Expr) -> Expr:
            k = indices.type.rank
            p = cast(indices[i[self.axis : self.axis + k]], "i64")
            p = select(binary("lt", p, 0), binary("add", p, last + 1), p)
            p = cast(binary("min", binary("max", p, 0), last), "index")
            return x[(*i[: self.axis], p, *i[self.axis + k :])]

        return Tensor(self.infer(x.type, indices.type), at)

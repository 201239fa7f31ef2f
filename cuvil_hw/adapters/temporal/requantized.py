"""What integer layers do to their sums, read off an expression: scale, shift, clip, look up. The shared engine does it
with numbers from memory, so all such layers run on the same hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import Array
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Lookup, Reduce
from cuvil_hw.schedule.kernel import Kernel, KernelGraph

Numbers = Array  # int64, one number, or one for each channel


@dataclass(frozen=True, slots=True)
class LinearForm:
    """Σ factor·term + offset, a value from `low` to `high`."""

    factors: Mapping[Expr, Numbers]
    offset: Numbers
    low: int
    high: int


@dataclass(frozen=True)
class Requantized:
    """table[clip((Σ factor·term + offset, rounded) >> shift + zero)]: a number, or one for each channel, of `offset`
    and `shift`. `even`: ties go to even numbers, else the sum is rounded down; `table`: by the low byte, empty for
    none; `terms`: reductions or loads."""

    terms: tuple[Expr, ...]
    factors: tuple[Numbers, ...]
    offset: Numbers
    shift: Numbers
    even: bool
    zero: int
    low: int
    high: int
    table: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads expressions of a kernel; `channel`: the iterator of the output's channels."""

    graph: KernelGraph
    channel: Iter | None

    def requantized(self, e: Expr) -> Requantized | None:
        """None for what the engine doesn't do."""
        dtype = e.dtype
        if not dtypes.is_int(dtype):
            return None
        table: tuple[int, ...] = ()
        if isinstance(e, Lookup):
            inner = self._looked_up(e)
            if inner is None or dtypes.record(dtype).bits > 8:
                return None
            e, table = inner
        low, high = dtypes.int_range(e.dtype)
        while isinstance(e, Apply) and e.op in ("saturate", "cast", "max", "min"):
            ends = low, high
            if e.op in ("max", "min"):
                if not isinstance(e.args[1], Const):
                    return None
                bound = int(e.args[1].value)
                ends = (bound, high) if e.op == "max" else (low, bound)
            elif e.op == "saturate":
                ends = dtypes.int_range(e.dtype)
            elif not self._fits(e.args[0], e.dtype):
                break
            low, high = (min(max(end, low), high) for end in ends)
            e = e.args[0]
        return self._shifted(e, low, high, table)

    def without_table(self, kernel: Kernel) -> Kernel:
        """The kernel before the table that ends it, if there is one."""
        made = self._looked_up(kernel.body) if isinstance(kernel.body, Lookup) else None
        return kernel if made is None else replace(kernel, body=made[0], type=kernel.type.with_dtype(made[0].dtype))

    def _fits(self, e: Expr, dtype: str) -> bool:
        lo, hi = dtypes.int_range(dtype)
        if dtypes.is_int(e.dtype):
            least, most = dtypes.int_range(e.dtype)
            if lo <= least and most <= hi:
                return True
        made = self._bounds(e)
        return made is not None and lo <= made[0] and made[1] <= hi

    def _bounds(self, e: Expr) -> tuple[int, int] | None:
        """Between which values a shifted linear expression lies."""
        match e:
            case Apply(op="add", args=(a, Const(value=c))):
                inner = self._bounds(a)
                return None if inner is None else (inner[0] + int(c), inner[1] + int(c))
            case Apply(op="shr", args=(a, b)):
                inner, by = self._bounds(a), self.linear(b)
                if inner is None or by is None or by.factors:
                    return None
                return inner[0] >> int(by.offset.min()), inner[1] >> int(by.offset.min())
        made = self.linear(e)
        return None if made is None else (made.low, made.high)

    def _shifted(self, e: Expr, low: int, high: int, table: tuple[int, ...]) -> Requantized | None:
        zero = 0
        match e:
            case Apply(op="add", args=(Apply(op="shr") as moved, Const(value=value))):
                e, zero = moved, int(value)
        shift, even = np.zeros((), np.int64), False
        if isinstance(e, Apply) and e.op == "shr":
            by = self.linear(e.args[1])
            if by is None or by.factors or by.offset.min() < 0 or by.offset.max() > 62:
                return None
            shift = by.offset
            parity = self._without_parity(e.args[0], shift, e.args[1])
            e, even = (e.args[0], False) if parity is None else (parity, True)
        made = self.linear(e)
        if made is None or not made.factors or made.low < -(1 << 62) or made.high >= 1 << 62:
            return None
        terms = tuple(made.factors)
        if any(np.abs(f).max() >= 1 << 31 for f in made.factors.values()):
            return None
        factors = tuple(made.factors.values())
        return Requantized(terms, factors, made.offset, shift, even, zero, low, high, table)

    def _without_parity(self, e: Expr, shift: Numbers, by: Expr) -> Expr | None:
        """v of v + (half - 1) + (v >> shift & 1), which rounds ties to even; None for anything else."""
        match e:
            case Apply(op="add", args=(Apply(op="add", args=(v, below)), Apply(op="and", args=(high, Const(value=1))))):
                half = self.linear(below)
                same = isinstance(high, Apply) and high.op == "shr" and high.args == (v, by)
                if half is None or half.factors or not same or shift.min() < 1:
                    return None
                return v if np.array_equal(half.offset, (np.int64(1) << shift) // 2 - 1) else None
        return None

    def _looked_up(self, e: Lookup) -> tuple[Expr, tuple[int, ...]] | None:
        """(index before its offset, table by the low byte of that index)."""
        match e.index:
            case Apply(op="cast", args=(Apply(op="sub", args=(Apply(op="cast", args=(x,)), Const(value=first))),)):
                pass
            case _:
                return None
        if not dtypes.is_int(x.dtype) or dtypes.record(x.dtype).bits > 8:
            return None
        table = [0] * 256
        for n, value in enumerate(e.values):
            table[(n + int(first)) & 255] = int(value)
        return x, tuple(table)

    def linear(self, e: Expr) -> LinearForm | None:
        """`e` as a linear form of reductions and loads; None when it is none, or a value might wrap."""
        match e:
            case Const(value=value) if not dtypes.is_float(e.dtype):
                return LinearForm({}, np.asarray(int(value), np.int64), int(value), int(value))
            case Lookup(values=values, index=index) if index == self.channel and dtypes.is_int(e.dtype):
                return _constant(np.asarray(values, np.int64))
            case Load(buffer=buffer, index=index) if self.graph.buffers[buffer].role == "const":
                return self._constant_load(buffer, index)
            case Load() | Reduce() if dtypes.is_int(e.dtype):
                lo, hi = dtypes.int_range(e.dtype)
                return LinearForm({e: np.asarray(1, np.int64)}, np.asarray(0, np.int64), lo, hi)
            case Apply(op="cast" | "saturate", args=(a,)) if dtypes.is_int(e.dtype):
                made, (lo, hi) = self.linear(a), dtypes.int_range(e.dtype)
                return made if made is not None and lo <= made.low and made.high <= hi else None
            case Apply(op="add" | "sub", args=(a, b)):
                return _sum(self.linear(a), self.linear(b), 1 if e.op == "add" else -1)
            case Apply(op="mul", args=(a, b)):
                x, y = self.linear(a), self.linear(b)
                if x is None or y is None or (x.factors and y.factors):
                    return None
                return _product(x, y.offset) if x.factors else _product(y, x.offset)
        return None

    def _constant_load(self, buffer: str, index: tuple[Expr, ...]) -> LinearForm | None:
        if not dtypes.is_int(self.graph.buffers[buffer].type.dtype):
            return None
        array = self.graph.constant(buffer).astype(np.int64)
        axis = [d for d, i in enumerate(index) if i == self.channel]
        if len(axis) > 1 or any(not (isinstance(i, Const) or i == self.channel) for i in index):
            return None
        where = [int(i.value) if isinstance(i, Const) else slice(None) for i in index]
        return _constant(array[tuple(where)])


def _constant(values: Numbers) -> LinearForm:
    return LinearForm({}, values, int(values.min()), int(values.max()))


def _sum(a: LinearForm | None, b: LinearForm | None, sign: int) -> LinearForm | None:
    if a is None or b is None:
        return None
    factors = dict(a.factors)
    for term, factor in b.factors.items():
        factors[term] = factors.get(term, np.asarray(0, np.int64)) + sign * factor
    ends = (b.low, b.high) if sign > 0 else (-b.high, -b.low)
    return LinearForm(factors, a.offset + sign * b.offset, a.low + ends[0], a.high + ends[1])


def _product(a: LinearForm, by: Numbers) -> LinearForm | None:
    ends = [x * int(y) for x in (a.low, a.high) for y in (by.min(), by.max())]
    if max(map(abs, ends)) >= 1 << 62 or (int(np.abs(a.offset).max()) * int(np.abs(by).max())) >= 1 << 62:
        return None
    return LinearForm({t: f * by for t, f in a.factors.items()}, a.offset * by, min(ends), max(ends))

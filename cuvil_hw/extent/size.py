"""`Size`: an int that remembers what it was computed from, so that shape rules written for ints run unmodified.

While `Assumptions` are open, every comparison whose outcome the expressions alone don't decide is recorded: the way
that the code took holds for all sizes that keep them (the guards of torch's SymInt work so, too). Two things lose the
expression and leave a plain int: NumPy, and Python's own C functions such as `range`. What is then computed is right
at the sizes looked at only; `explore` looks at several sizes for that reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuvil_hw.extent.constraint import Compare
from cuvil_hw.extent.polynomial import Polynomial, Whole, whole


@dataclass(frozen=True)
class Assumption:
    """A comparison that held when the model was looked at, and where: layer and source."""

    rule: Compare
    where: str = ""

    def __str__(self) -> str:
        return f"{self.rule} ({self.where})" if self.where else str(self.rule)


@dataclass
class Assumptions:
    """In the order met, each rule once. `where`: the layer that is examined now."""

    found: dict[Compare, Assumption] = field(default_factory=dict)
    where: str = ""

    def add(self, rule: Compare) -> None:
        self.found.setdefault(rule, Assumption(rule, self.where))


_open: ContextVar[Assumptions | None] = ContextVar("assumptions", default=None)


@contextmanager
def recording() -> Iterator[Assumptions]:
    """Inside this context, comparisons of sizes are recorded."""
    assumptions = Assumptions()
    token = _open.set(assumptions)
    try:
        yield assumptions
    finally:
        _open.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Inside this context, no comparison is recorded."""
    token = _open.set(None)
    try:
        yield
    finally:
        _open.reset(token)


def at(where: str) -> None:
    """Inside this context, assumptions belong to this layer."""
    assumptions = _open.get()
    if assumptions is not None:
        assumptions.where = where


def pin(values: Sequence[Any]) -> None:
    """Record that the expressions of `values` are about to be lost: what follows holds only for their current
    numbers."""
    assumptions = _open.get()
    if assumptions is not None:
        for value in values:
            if isinstance(value, Size):
                assumptions.add(Compare("==", value.expr, whole(int(value))))


class Size(int):
    """An extent with the value `number` and the expression `expr`. Compares and hashes as its number."""

    expr: Polynomial

    def __new__(cls, number: int, expr: Polynomial) -> Size:
        size = super().__new__(cls, number)
        size.expr = expr
        return size

    def __add__(self, other: Any) -> Any:
        return _make(self, other, int.__add__, Polynomial.__add__)

    def __radd__(self, other: Any) -> Any:
        return _make(self, other, int.__add__, Polynomial.__add__)

    def __sub__(self, other: Any) -> Any:
        return _make(self, other, int.__sub__, Polynomial.__sub__)

    def __rsub__(self, other: Any) -> Any:
        return _make(self, other, int.__rsub__, Polynomial.__rsub__)

    def __mul__(self, other: Any) -> Any:
        return _make(self, other, int.__mul__, Polynomial.__mul__)

    def __rmul__(self, other: Any) -> Any:
        return _make(self, other, int.__mul__, Polynomial.__mul__)

    def __floordiv__(self, other: Any) -> Any:
        return _make(self, other, int.__floordiv__, Polynomial.__floordiv__)

    def __rfloordiv__(self, other: Any) -> Any:
        return _make(self, other, int.__rfloordiv__, Polynomial.__rfloordiv__)

    def __mod__(self, other: Any) -> Any:
        return _make(self, other, int.__mod__, Polynomial.__mod__)

    def __rmod__(self, other: Any) -> Any:
        return _make(self, other, int.__rmod__, Polynomial.__rmod__)

    def __neg__(self) -> Any:
        return _size(int.__neg__(self), -self.expr)

    def __pos__(self) -> Any:
        return self

    def __eq__(self, other: object) -> bool:
        return _compare(self, other, "==", int.__eq__)

    def __ne__(self, other: object) -> bool:
        return _compare(self, other, "!=", int.__ne__)

    def __lt__(self, other: Any) -> bool:
        return _compare(self, other, "<", int.__lt__)

    def __le__(self, other: Any) -> bool:
        return _compare(self, other, "<=", int.__le__)

    def __gt__(self, other: Any) -> bool:
        return _compare(self, other, ">", int.__gt__)

    def __ge__(self, other: Any) -> bool:
        return _compare(self, other, ">=", int.__ge__)

    def __bool__(self) -> bool:
        return _compare(self, 0, "!=", int.__ne__)

    def __hash__(self) -> int:
        return int.__hash__(self)


def of(extent: int) -> Whole:
    """The expression of a size; a plain int as it is."""
    return extent.expr if isinstance(extent, Size) else extent


def sized(number: int, expr: Whole) -> int:
    """`number` that remembers `expr`, when there is something to remember."""
    return _size(number, expr) if isinstance(expr, Polynomial) else number


def _size(number: int, expr: Polynomial) -> int:
    return number if expr.constant is not None else Size(number, expr)


def _make(a: Size, b: Any, number: Callable[[Any, Any], Any], expr: Callable[[Any, Any], Polynomial]) -> Any:
    if not isinstance(b, int):
        pin((a,))
        return number(a, b)
    value = number(a, b)
    return value if value is NotImplemented else _size(value, expr(a.expr, of(int(b) if isinstance(b, bool) else b)))


def _compare(a: Size, b: Any, op: str, number: Callable[[Any, Any], bool]) -> bool:
    held = number(a, b)
    assumptions = _open.get()
    if assumptions is None or held is NotImplemented or not isinstance(b, int):
        return held
    other = whole(of(b))
    if (a.expr - other).constant is None:
        rule = Compare(op, a.expr, other)
        assumptions.add(rule if held else rule.negated())
    return held


def stretches(extent: int, to: int) -> bool:
    """Whether an extent broadcasts to `to`: it equals it or is 1. Open sizes are compared last."""
    return of(extent) == 1 or of(extent) == of(to) or extent == to or extent == 1


def same(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are equal for all sizes. Records nothing; False may still mean equal for some sizes."""
    return len(a) == len(b) and all(of(x) == of(y) for x, y in zip(a, b, strict=True))


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """np.broadcast_shapes for sizes. Raises ValueError."""
    if not any(isinstance(e, Size) for shape in shapes for e in shape):
        return np.broadcast_shapes(*map(tuple, shapes))
    rank = max(map(len, shapes))
    result: list[int] = []
    for d in range(rank):
        extent = 1
        for shape in shapes:
            if d < rank - len(shape):
                continue
            e = shape[d - rank + len(shape)]
            if of(e) == 1 or of(e) == of(extent):
                continue
            # What is open is asked last: each question may split the domain.
            if of(extent) == 1 or (e != 1 and extent == 1):
                extent = e
            elif e != 1 and e != extent:
                raise ValueError(f"shapes {', '.join(map(str, shapes))} don't broadcast")
        result.append(extent)
    return tuple(result)


def clamped(start: int | None, stop: int | None, step: int, extent: int) -> tuple[int, int]:
    """(first element, count) that Python's slice start:stop:step takes from `extent` elements."""
    low, high = (0, extent) if step > 0 else (-1, extent - 1)

    def bounded(value: int | None, default: int) -> int:
        if value is None:
            return default
        if value < 0:
            value = value + extent
            return low if value < low else value
        return high if value > high else value

    first = bounded(start, low if step > 0 else high)
    end = bounded(stop, high if step > 0 else low)
    span = end - first if step > 0 else first - end
    if span <= 0:
        return first, 0
    return first, (span - 1) // abs(step) + 1

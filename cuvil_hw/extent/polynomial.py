"""Integer expressions over dimensions: an extent that isn't just a number.

An expression is a polynomial in normal form, so that equal polynomials are equal objects. Operations beyond polynomials
(floor division, remainder, minimum, maximum) are atoms in it, like dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Union

Whole = Union["Polynomial", int]


@dataclass(frozen=True)
class IntegerCall:
    """`op` of two expressions: "//" and "%" round towards minus infinity, as in Python; "min", "max"."""

    op: str
    a: Polynomial
    b: Polynomial

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.a}, {self.b})"
        return f"{_tight(self.a)} {self.op} {_tight(self.b)}"


Atom = str | IntegerCall
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Polynomial:
    """The sum of coefficient · product of atoms. `terms` is sorted and holds no zeros."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def constant(self) -> int | None:
        """Its value when it depends on no dimension."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Names of the dimensions in it."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                found |= {atom} if isinstance(atom, str) else atom.a.symbols | atom.b.symbols
        return frozenset(found)

    @property
    def name(self) -> str | None:
        """The dimension's name if the expression is a single dimension, else None."""
        return next(iter(self.symbols)) if self.symbols and self == symbol(next(iter(self.symbols))) else None

    def value(self, sizes: Mapping[str, int]) -> int:
        """Raises KeyError for a dimension without size, ZeroDivisionError."""
        total = 0
        for monomial, coefficient in self.terms:
            for atom in monomial:
                coefficient *= sizes[atom] if isinstance(atom, str) else _apply(atom, sizes)
            total += coefficient
        return total

    def linear(self) -> tuple[str, int, int] | None:
        """(name, a, b) when it is a·name + b with a ≠ 0."""
        if len(self.symbols) != 1:
            return None
        name = next(iter(self.symbols))
        a = dict(self.terms).get((name,), 0)
        rest = self - a * symbol(name)
        return (name, a, rest.constant) if a and rest.constant is not None else None

    def __add__(self, other: Whole) -> Polynomial:
        return _sum([*self.terms, *whole(other).terms])

    def __sub__(self, other: Whole) -> Polynomial:
        return self + whole(other) * -1

    def __mul__(self, other: Whole) -> Polynomial:
        right = whole(other).terms
        return _sum((tuple(sorted((*m, *n), key=str)), a * b) for m, a in self.terms for n, b in right)

    def __floordiv__(self, other: Whole) -> Polynomial:
        by = whole(other)
        quotient = self.divided(by)
        if quotient is not None:
            return quotient
        n = by.constant
        inner = self.terms[0][0][0] if len(self.terms) == 1 and len(self.terms[0][0]) == 1 else None
        if isinstance(inner, IntegerCall) and inner.op == "//" and self.terms[0][1] == 1 and n is not None and n > 0:
            m = inner.b.constant
            if m is not None and m > 0:  # (a // m) // n = a // (m·n)
                return inner.a // (m * n)
        if n is not None and n > 0:  # (a + k·n) // n = a // n + k
            multiples = _sum((m, c // n) for m, c in self.terms)
            rest = self - multiples * n
            if multiples.terms:
                return multiples + rest // n if rest.terms else multiples
            if rest.constant is not None:
                return whole(rest.constant // n)
        return _atom("//", self, by)

    def __mod__(self, other: Whole) -> Polynomial:
        by = whole(other)
        if self.divided(by) is not None:
            return whole(0)
        n = by.constant
        if n is not None and n > 0:
            rest = _sum((m, c % n) for m, c in self.terms)
            return rest if rest.constant is not None else _atom("%", rest, by)
        return _atom("%", self, by)

    def divided(self, by: Polynomial) -> Polynomial | None:
        """The quotient if every term is a multiple of `by`, which has one term; else None."""
        if len(by.terms) != 1:
            return whole(1) if by.terms and self == by else None
        divisor, n = by.terms[0]
        terms = []
        for monomial, coefficient in self.terms:
            rest = list(monomial)
            for atom in divisor:
                if atom not in rest:
                    return None
                rest.remove(atom)
            if coefficient % n:
                return None
            terms.append((tuple(rest), coefficient // n))
        return _sum(terms)

    def smallest(self, other: Whole) -> Polynomial:
        return self._extreme("min", whole(other))

    def largest(self, other: Whole) -> Polynomial:
        return self._extreme("max", whole(other))

    def _extreme(self, op: str, other: Polynomial) -> Polynomial:
        apart = (self - other).constant
        if apart is not None:
            return self if (apart <= 0) == (op == "min") else other
        return _atom(op, *sorted((self, other), key=str))

    def __radd__(self, other: int) -> Polynomial:
        return self + other

    def __rsub__(self, other: int) -> Polynomial:
        return whole(other) - self

    def __rmul__(self, other: int) -> Polynomial:
        return self * other

    def __rfloordiv__(self, other: int) -> Polynomial:
        return whole(other) // self

    def __rmod__(self, other: int) -> Polynomial:
        return whole(other) % self

    def __neg__(self) -> Polynomial:
        return self * -1

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts: list[str] = []
        for monomial, coefficient in sorted(self.terms, key=lambda t: (not t[0], -len(t[0]), str(t[0]))):
            factors = [_factor(a) for a in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            text = "*".join(factors)
            if len(monomial) == 1 and abs(coefficient) == 1 and len(self.terms) == 1 and coefficient > 0:
                text = str(monomial[0])
            sign = "-" if coefficient < 0 else "+"
            parts.append(f" {sign} {text}" if parts else f"-{text}" if sign == "-" else text)
        return "".join(parts)

    def __repr__(self) -> str:
        return f"Expr({self})"


def symbol(name: str) -> Polynomial:
    """The dimension called `name`."""
    return Polynomial((((name,), 1),))


def whole(value: Whole) -> Polynomial:
    """A number as an expression; an expression as it is."""
    if isinstance(value, Polynomial):
        return value
    value = int(value)
    return Polynomial((((), value),)) if value else Polynomial(())


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
    found: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        found[monomial] = found.get(monomial, 0) + coefficient
    return Polynomial(tuple(sorted(((m, c) for m, c in found.items() if c), key=lambda t: [str(a) for a in t[0]])))


def _atom(op: str, a: Polynomial, b: Polynomial) -> Polynomial:
    if a.constant is not None and b.constant is not None and (b.constant or op in ("min", "max")):
        return whole(_apply(IntegerCall(op, a, b), {}))
    return Polynomial((((IntegerCall(op, a, b),), 1),))


def _apply(call: IntegerCall, sizes: Mapping[str, int]) -> int:
    a, b = call.a.value(sizes), call.b.value(sizes)
    match call.op:
        case "//":
            return a // b
        case "%":
            return a % b
        case "min":
            return min(a, b)
        case _:
            return max(a, b)


def _tight(e: Polynomial) -> str:
    text = str(e)
    return text if e.constant is not None or e.name is not None else f"({text})"


def _factor(atom: Atom) -> str:
    return str(atom) if isinstance(atom, str) or atom.op in ("min", "max") else f"({atom})"

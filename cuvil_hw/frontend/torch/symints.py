"""torch's symbolic extents (sympy) as expressions over our dimensions."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational
from torch.utils._sympy import functions as torch_sympy

from cuvil_hw.extent.constraint import OPPOSITE, Compare
from cuvil_hw.extent.polynomial import Polynomial, Whole, whole

Symbols = Mapping[Any, Polynomial]  # sympy symbol → ours
_RELATIONS = {
    sympy.Eq: "==", sympy.Ne: "!=", sympy.Lt: "<", sympy.Le: "<=", sympy.Gt: ">", sympy.Ge: ">=",
}  # fmt: skip
_FLOOR = tuple(getattr(torch_sympy, n) for n in ("FloorDiv", "CleanDiv", "IntTrueDiv") if hasattr(torch_sympy, n))
_MOD = tuple(getattr(torch_sympy, n) for n in ("Mod", "PythonMod") if hasattr(torch_sympy, n))


class Unfollowed(Exception):
    """A sympy expression has no form as one of ours (extent/polynomial.py)."""


def symint(value: Any) -> Any:
    """sympy of a torch.SymInt; a plain int as it is."""
    return value.node.expr if isinstance(value, torch.SymInt) else value


def expression(value: Any, symbols: Symbols) -> Polynomial:
    """Raises Unfollowed."""
    if isinstance(value, int | sympy.Integer):
        return whole(int(value))
    if value in symbols:
        return symbols[value]
    match value:
        case sympy.Add():
            return reduce(lambda a, b: a + b, (expression(a, symbols) for a in value.args))
        case sympy.Mul():
            return reduce(lambda a, b: a * b, (expression(a, symbols) for a in value.args))
        case sympy.Pow() if isinstance(value.exp, sympy.Integer) and 0 < int(value.exp) < 8:
            return reduce(lambda a, b: a * b, [expression(value.base, symbols)] * int(value.exp))
    args = [expression(a, symbols) for a in value.args]
    if isinstance(value, _FLOOR) and len(args) == 2:
        return args[0] // args[1]
    if isinstance(value, _MOD) and len(args) == 2:
        return args[0] % args[1]
    if isinstance(value, (sympy.Max, torch_sympy.Max)):
        return reduce(lambda a, b: a.largest(b), args)
    if isinstance(value, (sympy.Min, torch_sympy.Min)):
        return reduce(lambda a, b: a.smallest(b), args)
    raise Unfollowed(str(value))


def rules(guard: Any, symbols: Symbols) -> list[Compare]:
    """The comparisons that a guard which holds consists of. Raises Unfollowed."""
    if guard is True or guard == sympy.true:
        return []
    if isinstance(guard, sympy.And):
        return [r for a in guard.args for r in rules(a, symbols)]
    if isinstance(guard, sympy.Not):
        inner = rules(guard.args[0], symbols)
        if len(inner) == 1:
            return [Compare(OPPOSITE[inner[0].op], inner[0].a, inner[0].b)]
    if isinstance(guard, Relational):
        for kind, op in _RELATIONS.items():
            if isinstance(guard, kind):
                return [Compare(op, expression(guard.lhs, symbols), expression(guard.rhs, symbols))]
    raise Unfollowed(str(guard))


@contextmanager
def honest_sizes() -> Iterator[None]:
    """torch.SymInt as Python's int where it is not: rounded to tens it is wrong, and as a text it is the symbol's name.
    There the size becomes its number, which is recorded as a guard."""
    kind: Any = torch.SymInt
    saved = {name: vars(kind).get(name) for name in ("__round__", "__format__", "__str__", "__repr__")}

    def rounded(size: Any, digits: Any = None) -> Any:
        return size if digits is None or digits >= 0 else round(int(size), digits)

    def text(name: str) -> Any:
        original = getattr(kind, name)

        def shown(size: Any, *spec: Any) -> Any:
            # Texts that torch makes, of graphs and for its log, are about the symbol.
            users = not sys._getframe(1).f_code.co_filename.startswith(_LIBRARIES)
            return getattr(int(size), name)(*spec) if users else original(size, *spec)

        return shown

    kind.__round__ = rounded
    for name in ("__format__", "__str__", "__repr__"):
        setattr(kind, name, text(name))
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                delattr(kind, name)
            else:
                setattr(kind, name, value)


_LIBRARIES = ("<", __file__, *(str(Path(sysconfig.get_path(p))) + "/" for p in ("stdlib", "purelib", "platlib")))


def extent(value: Any, symbols: Symbols) -> Whole:
    """One of a fake tensor's extents. Raises Unfollowed."""
    found = expression(symint(value), symbols)
    return found if found.constant is None else found.constant

"""Padding as a condition around what a sum takes from its input, and as a value that has the same effect."""

from __future__ import annotations

from cuvil_hw.expr.nodes import Apply, Const, Expr, Load, Select
from cuvil_hw.expr.traverse import rewrite, walk
from cuvil_hw.types import TensorType


def _bounds_only(cond: Expr, load: Load, source: TensorType) -> bool:
    """Whether `cond` says nothing but that the load lies inside its buffer."""
    match cond:
        case Apply(op="and", args=(a, b)):
            return _bounds_only(a, load, source) and _bounds_only(b, load, source)
        case Apply(op="ge", args=(i, Const(value=0))):
            return i in load.index
        case Apply(op="lt", args=(i, Const(value=end))):
            return any(i == at and end == size for at, size in zip(load.index, source.shape, strict=True))
    return False


def split_guard(update: Expr, load: Load, source: TensorType | None, leaves: bool) -> tuple[Expr | None, int | float]:
    """The update without its guard, and the value outside the input that has the same effect as the guard. `source`:
    None where the guard may be any condition on positions."""
    guards = [e for e in walk(update) if isinstance(e, Select) and any(n is load or n == load for n in walk(e.then))]
    guards = [g for g in guards if not any(n == load for n in walk(g.cond))]
    if not guards:
        return (None, 0) if leaves else (update, 0)
    guard = guards[0]
    if not isinstance(guard.other, Const) or (source and not _bounds_only(guard.cond, load, source)):
        return None, 0
    value = _neutral(guard.then, load, guard.other.value)
    if value is None and leaves:
        return None, 0
    return rewrite(update, lambda e: guard.then if e is guard else None), value or 0


def _neutral(e: Expr, load: Load, wanted: float | int | bool) -> int | float | None:
    """A value of `load` for which `e` is `wanted`, whatever the constants are."""
    if e == load:
        return wanted
    match e:
        case Apply(op="cast", args=(a,)):
            return _neutral(a, load, wanted)
        case Apply(op="sub", args=(a, Const(value=c))):
            return _neutral(a, load, wanted + c)
        case Apply(op="mul", args=(a, b)) if wanted == 0:
            return _neutral(a, load, 0) if any(n == load for n in walk(a)) else _neutral(b, load, 0)
    return None

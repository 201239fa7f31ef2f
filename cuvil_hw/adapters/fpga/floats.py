"""Floats on a fabric: which operator cores an expression takes, and how long a running value waits for itself.

A sum of floats can't be split into several without another rounding, so each of its additions waits for the one before.
What a core takes and how many cycles it needs differs between families: tables of `FloatCore` in their adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cuvil_hw import dtypes
from cuvil_hw.ir.expr import COMPARISONS, Apply, Expr, Load, Reduce, State


@dataclass(frozen=True, slots=True)
class FloatCore:
    """A pipelined f32 operator. `lut`: in LUTs of six inputs; `cycles`: from its operands to its result."""

    dsp: float
    lut: float
    ff: float
    cycles: int


Cores = Mapping[str, FloatCore]
# The cores of every table of a family.
CORES = ("add", "mul", "div", "sqrt", "exp", "log", "compare", "round", "to_float", "to_int")
_STEP = ("mul", "add")  # of a polynomial
# What functions without a core of their own are made of: planning figures, no vendor's implementation.
_MADE_OF: Mapping[str, tuple[str, ...]] = {
    "sub": ("add",), "min": ("compare", "compare"), "max": ("compare", "compare"), "isnan": ("compare",),
    "isinf": ("compare",), "floor": ("round",), "ceil": ("round",), "sigmoid": ("exp", "add", "div"),
    "tanh": ("exp", "add", "add", "div"), "erf": ("exp", "div", *_STEP * 5), "sin": ("round", *_STEP * 6),
    "cos": ("round", *_STEP * 6), "tan": ("round", *_STEP * 12, "div"), "atan": ("div", *_STEP * 6),
    "pow": ("log", "mul", "exp"), "log1p": ("add", "log"), "expm1": ("exp", "add"),
    "mod": ("div", "round", "mul", "add", "compare"), "rem": ("div", "round", "mul", "add"),
    "neg": (), "abs": (),
}  # fmt: skip


def cores(e: Expr) -> tuple[str, ...]:
    """Names of the cores that one node takes, one after the other; none for what isn't on floats."""
    if not isinstance(e, Apply):
        return ()
    real = dtypes.is_float(e.args[0].dtype)
    if e.op == "cast":
        if real == dtypes.is_float(e.dtype):
            return ()
        return ("compare", "to_int") if real else ("to_float",)
    if not real:
        return ()
    if e.op in COMPARISONS:
        return ("compare",)
    return _MADE_OF.get(e.op, (e.op,))


def counted(nodes: Iterable[Expr], fused: bool) -> dict[str, int]:
    """How many of each core; with `fused` an addition and a product are one."""
    found: dict[str, int] = {}
    for node in nodes:
        for name in cores(node):
            found[name] = found.get(name, 0) + 1
    if fused and "mul" in found:
        found["mul"] = max(0, found["mul"] - found.get("add", 0))
    return found


def latency(e: Expr, table: Cores) -> int:
    """Cycles through the float cores of an expression, its leaves at hand."""
    return _path(e, table, {}, lambda n: 0 if not n.children() or isinstance(n, Load | Reduce) else None)


def recurrence(reduce: Reduce, table: Cores) -> int:
    """Cycles from running values to those after one step; 0 when no float core lies between."""
    memo: dict[int, int] = {}

    def known(n: Expr) -> int | None:
        return 0 if isinstance(n, State) else -1 if not n.children() or isinstance(n, Load) else None

    return max(0, *(_path(u, table, memo, known) for u in reduce.update))


def _path(e: Expr, table: Cores, memo: dict[int, int], known: Callable[[Expr], int | None]) -> int:
    """The longest way from nodes for which `known` gives a number; -1 without a way."""
    if id(e) not in memo:
        start = known(e)
        if start is None:
            start = max((_path(c, table, memo, known) for c in e.children()), default=-1)
            start += sum(table[name].cycles for name in cores(e)) if start >= 0 else 0
        memo[id(e)] = start
    return memo[id(e)]

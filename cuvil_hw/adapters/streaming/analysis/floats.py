"""Floats on a fabric: which operator cores an expression takes, and how long a running value waits for itself.

A sum of floats can't be split into several without another rounding, so each of its additions waits for the one before.
What a core takes and how many cycles it needs differs between families: tables of `FloatCore` in their adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Apply, Expr, Load, Reduce, State
from cuvil_hw.expr.scalar import column


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
    taken: tuple[str, ...] = column(e.op, "cores", "an FPGA's floats")
    return taken


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

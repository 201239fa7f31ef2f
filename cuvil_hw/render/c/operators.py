"""C operators and helper functions by level2 op."""

from __future__ import annotations

from collections.abc import Mapping

from cuvil_hw.expr.scalar import SCALARS
from cuvil_hw.render.c.scalar import AND, BOTH, EITHER, EQUAL, OR, PLUS, TIMES, XOR

_RING = {"+": PLUS, "-": PLUS, "*": TIMES, "&": AND, "|": OR, "^": XOR}
_FIELD = {"+": PLUS, "-": PLUS, "*": TIMES, "/": TIMES}
# Operators that give the right result modulo 2^bits from operands that are right modulo 2^bits.
RING: Mapping[str, tuple[str, int]] = {
    row.signed: (row.c, _RING[row.c]) for row in SCALARS.values() if row.signed and row.c and row.c in _RING
}
LOGIC: Mapping[str, tuple[str, int]] = {
    "arith.andi": ("&&", BOTH), "arith.ori": ("||", EITHER), "arith.xori": ("!=", EQUAL),
    "arith.addi": ("!=", EQUAL), "arith.subi": ("!=", EQUAL), "arith.muli": ("&&", BOTH),
    "arith.maxui": ("||", EITHER), "arith.minui": ("&&", BOTH),
    "arith.maxsi": ("&&", BOTH), "arith.minsi": ("||", EITHER),  # true is -1
}  # fmt: skip
FLOAT: Mapping[str, tuple[str, int]] = {
    row.real: (row.c, _FIELD[row.c])
    for row in SCALARS.values()
    if row.real and row.signed and row.c and row.c in _FIELD
}
# Helper functions by op: {n} is the name, {T} the type of both operands and the result.
HELPERS: Mapping[str, str] = {
    "arith.maxsi": "return a > b ? a : b;",
    "arith.minsi": "return a < b ? a : b;",
    "arith.floordivsi": "return a / b - (a % b != 0 && (a < 0) != (b < 0));",
    "arith.ceildivsi": "return a / b + (a % b != 0 && (a < 0) == (b < 0));",
    "arith.maximumf": "return a > b || a != a ? a : b;",
    "arith.minimumf": "return a < b || a != a ? a : b;",
}
UNSIGNED_HELPERS: Mapping[str, str] = {
    "arith.maxui": "return a > b ? a : b;",
    "arith.minui": "return a < b ? a : b;",
    "arith.ceildivui": "return a / b + (a % b != 0);",
}

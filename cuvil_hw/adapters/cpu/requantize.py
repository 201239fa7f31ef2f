"""The requantization behind a sum of integers, found in a kernel's body, as one op on vectors."""

from __future__ import annotations

from dataclasses import dataclass

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Lookup, Reduce
from cuvil_hw.expr.traverse import walk


@dataclass(frozen=True, slots=True)
class Rescaled:
    """`node` of a body: saturate(((sum · multiplier + offset) >> shift) + zero).

    Attributes:
        multipliers: one, or one for each lane.
        even: bit `shift` of the product is added, too, which rounds ties to even.
    """

    node: Expr
    multipliers: tuple[int, ...]
    offset: int
    shift: int
    zero: int
    even: bool

    @property
    def limits(self) -> tuple[int, int]:
        return dtypes.int_range(self.node.dtype)


def rescaled(body: Expr, lane: Iter) -> Rescaled | None:
    """The requantization of the body's sum; None where there is none, or its numbers don't fit the op (of 32 bits but
    the offset). The products fit 64 bits, as they do in the body."""
    inside = {id(n) for x in walk(body) if isinstance(x, Lookup | Load) for i in x.children() for n in walk(i)}
    for node in walk(body):
        if isinstance(node, Apply) and node.op == "saturate" and (found := _match(node, lane)) is not None:
            return found if id(node) not in inside else None  # a table's index is computed apart
    return None


def _match(node: Apply, lane: Iter) -> Rescaled | None:
    value, zero = _plus(node.args[0])
    if not (isinstance(value, Apply) and value.op == "shr" and isinstance(value.args[1], Const)):
        return None
    shift = int(value.args[1].value)
    value, even = _tie(value.args[0], shift)
    value, offset = _plus(value)
    if not (isinstance(value, Apply) and value.op == "mul" and 1 <= shift < 64):
        return None
    total, by = value.args
    while isinstance(total, Apply) and total.op == "cast":
        total = total.args[0]
    match by:
        case Const(value=number):
            multipliers: tuple[int, ...] = (int(number),)
        case Lookup(values=values, index=index) if index == lane:
            multipliers = tuple(int(v) for v in values)
        case _:
            return None
    low, high = dtypes.int_range("i32")
    small = all(low <= m <= high for m in multipliers) and dtypes.record(node.dtype).bits <= 16
    wide = dtypes.record(value.dtype).bits <= 64
    return (
        Rescaled(node, multipliers, offset, shift, zero, even) if isinstance(total, Reduce) and small and wide else None
    )


def _plus(x: Expr) -> tuple[Expr, int]:
    """A value, and the constant that is added to it."""
    if isinstance(x, Apply) and x.op == "add" and isinstance(x.args[1], Const):
        return x.args[0], int(x.args[1].value)
    return x, 0


def _tie(x: Expr, shift: int) -> tuple[Expr, bool]:
    """`value + offset + ((value >> shift) & 1)` without the last bit."""
    match x:
        case Apply(
            op="add",
            args=(rest, Apply(op="and", args=(Apply(op="shr", args=(value, Const(value=by))), Const(value=1)))),
        ) if by == shift and _plus(rest)[0] == value:
            return rest, True
    return x, False

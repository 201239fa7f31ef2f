"""What one step of a process computes, as a graph of whole numbers of known ranges.

A node is a number as mathematics has it; only `wrap` cuts one to so many bits. Its range, which is exact interval
arithmetic from the leaves on, says how many bits it takes. Equal nodes are one node. `sum` has a sign for each term.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Terms = Sequence[tuple[int, "Signal"]]


class Signal:
    """A number from `lo` to `hi`. `data`: what the op needs beside its arguments; `number`: arguments have lower
    ones."""

    __slots__ = ("args", "data", "hi", "lo", "number", "op")

    def __init__(self, op: str, args: tuple[Signal, ...], lo: int, hi: int, data: Any, number: int) -> None:
        self.op, self.args, self.lo, self.hi, self.data, self.number = op, args, lo, hi, data, number

    @property
    def signed(self) -> bool:
        return self.lo < 0

    @property
    def bits(self) -> int:
        """The fewest bits that hold it: two's complement where it may be negative."""
        return bits_for(self.lo, self.hi)

    @property
    def value(self) -> int | None:
        """Of a constant."""
        return self.lo if self.op == "const" else None

    def __repr__(self) -> str:
        return f"%{self.number}={self.op}({', '.join(f'%{a.number}' for a in self.args)}){self.data or ''}"


def bits_for(lo: int, hi: int) -> int:
    if lo >= 0:
        return max(hi.bit_length(), 1)
    return max((~lo).bit_length(), hi.bit_length() if hi > 0 else 0) + 1


def word_range(bits: int, signed: bool = True) -> tuple[int, int]:
    """Of the numbers that `bits` bits hold; one bit is a truth value, 0 or 1."""
    if bits == 1 or not signed:
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def cut(value: int, bits: int, signed: bool = True) -> int:
    """The number that the low `bits` bits of another one are."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and bits > 1 and value >> (bits - 1) else value


class Graph:
    """Makes nodes; what is known beforehand is folded."""

    def __init__(self) -> None:
        self._known: dict[Any, Signal] = {}

    def node(self, op: str, args: tuple[Signal, ...], lo: int, hi: int, data: Any = None) -> Signal:
        key = (op, args, data)
        if op in ("const", "leaf"):
            key = (op, args, (lo, data))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Signal(op, args, lo, hi, data, len(self._known))
        return found

    def const(self, value: int) -> Signal:
        return self.node("const", (), value, value)

    def leaf(self, lo: int, hi: int, data: Any) -> Signal:
        """Something that a step finds: a lane of a word that was read (`("word", stream, lane)`) or what a register
        holds (`("state", name)`)."""
        return self.node("leaf", (), lo, hi, data)

    def load(self, address: Signal, lo: int, hi: int, data: Any) -> Signal:
        """A lane of a memory's word: `("rom" | "ram", name, lane)`."""
        return self.node("load", (address,), lo, hi, data)

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def total(self, terms: Iterable[tuple[int, Signal]]) -> Signal:
        """The sum of terms, each with its sign."""
        kept, base = [], 0
        for sign, term in terms:
            if term.value is not None:
                base += sign * term.value
            else:
                kept.append((sign, term))
        if not kept:
            return self.const(base)
        if base:
            kept.append((1, self.const(base)))
        if len(kept) == 1 and kept[0][0] > 0:
            return kept[0][1]
        lo = sum(t.lo if s > 0 else -t.hi for s, t in kept)
        hi = sum(t.hi if s > 0 else -t.lo for s, t in kept)
        return self.node("sum", tuple(t for _, t in kept), lo, hi, tuple(s for s, _ in kept))

    def add(self, a: Signal, b: Signal) -> Signal:
        return self.total([(1, a), (1, b)])

    def sub(self, a: Signal, b: Signal) -> Signal:
        return self.const(0) if a is b else self.total([(1, a), (-1, b)])

    def mul(self, a: Signal, b: Signal, data: Any = None) -> Signal:
        """`data`: what makes the product, "dsp" or "lut"."""
        if a.value is not None:
            a, b = b, a
        if b.value is not None:
            if a.value is not None:
                return self.const(a.value * b.value)
            if b.value in (0, 1):
                return b if b.value == 0 else a
        elif a.number > b.number:
            a, b = b, a
        ends = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        lo = max(min(ends), 0) if a is b else min(ends)
        return self.node("mul", (a, b), lo, max(ends), data)

    def wrap(self, x: Signal, bits: int, signed: bool = True) -> Signal:
        """The number that the low `bits` bits of `x` are."""
        lo, hi = word_range(bits, signed)
        if lo <= x.lo and x.hi <= hi:
            return x
        if x.value is not None:
            return self.const(cut(x.value, bits, signed))
        if x.op == "wrap" and x.data[0] >= bits:
            return self.wrap(x.args[0], bits, signed)
        return self.node("wrap", (x,), lo, hi, (bits, signed))

    def shift_right(self, x: Signal, by: Signal) -> Signal:
        """⌊x / 2^by⌋; `by` isn't negative."""
        if by.value is not None:
            if x.value is not None:
                return self.const(x.value >> by.value)
            if by.value == 0:
                return x
        ends = [v >> s for v in (x.lo, x.hi) for s in (max(by.lo, 0), max(by.hi, 0))]
        return self.node("shr", (x, by), min(ends), max(ends))

    def floor_divided(self, x: Signal, by: int) -> Signal:
        """⌊x / by⌋ of a positive constant: a shift, or a product with 2^n / by and a shift, n large enough to be
        exact."""
        if by & (by - 1) == 0:
            return self.shift_right(x, self.const(by.bit_length() - 1))
        up = -(x.lo // by) if x.lo < 0 else 0  # makes it positive
        positive = self.add(x, self.const(up * by))
        n = by.bit_length()
        while positive.hi * (-(1 << n) % by) >= 1 << n:
            n += 1
        quotient = self.shift_right(self.mul(positive, self.const(-(-(1 << n) // by))), self.const(n))
        return self.sub(quotient, self.const(up))

    def shift_left(self, x: Signal, by: Signal, most: int) -> Signal:
        """x · 2^by; `by` is from 0 to `most`."""
        if by.value is not None:
            return self.mul(x, self.const(1 << by.value))
        by = self.wrap(by, most.bit_length(), False)
        return self.node("shl", (x, by), min(x.lo << by.hi, x.lo), max(x.hi << by.hi, x.hi))

    # -- bits ----------------------------------------------------------------------------------------------------------

    def bitwise(self, op: str, a: Signal, b: Signal) -> Signal:
        """`and`, `or`, `xor` of two's complements without end."""
        if a.value is not None and b.value is not None:
            x, y = a.value, b.value
            return self.const({"and": x & y, "or": x | y, "xor": x ^ y}[op])
        if a.number > b.number:
            a, b = b, a
        if a is b:
            return self.const(0) if op == "xor" else a
        if a.value is not None:
            a, b = b, a
        if b.value == 0:
            return b if op == "and" else a
        flag = a.lo >= 0 and a.hi <= 1 and b.lo >= 0 and b.hi <= 1
        if flag:
            if b.value == 1:
                return {"and": a, "or": b, "xor": self.invert(a)}[op]
            if op != "xor" and self.invert(a) is b:
                return self.const(0 if op == "and" else 1)
        bits = max(bits_for(min(a.lo, 0) - 1, a.hi), bits_for(min(b.lo, 0) - 1, b.hi))
        lo, hi = word_range(bits)
        if a.lo >= 0 and b.lo >= 0:
            lo, hi = 0, (1 << max(a.bits, b.bits)) - 1
        if op == "and" and (a.lo >= 0 or b.lo >= 0):
            lo, hi = 0, min(n.hi for n in (a, b) if n.lo >= 0)
        return self.node(op, (a, b), lo, hi)

    def invert(self, a: Signal) -> Signal:
        """Of a truth value."""
        if a.value is not None:
            return self.const(1 - a.value)
        if a.op == "not":
            return a.args[0]
        if a.op == "lt":
            return self.node("lt", (a.args[0], a.args[1]), 0, 1, not a.data)
        return self.node("not", (a,), 0, 1)

    def both(self, conditions: Iterable[Signal]) -> Signal:
        result = self.const(1)
        for c in conditions:
            result = self.bitwise("and", result, c)
        return result

    def either(self, conditions: Iterable[Signal]) -> Signal:
        result = self.const(0)
        for c in conditions:
            result = self.bitwise("or", result, c)
        return result

    # -- choices -------------------------------------------------------------------------------------------------------

    def equal(self, a: Signal, b: Signal) -> Signal:
        if a is b:
            return self.const(1)
        if a.hi < b.lo or b.hi < a.lo:
            return self.const(0)
        if a.number > b.number:
            a, b = b, a
        if b.value is None and a.value is not None:
            a, b = b, a
        if b.value in (0, 1) and a.lo >= 0 and a.hi <= 1:
            return a if b.value else self.invert(a)
        return self.node("eq", (a, b), 0, 1)

    def less(self, a: Signal, b: Signal) -> Signal:
        """a < b. Its inverse is the same node with `data` True."""
        if a.hi < b.lo:
            return self.const(1)
        if a.lo >= b.hi:
            return self.const(0)
        return self.node("lt", (a, b), 0, 1, False)

    def select(self, c: Signal, a: Signal, b: Signal) -> Signal:
        """`a` where `c`, else `b`."""
        if c.value is not None:
            return a if c.value else b
        if c.op == "not":
            c, a, b = c.args[0], b, a
        if a.op == "select" and a.args[0] is c:
            a = a.args[1]
        if b.op == "select" and b.args[0] is c:
            b = b.args[2]
        if a is b:
            return a
        # Choices of choices become one: a condition is a bit, and made beside what is chosen.
        if a.op == "select" and a.args[2] is b:
            return self.select(self.bitwise("and", c, a.args[0]), a.args[1], b)
        if b.op == "select" and b.args[1] is a:
            return self.select(self.bitwise("or", c, b.args[0]), a, b.args[2])
        if (a.value, b.value) == (1, 0):
            return c
        if (a.value, b.value) == (0, 1):
            return self.invert(c)
        return self.node("select", (c, a, b), min(a.lo, b.lo), max(a.hi, b.hi))

    def clip(self, x: Signal, lo: int, hi: int) -> Signal:
        low, high = self.const(lo), self.const(hi)
        inner = self.select(self.less(high, x), high, x)
        clipped = self.select(self.less(x, low), low, inner)
        return self.within(clipped, max(lo, min(x.lo, hi)), min(hi, max(x.hi, lo)))

    def within(self, x: Signal, lo: int, hi: int) -> Signal:
        """`x`, of which the caller knows that it is from `lo` to `hi`: the range of a choice doesn't know its
        condition."""
        lo, hi = max(lo, x.lo), min(hi, x.hi)
        if x.value is not None or (lo, hi) == (x.lo, x.hi):
            return x
        return self.node("within", (x,), lo, hi)

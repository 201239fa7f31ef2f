"""Counters that a flat loop keeps between its steps, in place of nested loops.

Each returns to where it started by the end of a sample, so that the next sample may follow without a break.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from cuvil_hw.lower.emit import Emitter


class Register:
    """A number below `extent`, first `start`. One that can only be 0 takes no memory."""

    def __init__(self, e: Emitter, name: str, extent: int, start: int = 0) -> None:
        self._e, self.extent, self.start = e, extent, start
        self._dtype = f"i{(2 * extent - 2).bit_length() + 1}"  # holds what `advance` adds up, too
        self._memory = None
        if extent > 1:
            self._memory = e.alloca((), self._dtype, name)
            self.reset()

    def index(self) -> SSAValue:
        """Its value as an index."""
        zero = self._e.const(0, "index")
        return zero if self._memory is None else self._e.put(arith.IndexCastOp(self._e.load(self._memory), zero.type))

    def reset(self) -> None:
        if self._memory is not None:
            self._e.store(self._e.const(self.start, self._dtype), self._memory)

    def is_first(self) -> SSAValue:
        """Whether it is 0."""
        if self._memory is None:
            return self._e.const(True, "bool")
        return self._e.compare("eq", self._e.load(self._memory), self._e.const(0, self._dtype))

    def is_last(self) -> SSAValue:
        """Whether it is extent - 1."""
        if self._memory is None:
            return self._e.const(True, "bool")
        return self._e.compare("eq", self._e.load(self._memory), self._e.const(self.extent - 1, self._dtype))

    def increase(self) -> None:
        """Add 1 to what is not the last value."""
        if self._memory is not None:
            one = self._e.const(1, self._dtype)
            self._e.store(self._e.put(arith.AddiOp(self._e.load(self._memory), one)), self._memory)

    def advance(self, by: int) -> SSAValue:
        """Add `by`, less than the extent, modulo the extent. Returns whether it wrapped."""
        e = self._e
        if self._memory is None:
            return e.const(True, "bool")
        more = e.put(arith.AddiOp(e.load(self._memory), e.const(by, self._dtype)))
        end = e.const(self.extent, self._dtype)
        wraps = e.compare("ge", more, end, self._dtype)
        e.store(e.put(arith.SelectOp(wraps, e.put(arith.SubiOp(more, end)), more)), self._memory)
        return wraps


def count(e: Emitter, digits: Sequence[Register], wrapped: Mapping[int, Callable[[], object]] | None = None) -> None:
    """Add 1 to a number whose digits are `digits`, the highest first. `wrapped`: what else happens when a digit
    returns to 0, by its place."""
    if not digits:
        return
    last, rest = digits[-1], digits[:-1]

    def carry() -> None:
        last.reset()
        if wrapped and len(rest) in wrapped:
            wrapped[len(rest)]()
        count(e, rest, wrapped)

    if last.extent == 1:
        carry()
    else:
        e.branch(last.is_last(), carry, last.increase)

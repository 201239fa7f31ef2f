"""Sums of products by constants as graphs of additions: what `cuvil.level2.add_products` computes.

A graph is a table of integers, so that it is kept and found as every other constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Addition:
    """(a << a_shift) + sign · (b << b_shift). Values are numbered: the inputs, then the sums."""

    a: int
    a_shift: int
    b: int
    b_shift: int
    sign: int


@dataclass(frozen=True)
class Adders:
    """Outputs (value, shift, sign), or None for one that is always 0, of `inputs` numbers in `span`."""

    inputs: int
    span: Range
    sums: tuple[Addition, ...]
    outputs: tuple[tuple[int, int, int] | None, ...]

    @cached_property
    def spans(self) -> tuple[Range, ...]:
        """Least and largest number of every value."""
        found = [self.span] * self.inputs
        for s in self.sums:
            (a, b), (c, d) = (_scaled(found[n], by) for n, by in ((s.a, s.a_shift), (s.b, s.b_shift)))
            found.append((a + c, b + d) if s.sign > 0 else (a - d, b - c))
        return tuple(found)

    def bits(self, value: int) -> int:
        """Of a value, as a signed number."""
        return _bits(*self.spans[value])

    @cached_property
    def adder_bits(self) -> int:
        """Full adders of all sums: low bits of one side, where the other has none, pass by."""
        total = 0
        for n, s in enumerate(self.sums, self.inputs):
            total += self.bits(n) - (s.b_shift if not s.a_shift else s.a_shift if s.sign > 0 else 0)
        return total

    @cached_property
    def sum_bits(self) -> int:
        """Bits of all sums."""
        return sum(self.bits(n) for n in range(self.inputs, self.inputs + len(self.sums)))

    def of(self, x: Sequence[int]) -> list[int]:
        """The outputs for inputs `x`."""
        values = list(x)
        for s in self.sums:
            values.append((values[s.a] << s.a_shift) + s.sign * (values[s.b] << s.b_shift))
        return [0 if o is None else o[2] * (values[o[0]] << o[1]) for o in self.outputs]

    def rows(self) -> npt.NDArray[np.int64]:
        """As a table of six columns: counts and span, the sums, the outputs."""
        head = (self.inputs, len(self.sums), len(self.outputs), *self.span, 0)
        sums = [(s.a, s.a_shift, s.b, s.b_shift, s.sign, 0) for s in self.sums]
        outputs = [(-1, 0, 0, 0, 0, 0) if o is None else (*o, 0, 0, 0) for o in self.outputs]
        return np.array([head, *sums, *outputs], np.int64)


def from_rows(rows: Sequence[Sequence[int]]) -> Adders:
    """The reverse of `Adders.rows`."""
    (inputs, sums, _, lo, hi, _), *rest = ([int(n) for n in row] for row in rows)
    outputs = ((n[0], n[1], n[2]) if n[0] >= 0 else None for n in rest[sums:])
    return Adders(inputs, (lo, hi), tuple(Addition(*n[:5]) for n in rest[:sums]), tuple(outputs))


def _scaled(span: Range, shift: int) -> Range:
    return span[0] << shift, span[1] << shift


def _bits(lo: int, hi: int) -> int:
    """That hold `lo` to `hi` as signed numbers."""
    return max((-lo - 1).bit_length() if lo < 0 else 0, hi.bit_length() if hi > 0 else 0) + 1

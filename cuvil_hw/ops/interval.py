"""Intervals of integers: what an op's result can be, given what its operands can be."""

from __future__ import annotations

from dataclasses import dataclass

from cuvil_hw import dtypes


@dataclass(frozen=True, slots=True)
class Interval:
    """All integers from `lo` to `hi`."""

    lo: int
    hi: int

    @staticmethod
    def of(dtype: str) -> Interval:
        return Interval(*dtypes.int_range(dtype))

    def join(self, *others: Interval) -> Interval:
        return Interval(min((self.lo, *(o.lo for o in others))), max((self.hi, *(o.hi for o in others))))

    def within(self, lo: int, hi: int) -> Interval:
        """Values after saturation to [lo, hi]."""
        return Interval(min(max(self.lo, lo), hi), min(max(self.hi, lo), hi))

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.lo - other.hi, self.hi - other.lo)

    def __mul__(self, other: Interval) -> Interval:
        ends = [a * b for a in (self.lo, self.hi) for b in (other.lo, other.hi)]
        return Interval(min(ends), max(ends))


def window_bounds(x: Interval, x_zp: int, count: int) -> Interval:
    """Every partial sum of up to `count` terms x - x_zp, and the operands."""
    centred = Interval(x.lo - x_zp, x.hi - x_zp)
    return Interval(min(centred.lo, 0) * count, max(centred.hi, 0) * count).join(x, Interval(x_zp, x_zp), centred)

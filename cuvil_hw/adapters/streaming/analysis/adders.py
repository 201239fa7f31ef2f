"""Products by constants as shifts and additions, with what they have in common computed once.

A constant is its signed binary digits (the fewest of -1, 0 and 1), an output the sum of as many shifted inputs. Of all
pairs of terms the one that most outputs hold becomes a sum of its own, until no pair is held twice; what is left of
each output is added as a tree. Every sum is as wide as its values are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_hw.ir.adders import Adders, Addition, Range

LONGEST = 64  # terms of an output that are searched for pairs at once: the search grows with their square

Term = tuple[int, int]  # a value and its shift; rows say the sign
Pair = tuple[int, int, int, int]  # two values, the distance of their shifts, the product of their signs


def digits(value: int) -> list[tuple[int, int]]:
    """(shift, sign) of the signed binary digits other than 0, the fewest that there are."""
    found, shift = [], 0
    while value:
        if value & 1:
            sign = 2 - (value & 3)
            found.append((shift, sign))
            value -= sign
        value >>= 1
        shift += 1
    return found


def digit_count(matrix: npt.NDArray[Any]) -> int:
    """Digits of all elements."""
    return sum(len(digits(v)) for v in matrix.ravel().tolist())


@dataclass(frozen=True, slots=True)
class ConstantProducts:
    """What an unrolled stage multiplies: integers (outputs, inputs), and the span of all inputs. The graph is searched
    for when it is asked for; `least` says without a search how many full adders it takes at least, about."""

    matrix: npt.NDArray[Any] = field(repr=False)
    span: Range

    @property
    def least(self) -> float:
        return 0.3 * digit_count(self.matrix) * self.span[1].bit_length()

    @property
    def adders(self) -> Adders:
        return _found(self.matrix.tobytes(), self.matrix.shape, self.span)


@lru_cache(maxsize=64)
def _found(data: bytes, shape: tuple[int, int], span: Range) -> Adders:
    return adders(np.frombuffer(data, np.int64).reshape(shape), span)


def adders(matrix: npt.NDArray[Any], span: Range) -> Adders:
    """y = matrix · x, for x in `span`. `matrix`: integers (outputs, inputs)."""
    search = _Search(matrix.shape[1])
    rows: list[dict[Term, int]] = [{} for _ in matrix]
    per = max(1, int(LONGEST * matrix.size / max(digit_count(matrix), 1)))
    for start in range(0, matrix.shape[1], per):
        part: list[dict[Term, int]] = [
            {(start + n, shift): sign for n, w in enumerate(row) for shift, sign in digits(int(w))}
            for row in matrix[:, start : start + per].tolist()
        ]
        search.share(part)
        for row, found in zip(rows, part, strict=True):
            row.update(found)
    if per < matrix.shape[1] and max(map(len, rows)) <= 3 * LONGEST:
        search.share(rows)
    outputs = [search.tree(row) for row in rows]
    return Adders(matrix.shape[1], span, tuple(search.sums), tuple(outputs))


class _Search:
    """The sums found so far."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.sums: list[Addition] = []
        self.depth = [0] * inputs

    def add(self, a: Term, b: Term, sign: int) -> int:
        self.sums.append(Addition(*a, *b, sign))
        self.depth.append(1 + max(self.depth[a[0]], self.depth[b[0]]))
        return len(self.depth) - 1

    def share(self, rows: list[dict[Term, int]]) -> None:
        """Make the pairs that several rows hold into values, and put these in their place."""
        counts: dict[Pair, int] = defaultdict(int)
        for row in rows:
            terms = sorted(row.items())
            for n, (a, sign) in enumerate(terms):
                for b, other in terms[:n]:
                    counts[_pair(b, a, sign * other)] += 1
        heap = [(-count, key) for key, count in counts.items() if count > 1]
        heapify(heap)
        while heap:
            count, key = heappop(heap)
            if counts[key] != -count:
                if counts[key] > 1:
                    heappush(heap, (-counts[key], key))
                continue
            if not self._worth(rows, key):
                counts[key] = 0
                continue
            touched = self._replace(rows, key, counts)
            for changed in touched:
                if counts[changed] > 1:
                    heappush(heap, (-counts[changed], changed))

    def _worth(self, rows: list[dict[Term, int]], key: Pair) -> bool:
        """Whether a pair is held twice by terms that don't overlap."""
        found = 0
        for row in rows:
            found += sum(1 for _ in _held(row, key))
            if found > 1:
                return True
        return False

    def _replace(self, rows: list[dict[Term, int]], key: Pair, counts: dict[Pair, int]) -> set[Pair]:
        a, b, far, sign = key
        value = self.add((a, max(-far, 0)), (b, max(far, 0)), sign)
        touched = set()
        for row in rows:
            for first, second in list(_held(row, key)):
                outer = row[first]
                for gone in (first, second):
                    own = row.pop(gone)
                    for other, theirs in row.items():
                        counts[_pair(gone, other, own * theirs)] -= 1
                made = value, min(first[1], second[1])
                for other, theirs in row.items():
                    changed = _pair(made, other, outer * theirs)
                    counts[changed] += 1
                    touched.add(changed)
                row[made] = outer
        return touched

    def tree(self, row: dict[Term, int]) -> tuple[int, int, int] | None:
        """The sum of a row's terms, those that are there first added first."""
        heap = [(self.depth[value], shift, value, sign) for (value, shift), sign in row.items()]
        heapify(heap)
        while len(heap) > 1:
            (_, s, a, first), (_, t, b, second) = heappop(heap), heappop(heap)
            low = min(s, t)
            if first < 0 < second:
                (s, a, first), (t, b, second) = (t, b, second), (s, a, first)
            value = self.add((a, s - low), (b, t - low), first * second)
            heappush(heap, (self.depth[value], low, value, first))
        return next(((value, shift, sign) for _, shift, value, sign in heap), None)


def _pair(a: Term, b: Term, sign: int) -> Pair:
    """Two terms of a row, whatever their common shift and sign."""
    if b < a:
        a, b = b, a
    return a[0], b[0], b[1] - a[1], sign


def _held(row: dict[Term, int], key: Pair) -> Iterator[tuple[Term, Term]]:
    """Where a row holds a pair, no term twice."""
    a, b, far, sign = key
    used: set[Term] = set()
    for term in sorted(t for t in row if t[0] == a):
        other = b, term[1] + far
        if other in row and row[other] * row[term] == sign and term not in used and other not in used and term != other:
            used |= {term, other}
            yield term, other

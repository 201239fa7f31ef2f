"""In which order a stage reads the elements of a source, and the words of which they are part.

Slices, gathers, shuffles, transposes and resizes only say where an element comes from. Where that is a sum of one table
for each loop, a process with a ring of words can bring the elements in that order (lowering/feed.py); everything here
is found out by computing positions, not by their form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np

from cuvil_hw.adapters.streaming.analysis.exact import narrowest, signed_bits
from cuvil_hw.adapters.streaming.analysis.pace import Counts, Schedule, held, scheduled
from cuvil_hw.adapters.streaming.analysis.positions import Array, evaluate
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Expr, Iter, Load
from cuvil_hw.types import TensorType

MAPS = 8  # ways in which lanes of a word go to those of another: each is an input of a multiplexer a lane
TABLE = 4096  # entries of a table that says where there is no element
Table = tuple[int, ...]


@dataclass(frozen=True)
class Access:
    """Element number `start` + Σ places[d][digit d] of a source, in the order of its stream, for all digits, the last
    fastest, which counts channels. `gaps`: (digits, table over them, row by row: whether there is an element); `size`:
    elements of the source."""

    extents: tuple[int, ...]
    places: tuple[Table, ...]
    start: int
    gaps: tuple[tuple[Table, Table], ...]
    size: int

    @cached_property
    def elements(self) -> Counts:
        """Number of each element that is read, -1 where there is none."""
        return _numbers(self)

    @property
    def in_order(self) -> bool:
        """Whether it is all of the source as it comes."""
        return prod(self.extents) == self.size and bool((self.elements == np.arange(self.size)).all())

    def words(self, lanes_in: int, lanes_out: int) -> Words | None:
        """The same in words; None where the elements of one word don't lie in one word of the source, or in too many
        ways."""
        return _words(self, lanes_in, lanes_out)

    def merged(self, inner: int, groups: int) -> Access | None:
        """The digit in front of `inner` others and the channels is one of groups: so many of its values at a time
        become channels. None where that is no sum of tables."""
        if groups == 1:
            return self
        at = len(self.extents) - inner - 2
        if any(at in digits or len(self.extents) - 1 in digits for digits, _ in self.gaps):
            return None
        steps = np.array(self.places[at]).reshape(-1, groups)
        if (steps - steps[:, :1] != steps[0] - steps[0, 0]).any():
            return None
        joined = ((steps[0] - steps[0, 0])[:, None] + np.array(self.places[-1])).ravel()
        places = (*self.places[:at], _table(steps[:, 0]), *self.places[at + 1 : -1], _table(joined))
        extents = tuple(map(len, places))
        return Access(extents, places, self.start, self.gaps, self.size)


@dataclass(frozen=True)
class Words:
    """An access by words. `places`, `gaps`: as there; `lanes`: of a word of the source and of a word given; `keys`: for
    each digit, what it adds to the number of the way in which lanes are taken; `ways`: (number, the source's lane of
    each lane); `total`: words of the source."""

    extents: tuple[int, ...]
    places: tuple[Table, ...]
    start: int
    gaps: tuple[tuple[Table, Table], ...]
    lanes: tuple[int, int]
    keys: tuple[Table, ...]
    ways: tuple[tuple[int, Table], ...]
    total: int

    @property
    def given(self) -> int:
        return prod(self.extents)

    @property
    def terms(self) -> int:
        """Numbers that add up to a place and to a way."""
        return sum(any(t) for t in (*self.places, *self.keys))

    def memories(self, width: int) -> list[tuple[int, int]]:
        """(words, bits) of the ring, for elements of `width` bits, and of the tables."""
        tables = [t for t in (*self.places, *self.keys) if slope(t) is None]
        bits = [max(signed_bits(narrowest(min(t), max(t))) - (min(t) >= 0), 1) for t in tables]
        found = [(len(t), b) for t, b in zip(tables, bits, strict=True)] + [(len(t), 1) for _, t in self.gaps]
        return [(self.schedule.rows, self.lanes[0] * width), *found]

    @cached_property
    def schedule(self) -> Schedule:
        """`rows` are words of the ring here."""
        return _schedule(self)

    def read_by(self) -> Counts:
        """Words read before each word leaves."""
        return self.schedule.read_by(self.given, self.total)


def access(
    load: Load,
    source: TensorType,
    digits: Sequence[Mapping[Iter, Array]],
    constants: Mapping[str, Array],
    order: Sequence[int],
    inside: Sequence[Expr] = (),
) -> Access | None:
    """The access of a load. `digits`: what each adds to iterators, by its value; `order`: of the source's dimensions as
    it streams; `inside`: conditions under which there is an element. None where it is no sum of tables."""
    extents = tuple(len(next(iter(d.values()))) for d in digits)
    rank = len(digits)
    values: dict[Iter, Array] = {}
    for n, digit in enumerate(digits):
        for it, adds in digit.items():
            values[it] = values.get(it, np.asarray(0)) + adds.reshape([-1 if d == n else 1 for d in range(rank)])
    strides = {d: prod(source.shape[o] for o in order[n + 1 :]) for n, d in enumerate(order)}
    places = [np.zeros(e, np.int64) for e in extents]
    start = 0
    try:
        conditions = [_aligned(evaluate(e, values, constants), rank) for e in inside]
        for d, e in enumerate(load.index):
            at = _aligned(evaluate(e, values, constants), rank).astype(np.int64) * strides[d]
            parts = _apart(at, conditions)
            if parts is None:
                return None
            start += int(at[_middle(at)])
            places = [p + part for p, part in zip(places, parts, strict=True)]
    except CuvilError:
        return None
    gaps = [g for c in conditions if (g := _gap(c)) is not None]
    if any(len(table) > TABLE for _, table in gaps):
        return None
    return Access(extents, tuple(map(_table, places)), start, tuple(gaps), source.size)


def _table(array: Array) -> Table:
    return tuple(array.tolist())


def _aligned(array: Array, rank: int) -> Array:
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def _middle(array: Array) -> tuple[int, ...]:
    """A place that is no padding of a window."""
    return tuple(n // 2 for n in array.shape)


def _apart(array: Array, conditions: Sequence[Array]) -> list[Array] | None:
    """One table an axis whose sum, with the element in the middle, is the array wherever there is an element; None
    where there are none."""
    base: tuple[Any, ...] = _middle(array)
    parts = [array[(*base[:d], slice(None), *base[d + 1 :])] - array[base] for d in range(array.ndim)]
    total = array[base]
    for axis, part in enumerate(parts):
        total = total + part.reshape([-1 if d == axis else 1 for d in range(array.ndim)])
    wrong = total != array
    for c in conditions if wrong.any() else ():
        wrong = wrong & c
    return None if wrong.any() else parts


def _gap(holds: Array) -> tuple[Table, Table] | None:
    """The digits on which a condition depends, and its table; None where it always holds."""
    if holds.all():
        return None
    digits = []
    for axis in range(holds.ndim):
        first = holds.take([0], axis)
        if (holds == first).all():
            holds = first
        else:
            digits.append(axis)
    return tuple(digits), _table(holds.ravel().astype(np.int64))


def _numbers(a: Access | Words) -> Counts:
    rank = len(a.extents)
    total = np.full(a.extents, a.start, np.int64)
    for d, places in enumerate(a.places):
        total += np.array(places, np.int64).reshape([-1 if n == d else 1 for n in range(rank)])
    for digits, table in a.gaps:
        holds = np.array(table, bool).reshape([e if n in digits else 1 for n, e in enumerate(a.extents)])
        total = np.where(holds, total, -1)
    return total.ravel()


@lru_cache(maxsize=4096)
def _words(a: Access, lanes_in: int, lanes_out: int) -> Words | None:
    *rest, channels = a.extents
    folds, last = channels // lanes_out, len(rest)
    inner = np.array(a.places[-1], np.int64).reshape(folds, lanes_out)
    parts = [np.array(p, np.int64) for p in a.places[:-1]]
    lift = [int(p.min()) for p in (*parts, inner)]  # what is left is no less than 0
    start = a.start + sum(lift)
    parts, inner = [p - low for p, low in zip(parts, lift, strict=False)], inner - lift[-1]
    word, lane = inner // lanes_in, inner % lanes_in
    most = start % lanes_in + sum(int((p % lanes_in).max()) for p in parts) + int(lane.max())
    if most >= lanes_in or (word != word[:, :1]).any():
        return None
    gaps = []
    for digits, table in a.gaps:
        holds = np.array(table)
        if last in digits:
            holds = holds.reshape(-1, folds, lanes_out)
            if (holds != holds[:, :, :1]).any():
                return None
            holds = holds[:, :, 0]
        gaps.append((digits, _table(holds.ravel())))
    rows, which = np.unique(lane, axis=0, return_inverse=True)
    if len(rows) > MAPS:
        return None
    keys = [*(p % lanes_in for p in parts), which.ravel() * lanes_in]
    shifts = {int(sum(s)) + start % lanes_in for s in product(*(np.unique(k) for k in keys[:-1]))}
    if len(rows) * len(shifts) > MAPS:
        return None
    ways = tuple(
        (shift + n * lanes_in, tuple((row + shift).tolist())) for n, row in enumerate(rows) for shift in sorted(shifts)
    )
    places = [*(p // lanes_in for p in parts), word[:, 0]]
    keys[-1] = keys[-1] + start % lanes_in
    if len(ways) == 1:
        keys, ways = [np.zeros_like(k) for k in keys], ((0, ways[0][1]),)
    made = Words(
        (*rest, folds), tuple(map(_table, places)), start // lanes_in, tuple(gaps), (lanes_in, lanes_out),
        tuple(map(_table, keys)), ways, a.size // lanes_in,
    )  # fmt: skip
    return _simple(made)


def slope(table: Sequence[int]) -> int | None:
    """What each step adds, where it is always the same and the first entry is 0."""
    by = table[1] - table[0] if len(table) > 1 else 0
    return by if all(v == by * i for i, v in enumerate(table)) else None


def _simple(w: Words) -> Words:
    """Fewer and simpler digits for the same words: long tables become sums of short ones, what counts on joins."""
    digits: list[tuple[int, Table, Table, int]] = []  # extent, places, keys, number of the digit if gaps know it
    known = {d for ds, _ in w.gaps for d in ds}
    for n, (extent, places, keys) in enumerate(zip(w.extents, w.places, w.keys, strict=True)):
        if n in known:
            digits.append((extent, places, keys, n))
        else:
            digits += [(len(p), p, k, -1) for p, k in _split(places, keys)]
    joined: list[tuple[int, Table, Table, int]] = []
    for extent, places, keys, n in digits:
        if extent == 1 and n < 0 and not any(keys):
            continue
        if joined and n < 0 and joined[-1][3] < 0 and not any((*keys, *joined[-1][2])):
            outer, by = slope(joined[-1][1]), slope(places)
            if by is not None and outer == by * extent:
                whole = joined[-1][0] * extent
                joined[-1] = (whole, tuple(range(0, by * whole, by)) if by else (0,) * whole, (0,) * whole, -1)
                continue
        joined.append((extent, places, keys, n))
    numbers = {n: at for at, (_, _, _, n) in enumerate(joined)}
    gaps = tuple((tuple(numbers[d] for d in ds), table) for ds, table in w.gaps)
    extents, places_, keys_ = (tuple(column) for column in list(zip(*joined, strict=True))[:3]) if joined else ((),) * 3
    return Words(extents, places_, w.start, gaps, w.lanes, keys_, w.ways, w.total)


def _split(places: Table, keys: Table) -> list[tuple[Table, Table]]:
    """Digits whose tables add up to these, each counting evenly where that is possible."""
    n, by = len(places), [slope(places), slope([k - keys[0] for k in keys])]
    if n < 4 or (by[0] is not None and by[1] is not None):
        return [(places, keys)]
    tables = [np.array(t, np.int64) for t in (places, keys)]
    for m in (d for d in range(n // 2, 1, -1) if n % d == 0):
        halves = [t.reshape(-1, m) for t in tables]
        if all((h - h[:, :1] == h[0] - h[0, 0]).all() for h in halves):
            inner = [h[0] - h[0, 0] for h in halves]
            if all(slope(t.tolist()) is not None for t in inner):
                outer = _split(*(_table(h[:, 0]) for h in halves))
                return [*outer, (_table(inner[0]), _table(inner[1]))]
    return [(places, keys)]


def _schedule(w: Words) -> Schedule:
    common = gcd(w.total, w.given)
    at = _numbers(w)
    given = np.flatnonzero(at >= 0)
    needs, given = at[given] + 1, given + 1
    plan = scheduled(w.total // common, w.given // common, needs, given, w.total, w.given)
    return replace(plan, rows=held(plan, needs, given, w.total))

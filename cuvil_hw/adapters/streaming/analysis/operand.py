"""How a stage walks through the elements of a stream: in order, in part, again and again, or out of order.

A walk is a nest of loops, each with the distance that one step goes in the stream. In order and complete it is the
stream itself; a part in order is a slice; a loop that stays where it is reads again what the stage holds; anything else
takes a memory (`Reorder`), which is filled once and read as often as the stage wants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from cuvil_hw.adapters.streaming.analysis.pace import DISTANCE
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, affine
from cuvil_hw.expr.traverse import walk
from cuvil_hw.types import TensorType

Order = tuple[int, ...]
Digits = tuple[tuple[int, int], ...]
MOST_PLACES = 1 << 22  # of a load whose index isn't affine: beyond, its walk isn't looked for
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Loop:
    """`stride`: elements of the stream that one step goes on, 0 to stay; `role`: "outer", "lane" (of the outputs),
    "tap" or "in" (the innermost loop of a reduction)."""

    extent: int
    stride: int
    role: str = "outer"


@dataclass(frozen=True, slots=True)
class Level:
    """One digit of a place in a stream: of `period` values, `count` are taken from `first` on."""

    period: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Reorder:
    """A memory between a stream and a stage, filled and read block after block. `words`: of a block, of `lanes`
    elements each; `banks`: memories side by side, of which a word of each leaves at once; `below`: words of a bank
    between two banks' turns; `loops`: (extent, words of a bank that it goes on), outermost first."""

    blocks: int
    words: int
    lanes: int
    banks: int
    below: int
    loops: tuple[tuple[int, int], ...]

    @property
    def given(self) -> int:
        """Words that leave for one block."""
        return prod(extent for extent, _ in self.loops)

    @property
    def idle(self) -> int:
        """Steps between the last store and the first load, so that no word is loaded as soon as it is stored."""
        late = 0
        for n in range(min(DISTANCE, self.given)):
            rest, place = n, 0
            for extent, step in reversed(self.loops):
                rest, digit = divmod(rest, extent)
                place += digit * step
            stored = place // self.below * self.below * self.banks + place % self.below + self.below * (self.banks - 1)
            late = max(late, stored + DISTANCE - self.words - n)
        return late

    @property
    def steps(self) -> int:
        """Cycles of one sample."""
        return self.blocks * (self.words + self.idle + self.given)

    def needs(self) -> Counts:
        """Words read before each word that leaves."""
        return np.repeat(np.arange(1, self.blocks + 1, dtype=np.int64) * self.words, self.given)


@dataclass(frozen=True)
class Operand:
    """One stream that a stage reads. `elements`: of the stream; `loops`: of the stage, outermost first; `start`: where
    the first element lies; `holds`: whether the stage itself keeps what it reads again."""

    load: Load
    elements: int
    loops: tuple[Loop, ...]
    start: int = 0
    holds: bool = True

    @property
    def buffer(self) -> str:
        return self.load.buffer

    @cached_property
    def levels(self) -> tuple[Level, ...] | None:
        """The part of the stream that is read, as digits, outermost first; None where it isn't one."""
        found: list[Level] = []
        outside, rest = self.elements, self.start
        moving = sorted((x for x in self.loops if x.stride), key=lambda x: -x.stride)
        for loop in (*moving, Loop(1, 1)):
            if outside % loop.stride:
                return None
            first, rest = divmod(rest, loop.stride)
            level = Level(outside // loop.stride, first, loop.extent)
            if first + loop.extent > level.period:
                return None
            if found and level.first == 0 and level.count == level.period:
                last = found.pop()
                level = Level(*(n * level.period for n in (last.period, last.first, last.count)))
            found.append(level)
            outside = loop.stride
        return tuple(found)

    @property
    def sliced(self) -> bool:
        """Whether the stage reads only a part."""
        return self.levels is not None and any(x.count < x.period for x in self.levels)

    @property
    def read(self) -> int:
        """Elements of the part."""
        return prod(x.extent for x in self.loops if x.stride)

    @cached_property
    def packed(self) -> tuple[Loop, ...]:
        """The loops over the part alone."""
        inner: dict[int, int] = {}
        size = 1
        for loop in sorted((x for x in self.loops if x.stride), key=lambda x: x.stride):
            inner[loop.stride] = size
            size *= loop.extent
        return tuple(replace(x, stride=inner[x.stride] if x.stride else 0) for x in self.loops)

    @property
    def in_order(self) -> bool:
        """Whether the part is read in the order of the stream, apart from what is read again."""
        strides = [x.stride for x in self.packed if x.stride]
        return strides == sorted(strides, reverse=True)

    @property
    def again(self) -> bool:
        """Whether elements are read more than once."""
        return any(not x.stride and x.extent > 1 for x in self.loops)

    @property
    def stored(self) -> bool:
        """Whether a memory stands between the stream and the stage."""
        return not self.in_order or (self.again and not self.holds)

    @property
    def plain(self) -> bool:
        """Whether it is the stream itself, element by element."""
        return not self.sliced and not self.stored and not self.again

    def lanes(self, pe: int, simd: int) -> tuple[int, int]:
        """Elements of a word that the stage reads, and of one that the stream brings."""
        split = self._split(pe, simd)
        whole = prod(n for _, n in split)
        if not self.stored:
            return whole, whole
        return whole, next((n for x, n in split if x.stride == 1), 1)

    def across_inputs(self, pe: int, simd: int) -> bool:
        """Whether in a word of both output and input lanes the inputs are the outer ones: their loop doesn't go along
        the stream."""
        split = {x.role: x for x, _ in self._split(pe, simd)}
        return "lane" in split and split["lane"].stride == 1

    def fits(self, pe: int, simd: int) -> bool:
        """Whether words of so many lanes can be cut out of the stream, and put together."""
        split = self._split(pe, simd)
        if any(x.extent % n for x, n in split):
            return False
        across = [n for x, n in split if n > 1 and x.stride != 1]
        if len(across) > (1 if self.stored else 0):
            return False
        _, narrow = self.lanes(pe, simd)
        if self.levels is None or self.levels[-1].count % narrow:
            return False
        return self.elements % narrow == 0 and not (self.levels[-1].first % narrow or self.levels[-1].period % narrow)

    def reorder(self, pe: int, simd: int) -> Reorder:
        """The memory, where there is one."""
        split = {id(x): n for x, n in self._split(pe, simd)}
        loops, block, blocks = list(self.packed), self.read, 1
        while loops and loops[0].stride * loops[0].extent == block and id(loops[0]) not in split:
            blocks, block = blocks * loops[0].extent, loops.pop(0).stride
        _, lanes = self.lanes(pe, simd)
        across = next((x for x in loops if split.get(id(x), 1) > 1 and x.stride != 1), None)
        banks = split[id(across)] if across is not None else 1
        below = across.stride // lanes if across is not None else block // lanes

        def place(x: Loop) -> tuple[int, int]:
            n = split.get(id(x), 1)
            step = x.stride * n
            over = across is not None and x.stride >= across.stride
            return x.extent // n, step // lanes // (banks if over else 1)

        return Reorder(blocks, block // lanes, lanes, banks, below, tuple(place(x) for x in loops))

    def cycles(self, pe: int, simd: int) -> int:
        """For which the processes between the stream and the stage are busy with one sample, at most."""
        _, lanes = self.lanes(pe, simd)
        return max(self.elements // lanes, self.reorder(pe, simd).steps if self.stored else 0)

    def _split(self, pe: int, simd: int) -> list[tuple[Loop, int]]:
        """The loops of which a step takes several elements at once, the outer one first, and how many."""
        found = []
        for role, n in (("lane", pe), ("in", simd)):
            last = next((x for x in reversed(self.packed) if x.role == role), None)
            if last is not None and last.stride:
                found.append((last, n))
        return found


def part_needs(levels: Sequence[Level], lanes: int) -> Counts:
    """Words read of a whole stream before each word of a part of it leaves."""
    places = np.zeros(1, np.int64)
    for level in levels:
        places = (places[:, None] * level.period + np.arange(level.first, level.first + level.count)).ravel()
    return places[::lanes] // lanes + 1


def operand(
    load: Load, type: TensorType, order: Order, nest: Sequence[tuple[Iter, str]], holds: bool = True
) -> Operand | None:
    """The walk of a load through a stream that brings `type` in `order`. `nest`: the loops of the stage and their
    roles. None where it is no nest of loops."""
    strides, step = [0] * type.rank, 1
    for d in reversed(order):
        strides[d], step = step, step * type.shape[d]
    known = _walk(load, strides)
    if known is None:
        return None
    digits, start = known
    if set(digits) - {it for it, _ in nest}:
        return None
    loops = [Loop(n, stride, role) for it, role in nest for n, stride in digits.get(it, ((it.extent, 0),)) if n > 1]
    whole = all(all(s for _, s in d) for d in digits.values())  # what is read again, is in whole loops
    found = Operand(load, type.size, tuple(loops), start, holds and whole)
    return found if found.levels is not None else None


def _walk(load: Load, strides: Sequence[int]) -> tuple[dict[Iter, Digits], int] | None:
    """For each iterator its digits (extent, stride), outermost first; and the place of the first element."""
    its = [n for n in dict.fromkeys(n for i in load.index for n in walk(i)) if isinstance(n, Iter) and n.extent > 1]
    parts = [affine(e) for e in load.index]
    if all(isinstance(atom, Iter) for terms, _ in parts for atom in terms):
        start = sum(c * s for (_, c), s in zip(parts, strides, strict=True))
        found: dict[Iter, Digits] = {}
        for it in its:
            stride = sum(terms.get(it, 0) * s for (terms, _), s in zip(parts, strides, strict=True))
            found[it] = ((it.extent, stride),)
        return (found, start) if start >= 0 and all(s >= 0 for d in found.values() for _, s in d) else None
    if prod(it.extent for it in its) > MOST_PLACES:
        return None
    values = {it: np.arange(it.extent).reshape(-1, *[1] * (len(its) - n - 1)) for n, it in enumerate(its)}
    shape = tuple(it.extent for it in its)
    places = np.zeros(shape, np.int64)
    for e, s in zip(load.index, strides, strict=True):
        value = evaluate_index(e, values)
        if value is None:
            return None
        places = places + value * s
    start = int(places.flat[0])
    alone = [places[tuple(slice(None) if m == n else 0 for m in range(len(its)))] - start for n in range(len(its))]
    total = sum((a.reshape(values[it].shape) for a, it in zip(alone, its, strict=True)), np.int64(start))
    if not np.array_equal(np.broadcast_to(total, shape), places):
        return None
    digits = {it: _digits(a) for it, a in zip(its, alone, strict=True)}
    if any(d is None for d in digits.values()):
        return None
    return {it: d for it, d in digits.items() if d is not None}, start


def _digits(places: Counts) -> Digits | None:
    """Places that start at 0 as a sum of digits times strides."""
    if len(places) == 1:
        return ()
    stride = int(places[1])
    wrong = np.flatnonzero(places != stride * np.arange(len(places)))
    run = int(wrong[0]) if wrong.size else len(places)
    if stride < 0 or len(places) % run:
        return None
    outer = _digits(places[::run])
    if outer is None or not np.array_equal(places.reshape(-1, run), places[::run, None] + places[:run]):
        return None
    return (*outer, (run, stride))


def evaluate_index(e: Expr, values: Mapping[Iter, Counts]) -> Counts | None:
    """An index expression over whole grids of iterator values; iterators of one step may be missing. None where it is
    something else."""
    match e:
        case Const():
            return np.asarray(int(e.value))
        case Iter():
            return values.get(e, np.asarray(0)) if e in values or e.extent == 1 else None
        case Apply(dtype="index", args=(a, b)):
            x, y = evaluate_index(a, values), evaluate_index(b, values)
            if x is None or y is None:
                return None
            match e.op:
                case "add":
                    return np.asarray(x + y)
                case "mul":
                    return np.asarray(x * y)
                case "floordiv":
                    return np.asarray(x // y)
                case "mod":
                    return np.asarray(x % y)
                case "min":
                    return np.minimum(x, y)
                case "max":
                    return np.maximum(x, y)
    return None

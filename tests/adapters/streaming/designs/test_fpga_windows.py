"""The schedule of a window generator, run step by step: every word is there in time and not yet overwritten."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cuvil_hw.adapters.streaming.analysis.pace import DISTANCE
from cuvil_hw.adapters.streaming.analysis.ring import Ring
from cuvil_hw.adapters.streaming.analysis.stage import WindowDim


def cells(r: Ring) -> Iterator[int | None]:
    """The number of the input word that each word of the windows is, None outside the input."""
    for oy in range(r.y.out):
        for ox in range(r.x.out):
            for ky in range(r.y.kernel):
                for kx in range(r.x.kernel):
                    y = oy * r.y.stride + ky * r.y.dilation - r.y.pad
                    x = ox * r.x.stride + kx * r.x.dilation - r.x.pad
                    inside = 0 <= y < r.y.size and 0 <= x < r.x.size
                    for c in range(r.fold):
                        yield (y * r.x.size + x) * r.fold + c if inside else None


def turns(r: Ring) -> Iterator[tuple[bool, bool]]:
    """(reads, gives) of each step."""
    s = r.schedule
    read = given = 0
    for t in range(s.steps):
        gives = reads = False
        if s.lead <= t < s.last:
            done = t - s.lead + 1
            gives = done * s.emits // s.period > given
            reads = s.lead + done * s.reads // s.period > read
        elif read < r.words:
            reads = True
        reads = reads and read < r.words
        read, given = read + reads, given + gives
        yield reads, gives


def check(r: Ring) -> None:
    ring: dict[tuple[int, int], int] = {}
    when: list[int] = []
    wanted = list(cells(r))
    given, before = 0, []
    for t, (reads, gives) in enumerate(turns(r)):
        if gives:
            cell = wanted[given]
            if cell is not None:
                row, column = divmod(cell, r.row_words)
                assert ring[row % r.schedule.rows, column] == cell, (r, t)
                assert t - when[cell] >= DISTANCE, (r, t)
            given += 1
        if reads:
            row, column = divmod(len(when), r.row_words)
            ring[row % r.schedule.rows, column] = len(when)
            when.append(t)
        if gives:
            before.append(len(when))
    assert (len(when), given) == (r.words, len(wanted)), r
    assert list(r.read_by()) == before, r


def test_random_windows() -> None:
    rng = random.Random(1)

    def dim() -> WindowDim | None:
        size, stride = rng.randint(1, 9), rng.choice([1, 1, 2, 3])
        kernel, dilation = rng.randint(1, 5), rng.choice([1, 1, 2])
        begin, end = rng.randint(0, 2), rng.randint(0, 2)
        span = dilation * (kernel - 1) + 1
        if max(begin, end) >= span or size + begin + end < span:
            return None
        return WindowDim(size, (size + begin + end - span) // stride + 1, kernel, stride, dilation, begin)

    tried = 0
    while tried < 250:
        y, x = dim(), dim()
        if y is not None and x is not None:
            check(Ring(y, x, rng.choice([1, 1, 2, 4])))
            tried += 1


@pytest.mark.parametrize("stride", [1, 2])
def test_little_time_passes_without_windows(stride: int) -> None:
    """A row, a column and what a pipeline needs; and little more memory than the rows of a window."""
    out = 32 // stride
    r = Ring(WindowDim(32, out, 3, stride, 1, 1), WindowDim(32, out, 3, stride, 1, 1), 4)
    assert r.schedule.steps <= out * out * 9 * 4 + r.row_words + 3 * r.fold + DISTANCE
    assert r.schedule.rows <= 3 + stride

"""Geometry and schedule of a window generator, which keeps a ring of rows on chip.

It reads `lead` words, then gives one word of the windows a step, and meanwhile reads the others, evenly spread: so a
step never waits for a word that it doesn't need soon, whatever the stride. The schedule is the same for every sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd

import numpy as np
import numpy.typing as npt

from cuvil_hw.adapters.streaming.analysis.stage import Stage, WindowDim

UNIT = WindowDim(1, 1)
# Steps between the store of a word and its first load: a pipelined loop may do either a few cycles early or late.
DISTANCE = 4
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps of one sample. `lead`: steps that give nothing yet and read one word each, if there is one; then of every
    `period` steps `reads` read a word and `emits` give one (the larger of both is `period`). `stop`: the first step
    after the last read; `last`: the first one after the last word given; `rows`: of the ring."""

    lead: int
    reads: int
    emits: int
    stop: int
    last: int
    rows: int

    @property
    def period(self) -> int:
        return max(self.reads, self.emits)

    @property
    def steps(self) -> int:
        return max(self.stop, self.last)


@dataclass(frozen=True, slots=True)
class Ring:
    """Geometry of a window generator in rows of words: `fold` words a pixel."""

    y: WindowDim
    x: WindowDim
    fold: int

    @property
    def row_words(self) -> int:
        return self.x.size * self.fold

    @property
    def words(self) -> int:
        """Of a sample."""
        return self.y.size * self.row_words

    @property
    def emitted(self) -> int:
        """Words that leave for one output row."""
        return self.x.out * self.y.kernel * self.x.kernel * self.fold

    @property
    def schedule(self) -> Schedule:
        return _schedule(self)

    def read_by(self) -> Counts:
        """Words read before each word of the windows leaves."""
        s = self.schedule
        given = np.arange(1, self.y.out * self.emitted + 1, dtype=np.int64)
        return np.minimum(s.lead + _step(s, given) * s.reads // s.period, self.words)


def ring(stage: Stage, lanes: int) -> Ring:
    """The generator of a stage whose input words have `lanes` elements. Unit dimensions are dropped."""
    dims = [d for d in stage.dims if not d.unit]
    y, x = (UNIT, *dims)[-2:] if len(dims) < 2 else dims
    if len(dims) == 1:
        y, x = dims[0], UNIT
    return Ring(y, x, stage.channels_in // lanes)


def _step(s: Schedule, given: Counts) -> Counts:
    """Steps after the lead by which so many words have left."""
    return -(-given * s.period // s.emits)


@lru_cache(maxsize=4096)
def _schedule(r: Ring) -> Schedule:
    arriving = r.y.stride * r.row_words  # words for one more output row
    common = gcd(arriving, r.emitted)
    pace = Schedule(0, arriving // common, r.emitted // common, 0, 0, 0)
    row, column = (_inside(d) for d in (r.y, r.x))
    rows = np.broadcast_to(row[:, None, :, None], (r.y.out, r.x.out, r.y.kernel, r.x.kernel))
    columns = np.broadcast_to(column[None, :, None, :], rows.shape)
    cells = np.flatnonzero((rows >= 0) & (columns >= 0))
    at = rows.ravel()[cells] * r.row_words + columns.ravel()[cells] * r.fold
    lead = 1
    for c in sorted({0, r.fold - 1}):  # between them, what is needed and what is read both change evenly
        free = _step(pace, cells * r.fold + c + 1) - DISTANCE  # steps that may bring the word
        brought = np.where(free > 0, free * pace.reads // pace.period, free)
        lead = max(lead, int((at + c + 1 - brought).max(initial=1)))
    stop = r.words if lead >= r.words else lead + ceil((r.words - lead) * pace.period / pace.reads)
    last = lead + int(_step(pace, np.asarray(r.y.out * r.emitted)))
    if stop > last:  # what is left when all windows have left comes in one word a step
        read = min(lead + (last - lead) * pace.reads // pace.period, r.words)
        stop = last + r.words - read
    # The newest row at the end of each output row, and the oldest that it needs.
    end = np.arange(1, r.y.out + 1, dtype=np.int64)
    newest = np.minimum(lead + _step(pace, end * r.emitted) * pace.reads // pace.period, r.words) - 1
    oldest = np.maximum((end - 1) * r.y.stride - r.y.pad, 0)
    held = int((newest // r.row_words - oldest).max()) + 1
    return Schedule(lead, pace.reads, pace.emits, stop, last, min(max(held, r.y.span), r.y.size))


def _inside(d: WindowDim) -> Counts:
    """(out, kernel): the coordinate under each tap, -1 outside the input."""
    at = np.arange(d.out)[:, None] * d.stride + np.arange(d.kernel)[None, :] * d.dilation - d.pad
    return np.where((at >= 0) & (at < d.size), at, -1)

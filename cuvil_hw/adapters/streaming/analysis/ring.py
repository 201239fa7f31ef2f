"""Geometry of a window generator, which keeps a ring of rows on chip and follows a schedule (pace.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Self

import numpy as np

from cuvil_hw.adapters.streaming.analysis.pace import Counts, Schedule, scheduled
from cuvil_hw.adapters.streaming.analysis.stage import Stage, WindowDim

UNIT = WindowDim(1, 1)


@dataclass(frozen=True, slots=True)
class Raster:
    """Rows and columns under a window, and the words of a pixel: `fold`."""

    y: WindowDim
    x: WindowDim
    fold: int

    @classmethod
    def of(cls, stage: Stage, lanes: int) -> Self:
        """The generator of a stage whose input words have `lanes` elements. Unit dimensions are dropped."""
        dims = [d for d in stage.dims if not d.unit]
        y, x = (UNIT, *dims)[-2:] if len(dims) < 2 else dims
        if len(dims) == 1:
            y, x = dims[0], UNIT
        return cls(y, x, stage.channels_in // lanes)

    @property
    def row_words(self) -> int:
        return self.x.size * self.fold

    @property
    def words(self) -> int:
        """Of a sample."""
        return self.y.size * self.row_words


class Ring(Raster):
    """A window generator that hands out a window in several words."""

    __slots__ = ()

    @property
    def emitted(self) -> int:
        """Words that leave for one output row."""
        return self.x.out * self.y.kernel * self.x.kernel * self.fold

    @property
    def schedule(self) -> Schedule:
        return _schedule(self)

    def read_by(self) -> Counts:
        """Words read before each word of the windows leaves."""
        return self.schedule.read_by(self.y.out * self.emitted, self.words)


@lru_cache(maxsize=4096)
def _schedule(r: Ring) -> Schedule:
    arriving = r.y.stride * r.row_words  # words for one more output row
    common = gcd(arriving, r.emitted)
    row, column = (_inside(d) for d in (r.y, r.x))
    rows = np.broadcast_to(row[:, None, :, None], (r.y.out, r.x.out, r.y.kernel, r.x.kernel))
    columns = np.broadcast_to(column[None, :, None, :], rows.shape)
    cells = np.flatnonzero((rows >= 0) & (columns >= 0))
    at = rows.ravel()[cells] * r.row_words + columns.ravel()[cells] * r.fold
    # Between the first and the last word of a cell, what is needed and what is read both change evenly.
    ends = sorted({0, r.fold - 1})
    needs, given = ((first[:, None] + ends).ravel() + 1 for first in (at, cells * r.fold))
    plan = scheduled(arriving // common, r.emitted // common, needs, given, r.words, r.y.out * r.emitted)
    # The newest row at the end of each output row, and the oldest that it needs.
    end = np.arange(1, r.y.out + 1, dtype=np.int64)
    newest = np.minimum(plan.lead + plan.by(end * r.emitted) * plan.reads // plan.period, r.words) - 1
    oldest = np.maximum((end - 1) * r.y.stride - r.y.pad, 0)
    held = int((newest // r.row_words - oldest).max()) + 1
    return replace(plan, rows=min(max(held, r.y.span), r.y.size))


def _inside(d: WindowDim) -> Counts:
    """(out, kernel): the coordinate under each tap, -1 outside the input."""
    at = np.arange(d.out)[:, None] * d.stride + np.arange(d.kernel)[None, :] * d.dilation - d.pad
    return np.where((at >= 0) & (at < d.size), at, -1)

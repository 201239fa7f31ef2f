"""Geometry of a window generator that gives whole windows: lines of the input in one memory, the columns of a window
in registers.

Every step takes a word of the input and moves the window on by it, as it lies in the raster; a window leaves with the
step that brings its last element, or would bring it: what lies outside of the input is masked. So a sample takes a step
for each of its words, and those between the last word and the last window.
"""

from __future__ import annotations

import numpy as np

from cuvil_hw.adapters.streaming.analysis.pace import Counts
from cuvil_hw.adapters.streaming.analysis.ring import Raster

FEW = 4  # values a lane that lie in registers: a memory would have to give one back sooner than it can


class Lines(Raster):
    """A window generator that hands out whole windows."""

    __slots__ = ()

    @property
    def first(self) -> int:
        """The step in which the first window leaves."""
        return ((self.y.span - 1 - self.y.pad) * self.x.size + self.x.span - 1 - self.x.pad) * self.fold

    @property
    def turn(self) -> int:
        """Columns from one row of windows to the next."""
        return self.y.stride * self.x.size

    @property
    def steps(self) -> int:
        """Of a sample."""
        last = (self.y.out - 1) * self.turn + (self.x.out - 1) * self.x.stride
        return max(self.words, self.first + (last + 1) * self.fold)

    @property
    def legal(self) -> bool:
        """Whether no window begins before the first word, a row of windows ends before the next begins, and the input
        ends with the last one."""
        within = all(d.pad < d.span for d in (self.y, self.x)) and (self.x.out - 1) * self.x.stride < self.turn
        return within and self.steps <= self.first + self.y.out * self.turn * self.fold

    def read_by(self) -> Counts:
        """Words read before each word of windows leaves."""
        at = np.arange(self.y.out)[:, None] * self.turn + np.arange(self.x.out) * self.x.stride
        leaves = self.first + at.reshape(-1, 1) * self.fold + np.arange(self.fold)
        return np.asarray(np.minimum(leaves.ravel() + 1, self.words), np.int64)

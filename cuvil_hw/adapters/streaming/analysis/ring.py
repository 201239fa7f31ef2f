"""Geometry of the ring of rows that a window generator keeps on chip."""

from __future__ import annotations

from dataclasses import dataclass

from cuvil_hw.adapters.streaming.analysis.stage import Dim, Stage

UNIT = Dim(1, 1)


@dataclass(frozen=True, slots=True)
class Ring:
    """Geometry of a window generator in rows of words: `fold` words a pixel, `rows` in the ring."""

    y: Dim
    x: Dim
    fold: int

    @property
    def row_words(self) -> int:
        return self.x.size * self.fold

    @property
    def rows(self) -> int:
        """Rows that one window spans, plus those that arrive meanwhile."""
        return min(self.y.size, self.y.span + (self.y.stride if self.y.out > 1 else 0))

    @property
    def spread(self) -> int:
        """One word comes in with every `spread` words that leave."""
        return max(1, self.emitted // (self.y.stride * self.row_words))

    def loaded(self, oy: int) -> int:
        """Rows that must be in before output row `oy` starts."""
        return max(0, min(self.y.size, oy * self.y.stride - self.y.pad + self.y.span))

    @property
    def emitted(self) -> int:
        """Words that leave for one output row."""
        return self.x.out * self.y.kernel * self.x.kernel * self.fold

    def cycles(self) -> int:
        """Cycles for one input: the first rows, then per output row the longer of leaving and arriving, then
        the rest."""
        total = self.loaded(0) * self.row_words
        for oy in range(self.y.out):
            arriving = (self.loaded(oy + 1) - self.loaded(oy)) * self.row_words if oy + 1 < self.y.out else 0
            total += max(self.emitted, arriving)
        return total + (self.y.size - self.loaded(self.y.out - 1)) * self.row_words


def ring(stage: Stage, lanes: int) -> Ring:
    """The generator of a stage whose input words have `lanes` elements. Unit dimensions are dropped."""
    dims = [d for d in stage.dims if not d.unit]
    y, x = (UNIT, *dims)[-2:] if len(dims) < 2 else dims
    if len(dims) == 1:
        y, x = dims[0], UNIT
    return Ring(y, x, stage.channels_in // lanes)

"""The schedule of a process that keeps a ring of words: which of its steps read a word, and which give one.

It reads `lead` words, then gives one word a step, or reads one, whichever are more, with the others evenly spread
between them: so a step never waits for a word that it doesn't need soon. The schedule is the same for every sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

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

    def by(self, given: Counts) -> Counts:
        """Steps after the lead by which so many words have left."""
        return -(-given * self.period // self.emits)

    def read_by(self, given: int, words: int) -> Counts:
        """Of `words` words, those read before each of `given` words leaves."""
        after = self.by(np.arange(1, given + 1, dtype=np.int64))
        return np.minimum(self.lead + after * self.reads // self.period, words)


def scheduled(reads: int, emits: int, needs: Counts, given: Counts, words: int, out: int) -> Schedule:
    """The schedule of a process with a ring that reads `words` words and gives `out`, `reads` to `emits`. `needs`:
    words that must be there when so many (`given`) have left. How much the ring holds isn't known yet (`rows` is 0)."""
    pace = Schedule(0, reads, emits, 0, 0, 0)
    free = pace.by(given) - DISTANCE  # steps that may bring the word
    brought = np.where(free > 0, free * reads // pace.period, free)
    lead = max(1, int((needs - brought).max(initial=1)))
    stop = words if lead >= words else lead + ceil((words - lead) * pace.period / reads)
    last = lead + int(pace.by(np.asarray(out)))
    if stop > last:  # what is left when all words have left comes in one word a step
        read = min(lead + (last - lead) * reads // pace.period, words)
        stop = last + words - read
    return Schedule(lead, reads, emits, stop, last, 0)


def held(plan: Schedule, needs: Counts, given: Counts, words: int) -> int:
    """Words that a ring holds at most; arguments as above."""
    newest = np.minimum(plan.lead + plan.by(given) * plan.reads // plan.period, words)
    oldest = np.minimum.accumulate(needs[::-1])[::-1]
    return min(int((newest - oldest).max(initial=0)) + 1, words)

"""Loops over steps, such as those of a recurrent layer: two ops, and between them what one step computes.

    %i, %h, %x = loop_begin %h0, %xs {steps = 50, carried = 1, reverse = [0]}     values at the start of a step
    %n = …                                                                        the body: whatever depends on these
    %hN, %ys = loop_end %i, %n, %n {steps = 50, carried = 1, reverse = [0]}       after the last step

The body is no region: a value belongs to the loop if it depends on the results of `loop_begin` and lies before
`loop_end`; it is read nowhere behind that, except through the results of `loop_end`. So passes over a body's ops are
those over any ops, and none moves anything across either end. ir/loops.py finds bodies and runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cuvil_hw.ops.base import Array, Op
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class _LoopEdge(Op):
    """`steps`: how many; `carried`: number of states; `reverse`: of each sliced or stacked tensor, whether its last
    element along axis 0 belongs to the first step (0 or 1)."""

    steps: int
    carried: int
    reverse: tuple[int, ...] = ()

    def check(self, given: int) -> None:
        self.want(self.steps > 0, f"{self.steps} steps; a loop takes one at least")
        wanted = self.carried + len(self.reverse)
        self.want(given == wanted, f"{given} tensors for {self.carried} states and {len(self.reverse)} along steps")

    def place(self, number: int, step: int) -> int:
        """The element along axis 0 of sliced or stacked tensor `number` that belongs to a step."""
        return self.steps - 1 - step if self.reverse[number] else step


@dataclass(frozen=True)
class LoopBegin(_LoopEdge):
    """(initial states, tensors with an element per step along axis 0) → (number of the step (i64, shape ()), states
    at its start, elements of the step)."""

    mnemonic: ClassVar[str] = "loop_begin"

    def infer(self, *given: TensorType) -> tuple[TensorType, ...]:
        self.check(len(given))
        whole = given[self.carried :]
        for kind in whole:
            self.want(kind.shape[:1] == (self.steps,), f"{kind} has no element for each of {self.steps} steps")
        return (TensorType((), "i64"), *given[: self.carried], *(k.with_shape(k.shape[1:]) for k in whole))

    def evaluate(self, *given: Array) -> tuple[Array, ...]:
        """Of a loop of one step."""
        self.want(self.steps == 1, "a loop of several steps is evaluated whole (ir/loops.py)")
        return self.at(0, given[: self.carried], given[self.carried :])

    def at(self, step: int, states: Sequence[Array], whole: Sequence[Array]) -> tuple[Array, ...]:
        """The values of a step with `states` at its start."""
        slices = (np.asarray(x[self.place(n, step)]) for n, x in enumerate(whole))
        return (np.asarray(step, np.int64), *states, *slices)


@dataclass(frozen=True)
class LoopEnd(_LoopEdge):
    """(number of the step, as loop_begin gave it; states after the step; results of the step) → (states after the last
    step; the results of all steps along a new axis 0)."""

    mnemonic: ClassVar[str] = "loop_end"

    def infer(self, step: TensorType, *made: TensorType) -> tuple[TensorType, ...]:
        self.want(step == TensorType((), "i64"), f"{step} is no number of a step")
        self.check(len(made))
        stacks = (k.with_shape((self.steps, *k.shape)) for k in made[self.carried :])
        return (*made[: self.carried], *stacks)

    def evaluate(self, step: Array, *made: Array) -> tuple[Array, ...]:
        """Of a loop of one step."""
        self.want(self.steps == 1, "a loop of several steps is evaluated whole (ir/loops.py)")
        return self.gathered([made])

    def gathered(self, made: Sequence[Sequence[Array]]) -> tuple[Array, ...]:
        """The results, from what each step made."""
        stacks = []
        for n in range(len(self.reverse)):
            inorder = [each[self.carried + n] for each in made]
            stacks.append(np.stack(inorder[::-1] if self.reverse[n] else inorder))
        return (*made[-1][: self.carried], *stacks)

"""Calls of kernels as C text: one after another, and in loops over steps where the program has some."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cuvil_hw.contract.loops import StepLoop, outermost
from cuvil_hw.render.c.names import Names


@dataclass(frozen=True, slots=True)
class Steps:
    """`calls`: one for each kernel; `local`: the pointer to each buffer and view; `used`: those that anything reads."""

    calls: Sequence[str]
    local: Mapping[str, str]
    used: Collection[str]
    names: Names

    def lines(self, loops: Sequence[StepLoop], at: int, stop: int) -> list[str]:
        """The calls number `at` to `stop` - 1, with the loops around them."""
        lines = []
        for number, loop, inner in outermost(loops, at, stop):
            if loop is None:
                lines.append(self.calls[number])
                continue
            t = self.names.new("t")
            inside = [*self._views(loop, t), *self.lines(inner, number, loop.last + 1)]
            lines += [f"for (long {t} = 0; {t} < {loop.steps}; ++{t}) {{", *(f"  {line}" for line in inside), "}"]
        return lines

    def _views(self, loop: StepLoop, t: str) -> list[str]:
        """Pointers to what moves from step to step (contract/loops.py says where it lies)."""
        lies, local = {}, self.local
        for s in loop.sliced:
            step = f"({loop.steps - 1} - {t})" if s.reverse else t
            lies[s.view] = f"(char *){local[s.whole]} + {step} * {s.stride}"
        for c in loop.carried:
            initial, final, even, odd = (local[b] for b in (c.initial, c.final, c.even, c.odd))
            lies[c.read] = f"{t} == 0 ? (void *){initial} : {t} % 2 ? {even} : {odd}"
            lies[c.written] = f"{t} == {loop.steps - 1} ? {final} : {t} % 2 ? {odd} : {even}"
        return [f"void *{local[view]} = {place};" for view, place in lies.items() if view in self.used]

"""Loops around kernels that run one after another, as data: which kernels a loop repeats, and where those buffers lie
that move from step to step ("views"). Compiler, devices and tests read the same form."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

Place = tuple[str, int]  # a buffer, and bytes from its start


@dataclass(frozen=True, slots=True)
class Sliced:
    """`view`: the element of `whole` (along axis 0, of `stride` bytes) that belongs to the step; `reverse`: the last
    element belongs to the first step."""

    view: str
    whole: str
    stride: int
    reverse: bool


@dataclass(frozen=True, slots=True)
class Carried:
    """A state. `read`: the view with its value at the start of a step, which is `initial` in the first. `written`: the
    view that a step writes; it is `final` in the last step, and `even` or `odd` in those before."""

    read: str
    written: str
    initial: str
    final: str
    even: str
    odd: str


@dataclass(frozen=True, slots=True)
class StepLoop:
    """Kernels number `first` to `last` (both included) run `steps` times. Loops that share kernels lie one within the
    other; outer ones come first."""

    first: int
    last: int
    steps: int
    sliced: tuple[Sliced, ...]
    carried: tuple[Carried, ...]

    def places(self, step: int) -> dict[str, Place]:
        """Where each view lies in a step."""
        found = {s.view: (s.whole, s.stride * (self.steps - 1 - step if s.reverse else step)) for s in self.sliced}
        for c in self.carried:
            found[c.read] = ((c.odd if step % 2 == 0 else c.even) if step else c.initial, 0)
            found[c.written] = (c.final if step == self.steps - 1 else c.odd if step % 2 else c.even, 0)
        return found

    @property
    def bases(self) -> tuple[str, ...]:
        """The buffers, or views of a loop around this one, in which its views lie."""
        states = [b for c in self.carried for b in (c.initial, c.final, c.even, c.odd)]
        return tuple(dict.fromkeys([*(s.whole for s in self.sliced), *states]))

    @property
    def views(self) -> tuple[str, ...]:
        return (*(s.view for s in self.sliced), *(v for c in self.carried for v in (c.read, c.written)))


def check(loops: Sequence[StepLoop], kernels: int, sizes: Mapping[str, int]) -> None:
    """Raises ValueError for loops that can't be: over other kernels than there are, or with views that reach beyond
    their buffers. `sizes`: bytes of every buffer and view."""
    for loop in loops:
        if not 0 <= loop.first <= loop.last < kernels or loop.steps < 1:
            raise ValueError(f"a loop takes {loop.steps} steps over kernels {loop.first} to {loop.last} of {kernels}")
        if missing := [name for name in (*loop.views, *loop.bases) if name not in sizes]:
            raise ValueError(f"buffer {missing[0]} of a loop isn't there")
        for s in loop.sliced:
            if s.stride < sizes[s.view] or s.stride * loop.steps > sizes[s.whole]:
                raise ValueError(f"view {s.view} of a loop reaches beyond {s.whole}")
        for c in loop.carried:
            if len({sizes[n] for n in (c.read, c.written, c.initial, c.final, c.even, c.odd)}) > 1:
                raise ValueError(f"buffers of state {c.read} differ in size")


def writable(loops: Sequence[StepLoop], buffers: Collection[str]) -> set[str]:
    """The views that lie in `buffers`, which may be written, whatever the step."""
    found: set[str] = set()
    for loop in loops:
        found |= {s.view for s in loop.sliced if s.whole in buffers or s.whole in found}
        found |= {c.written for c in loop.carried if {c.final, c.even, c.odd} <= {*buffers, *found}}
    return found


def expanded(loops: Sequence[StepLoop], kernels: int, most: int = 0) -> Iterator[tuple[int, Mapping[str, Place]]]:
    """Every run of a kernel, in order: its number, and where the views lie then. `most`: of each loop only that many
    steps, the last one among them; 0: all."""
    yield from _expanded(loops, 0, kernels, {}, most)


def outermost(
    loops: Sequence[StepLoop], at: int, stop: int
) -> Iterator[tuple[int, StepLoop | None, Sequence[StepLoop]]]:
    """Kernels number `at` to `stop` - 1, in order: the number of one in no loop, or that of the first in a loop, the
    loop, and those that may lie within it."""
    while at < stop:
        number = next((n for n, loop in enumerate(loops) if loop.first == at and loop.last < stop), None)
        if number is None:
            yield at, None, ()
            at += 1
        else:
            yield at, loops[number], loops[number + 1 :]
            at = loops[number].last + 1


def _expanded(
    loops: Sequence[StepLoop], at: int, stop: int, known: Mapping[str, Place], most: int
) -> Iterator[tuple[int, Mapping[str, Place]]]:
    for number, loop, inner in outermost(loops, at, stop):
        if loop is None:
            yield number, known
            continue
        for step in range(loop.steps):
            if not most or step < most - 1 or step == loop.steps - 1:
                here = {view: _inside(place, known) for view, place in loop.places(step).items()}
                yield from _expanded(inner, number, loop.last + 1, {**known, **here}, most)


def _inside(place: Place, known: Mapping[str, Place]) -> Place:
    """The same place in a buffer that isn't a view itself."""
    base, start = known.get(place[0], (place[0], 0))
    return base, start + place[1]

"""Ways to run kernels as data: what an adapter proposes and what the solver picks. No IR in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

# What counts: of kernels that run all at once and stream the slowest, of kernels that run one after another their sum.
Objective = Literal["slowest", "sum"]


class Described(Protocol):
    """All that the solver and the report ask of a form, one way to run one kernel (adapters/base.py has the rest)."""

    def describe(self) -> str:
        """One line for people; forms of a kernel that differ say so."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost of one kernel under one form.

    `seconds` and `cycles`: for one inference, the time the kernel is busy (its initiation
    interval in a dataflow design); `use`: amount per resource axis; `origin`: "analytic",
    "measured (command)", "simulated" or "vendor".
    """

    seconds: float
    cycles: int
    use: Mapping[str, float] = field(default_factory=dict)
    origin: str = "analytic"

    def times(self, runs: int) -> Estimate:
        """Of a kernel that runs so often for one inference."""
        return replace(self, seconds=self.seconds * runs, cycles=self.cycles * runs) if runs > 1 else self


@dataclass(frozen=True, slots=True)
class Candidate:
    form: Described
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class KernelChoices:
    """Everything the solver may know about one kernel: a name, where it came from, its candidates."""

    name: str
    loc: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an error says of a program that doesn't fit, in words or "": `constants`: what they take beside what the
    target's memories hold; `elsewhere`: where the program fits."""

    constants: str = ""
    elsewhere: str = ""


@dataclass(frozen=True, slots=True)
class Proposals:
    """Everything that the solver may know of a program. `overhead`: use per axis, and `paced`: cycles, that are
    there whatever is picked; `surroundings`: called when nothing fits."""

    kernels: tuple[KernelChoices, ...]
    objective: Objective
    overhead: Mapping[str, float] = field(default_factory=dict)
    paced: int = 0
    surroundings: Callable[[], Surroundings] = field(default=Surroundings, compare=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """The solver's answer: one candidate per kernel, in kernel order.

    `objective`/`bound`: cycles of the chosen design and the proven lower bound; `use`: total
    per axis, `fixed` overhead included; `style`: "spatial" (slowest stage) or "temporal" (sum).
    """

    picked: tuple[tuple[str, Candidate], ...]
    objective: float
    bound: float
    use: Mapping[str, float]
    style: str
    _by_name: dict[str, Candidate] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", dict(self.picked))

    def candidate(self, kernel: str) -> Candidate:
        return self._by_name[kernel]

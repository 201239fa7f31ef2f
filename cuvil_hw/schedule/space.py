"""Schedules as data: what an adapter proposes and what the solver picks. No IR in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a multi-level tiling.

    `tile`: (iterator name, tile size); `bind`: what runs a tile ("serial", "vector", "unroll",
    "pipeline", "block", "thread", "core", "intrinsic"); `stage`: (operand name, memory space).
    """

    tile: tuple[tuple[str, int], ...]
    bind: str
    stage: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one kernel is run. FPGA folding is a Level with bind "unroll": tile ("o", PE), ("k", SIMD)."""

    levels: tuple[Level, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def tile(self, iterator: str, bind: str) -> int:
        """Tile size of `iterator` on the level bound to `bind`; 1 when it is not tiled there."""
        for level in self.levels:
            if level.bind == bind:
                for name, size in level.tile:
                    if name == iterator:
                        return size
        return 1

    def option(self, name: str, default: str = "") -> str:
        return dict(self.options).get(name, default)

    def stage(self, operand: str, default: str = "") -> str:
        """Memory space in which `operand` is staged on the innermost level that names it."""
        for level in reversed(self.levels):
            for name, space in level.stage:
                if name == operand:
                    return space
        return default

    def describe(self) -> str:
        """One line for reports: `unroll o=4 k=8 w@bram`."""
        parts = [
            " ".join([lv.bind, *(f"{n}={s}" for n, s in lv.tile), *(f"{o}@{m}" for o, m in lv.stage)])
            for lv in self.levels
        ]
        return "; ".join(parts + [f"{k}={v}" for k, v in self.options]) or "default"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost of one kernel under one schedule.

    `seconds` and `cycles`: for one inference, the time the kernel is busy (its initiation
    interval in a dataflow design); `use`: amount per resource axis; `origin`: "analytic",
    "measured (command)", "simulated" or "vendor".
    """

    seconds: float
    cycles: int
    use: Mapping[str, float] = field(default_factory=dict)
    origin: str = "analytic"


@dataclass(frozen=True, slots=True)
class Candidate:
    schedule: Schedule
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class KernelChoices:
    """Everything the solver may know about one kernel: a name, where it came from, its candidates."""

    name: str
    loc: str
    candidates: tuple[Candidate, ...]


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

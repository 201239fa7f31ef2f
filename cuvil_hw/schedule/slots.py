"""Time slots: how long a program or a layer may take, checked against the cycles that it takes at worst.

A slot comes once a sample, as those of a time-aware shaper (IEEE 802.1Qbv) come once a cycle: work begins `offset`
after the slot does and is through before it ends, so each sample finds the design empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

from cuvil_hw.errors import CuvilError, MissesSlot
from cuvil_hw.schedule.timing import layer_of

BEST_EFFORT, WATCHED, HARD, HIGHEST = range(4)
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
ORIGIN = "simulated cycles and the stages of pipelines"
_NOISE = 1e-9  # of a number of cycles, from seconds and hertz as floats

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class TimeSlot:
    """`slot`, `offset`: seconds; `criticality`: 0 best effort, figures only; 1 watched: a warning when it is missed; 2
    and 3: an error. Made by `timing`."""

    slot: float
    offset: float
    criticality: int

    def __call__(self, module: M) -> M:
        """Mark a torch module, a layer or a whole model, which keeps the slot wherever it is compiled."""
        module.cuvil_time_slot = self  # type: ignore[attr-defined]
        return module

    def cycles(self, clock_hz: float) -> int:
        """Whole cycles between the offset and the end of the slot."""
        return int((self.slot - self.offset) * clock_hz * (1 + _NOISE))


@dataclass(frozen=True, slots=True)
class SlotUse:
    """What a layer ("": the program) takes at worst of what it may, in cycles."""

    layer: str
    slot: TimeSlot
    cycles: int
    allowed: int

    @property
    def slack(self) -> int:
        """Cycles that are left; below 0 where the slot is missed."""
        return self.allowed - self.cycles

    def to_json(self) -> dict[str, Any]:
        of = self.slot
        return {"layer": self.layer, "slot_s": of.slot, "offset_s": of.offset, "criticality": of.criticality,
                "cycles": self.cycles, "allowed_cycles": self.allowed, "slack_cycles": self.slack,
                "origin": ORIGIN}  # fmt: skip

    def __str__(self) -> str:
        who = f"layer {self.layer}" if self.layer else "the program"
        of = self.slot
        where = f"slot of {_time(of.slot)} from {_time(of.offset)} on, criticality {of.criticality}"
        left = f"slack {self.slack:,}" if self.slack >= 0 else f"{-self.slack:,} too many"
        return f"{who} takes at most {self.cycles:,} cycles of {self.allowed:,} ({where}): {left}"

    @property
    def note(self) -> str:
        """A line for the report."""
        missed = self.slack < 0 and self.slot.criticality >= WATCHED
        return f"{'warning: ' if missed else ''}time slot: {self}; {ORIGIN}"


Slots = TimeSlot | Mapping[str, TimeSlot]


def timing(slot: float | str, offset: float | str = 0.0, criticality: int = HARD) -> TimeSlot:
    """A time slot for `cuvil.compile(timing=…)`: of the program, or in a mapping by layer: its name in the report, or a
    torch module's path. `cuvil.timing("80us")(layer)` marks a torch module itself. Only designs that stream on an FPGA
    have a worst case before they run.

    Args:
        slot: its length, seconds as a number or text with a unit: "800us".
        offset: of the work's begin from the slot's.
        criticality: 0 best effort (figures in the report), 1 watched (a warning), 2 and 3: a miss is a compile error.

    Raises CuvilError for anything that is no such slot.
    """
    length, begin = _seconds("slot", slot), _seconds("offset", offset)
    if not begin < length:
        raise CuvilError(f"timing: offset {_time(begin)} leaves nothing of a slot of {_time(length)}; begin earlier")
    if isinstance(criticality, bool) or criticality not in range(BEST_EFFORT, HIGHEST + 1):
        raise CuvilError(f"timing: criticality is {criticality!r}, not 0 (best effort), 1 (watched), 2 or 3 (hard)")
    return TimeSlot(length, begin, criticality)


def by_layer(slots: Slots | None) -> Mapping[str, TimeSlot]:
    """Slots by layer, "" for the program. Raises CuvilError for anything else."""
    if slots is None:
        return {}
    if isinstance(slots, TimeSlot):
        return {"": slots}
    if isinstance(slots, Mapping):
        odd = [k for k, v in slots.items() if not isinstance(k, str) or not isinstance(v, TimeSlot)]
        if not odd:
            return dict(slots)
    raise CuvilError('timing is what cuvil.timing(slot=…) gives, or a mapping {"layer": cuvil.timing(slot=…)}')


def marked(model: Any) -> dict[str, TimeSlot]:
    """Slots that modules of a torch model are marked with, by path; "" is the model itself."""
    modules = getattr(model, "named_modules", None)
    if not callable(modules):
        return {}
    found = {path: getattr(module, "cuvil_time_slot", None) for path, module in modules()}
    return {path: slot for path, slot in found.items() if isinstance(slot, TimeSlot)}


def checked(
    slots: Mapping[str, TimeSlot], worst: Mapping[str, int], places: Sequence[tuple[str, str]], clock_hz: float
) -> list[SlotUse]:
    """How each slot is used. `worst`: cycles at worst by layer, "" for the program; `places`: name and source location
    of each layer, either of which a slot may name. Raises MissesSlot with all hard slots that are missed, CuvilError
    for a layer that isn't there."""
    found = [
        SlotUse(layer, slot, worst[layer], slot.cycles(clock_hz))
        for name, slot in slots.items()
        for layer in (_named(name, places) if name else ("",))
    ]
    missed = [use for use in found if use.slack < 0 and use.slot.criticality >= HARD]
    if missed:
        raise MissesSlot([str(use) for use in missed])
    return found


def _named(name: str, places: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Layers of that name, or of the module of that path, which stands last in a source location."""
    layers = [layer for layer, loc in places if name in (layer, loc, loc.rpartition(" ")[2])]
    if not layers:
        have = ", ".join(f"{layer} ({loc})" if loc else layer for layer, loc in places)
        raise CuvilError(f"timing: there is no layer {name!r}; the layers are {have}")
    yield from layers


def spans(processes: Mapping[str, tuple[int, int]], layers: Sequence[str]) -> dict[str, int]:
    """Cycles by layer from the begin of its first process to the end of its last. `processes`: begin and end."""
    ends: dict[str, tuple[int, int]] = {}
    for process, (begin, end) in processes.items():
        layer = layer_of(process, layers)
        before = ends.get(layer, (begin, end))
        ends[layer] = min(begin, before[0]), max(end, before[1])
    return {layer: end - begin for layer, (begin, end) in ends.items() if layer}


def _seconds(what: str, given: float | str) -> float:
    value: float | None = None
    if isinstance(given, str):
        text = given.strip()
        unit = max((u for u in _UNITS if text.endswith(u)), key=len, default="")
        try:
            value = float(text.removesuffix(unit)) * _UNITS[unit] if unit else None
        except ValueError:
            value = None
    elif isinstance(given, int | float) and not isinstance(given, bool):
        value = float(given)
    if value is None or not isfinite(value) or value < 0 or (what == "slot" and value == 0):
        raise CuvilError(f'timing: {what} is {given!r}; give seconds as a number, or text as "800us", "1.5ms"')
    return value


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.6g} {unit}"
    return f"{seconds / 1e-9:.6g} ns"

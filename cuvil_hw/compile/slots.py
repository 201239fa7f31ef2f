"""Whether a lowered design keeps the time slots that its user gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cuvil_hw.adapters.base import Adapter, ProvesTime
from cuvil_hw.errors import CuvilError
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.slots import Slots, SlotUse, TimeSlot, by_layer, checked, marked
from cuvil_hw.target.profile import Profile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def slots_of(model: Any, timing: Slots | None) -> dict[str, TimeSlot]:
    """Slots by layer, "" for the program: `timing`, and those that a torch model's modules are marked with."""
    return {**marked(model), **by_layer(timing)}


def in_slots(
    slots: Mapping[str, TimeSlot], adapter: Adapter, module: ModuleOp, design: Design, profile: Profile
) -> tuple[SlotUse, ...]:
    """How each slot is used. `module`: after the adapter has timed it. Raises MissesSlot; CuvilError where no worst
    case is known."""
    if not slots:
        return ()
    if not isinstance(adapter, ProvesTime):
        why = "only designs that stream on an FPGA take cycles that are known before they run"
        raise CuvilError(f"timing: {profile.name} keeps no time slots: {why}; leave `timing` out, or take one")
    worst = adapter.worst_cases(module, design, profile)
    places = [(k.name, k.loc or "") for k in design.graph.kernels]
    return tuple(checked(slots, worst, places, profile.clock_hz))

"""Lattice ECP5: SystemVerilog to a bitstream with open tools alone (Yosys, nextpnr, Trellis)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from cuvil_hw.adapters.base import Golden, Offer, SettingKind
from cuvil_hw.adapters.ecp5.device import INTERFACES
from cuvil_hw.adapters.ecp5.fabric import ECP5, SHELL
from cuvil_hw.adapters.ecp5.parts import contradictions
from cuvil_hw.adapters.ecp5.project import CHECKED, LOGIC_SHARES, line_cycles, plan
from cuvil_hw.adapters.ecp5.record import AXIS_BITS
from cuvil_hw.adapters.ecp5.synthesis import FLOW
from cuvil_hw.adapters.streaming.adapter import Streaming
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.adapters.streaming.rtl.delays import Delays
from cuvil_hw.adapters.streaming.synthesis.yosys import Flow
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.resources import Rule
from cuvil_hw.target.profile import Profile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class Ecp5Adapter(Streaming):
    name = "ecp5"
    interface = "rtl"
    interfaces = INTERFACES
    axes: ClassVar[Mapping[str, Rule]] = {"lut4": "sum", "ff": "sum", "bram18": "sum", "dsp18": "sum"}
    settings: ClassVar[Mapping[str, SettingKind]] = {
        "oscillator_mhz": float,
        "clock_pin": str,
        "rx_pin": str,
        "tx_pin": str,
        "baud": int,
        "loader": str,
        "port": str,
        "bitstream": ("now", "later"),
        "sized_for": ("line", "core"),
    }

    def contradictions(self, profile: Profile) -> Iterable[tuple[str, str]]:
        return contradictions(profile)

    def fabric(self, profile: Profile) -> Fabric:
        return ECP5

    def port_bits(self, profile: Profile) -> int:
        return AXIS_BITS

    def delays(self, profile: Profile) -> Delays:
        """Of the deepest pipelines that its project may be built with."""
        return Delays(period=min(LOGIC_SHARES) * 1e9 / profile.clock_hz)

    def integers(self, profile: Profile) -> str | None:
        return f"the modules of {profile.name} compute in integers"

    def offer(self, graph: KernelGraph, profile: Profile) -> Offer:
        made = super().offer(graph, profile)
        use = {axis: made.overhead.get(axis, 0.0) + SHELL.get(axis, 0.0) for axis in self.axes}
        return Offer(made.forms, use, max(made.paced, line_cycles(graph, profile)))

    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        return plan(module, design, profile)

    def synthesis(self, profile: Mapping[str, Any]) -> Flow:
        return FLOW

    def built(self, products: Mapping[str, bytes]) -> Sequence[str]:
        """What place and route found, for the report."""
        if not products.get(CHECKED):
            return ()
        found = json.loads(products[CHECKED])
        cells = ", ".join(f"{n:,} of {found['available'][axis]:,} {axis}" for axis, n in found["used"].items())
        return (f"placed and routed (nextpnr-ecp5): {found['reached_mhz']:g} MHz; {cells}",)

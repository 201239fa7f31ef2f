"""Intel (Altera) Agilex: OpenCL C with channels and SYCL with pipes, the streaming design that Zynq has too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from cuvil_hw.adapters.agilex.device import INTERFACES
from cuvil_hw.adapters.agilex.fabric import AGILEX7
from cuvil_hw.adapters.agilex.project import project
from cuvil_hw.adapters.base import Golden, SettingKind
from cuvil_hw.adapters.streaming.adapter import Streaming
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.adapters.streaming.lowering.ports import memory_ports
from cuvil_hw.adapters.streaming.project.project import project_name
from cuvil_hw.adapters.streaming.project.rtl import rtl_files
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.resources import Rule
from cuvil_hw.schedule.timing import DesignTiming
from cuvil_hw.target.profile import Profile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

MEMORY_BITS = 64  # of the host's memory that one port moves a cycle, for the cost of its load and store units


class AgilexAdapter(Streaming):
    name = "agilex"
    interfaces = INTERFACES
    axes: ClassVar[Mapping[str, Rule]] = {"alm": "sum", "ff": "sum", "m20k": "sum", "mlab": "sum", "dsp": "sum"}
    settings: ClassVar[Mapping[str, SettingKind]] = {"stall_s": float}

    def fabric(self, profile: Profile) -> Fabric:
        return AGILEX7

    def port_bits(self, profile: Profile) -> int:
        return MEMORY_BITS

    def paced(self, graph: KernelGraph, profile: Profile) -> int:
        """0: a port loads as many elements a cycle as its reader takes, and what the host's memory can give isn't in
        the profile."""
        return 0

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        return memory_ports(super().lower(design, profile))

    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        plan, (streams, _) = project(module, design.graph, profile, golden), self._streams(design, profile)
        name, delays = project_name(design.graph), self.delays(profile)
        rtl = rtl_files(streams, design.graph.constants, name, MEMORY_BITS, delays, required=False)
        return replace(plan, files={**plan.files, **rtl})

    def worst_cases(self, module: ModuleOp, design: Design, profile: Profile) -> Mapping[str, int]:
        streams, timing = self._streams(design, profile)
        return super().worst_cases(streams, replace(design, timing=timing), profile)

    def _streams(self, design: Design, profile: Profile) -> tuple[ModuleOp, DesignTiming]:
        """The design with ports that are streams, as its SystemVerilog has them: narrower than memories, so slower."""
        streams = super().lower(design, profile)
        return streams, super().timing(streams, design, profile)

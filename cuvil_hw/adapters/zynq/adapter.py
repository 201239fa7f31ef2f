"""AMD Zynq and Zynq UltraScale+: Vitis HLS C++ for the fabric, the processor for floats at the border."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden, Offer, SettingKind, Style
from cuvil_hw.adapters.streaming.adapter import Streaming
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.adapters.streaming.synthesis.yosys import Flow
from cuvil_hw.adapters.zynq.device import INTERFACES
from cuvil_hw.adapters.zynq.fabric import FABRICS, STREAM_BITS, fabric, stream_bits
from cuvil_hw.adapters.zynq.parts import contradictions
from cuvil_hw.adapters.zynq.project import project
from cuvil_hw.adapters.zynq.record import FLOWS, RTL
from cuvil_hw.adapters.zynq.synthesis import flow
from cuvil_hw.adapters.zynq.temporal import ZynqTemporal
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.errors import ProfileError
from cuvil_hw.runtime.host_work import HOSTS
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.resources import Rule
from cuvil_hw.target.profile import Profile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class ZynqAdapter(Streaming):
    name = "zynq"
    interfaces = INTERFACES
    axes: ClassVar[Mapping[str, Rule]] = {"lut": "sum", "ff": "sum", "bram18": "sum", "dsp": "sum"}
    packets = True
    settings: ClassVar[Mapping[str, SettingKind]] = {
        "dsp": tuple(FABRICS),
        "axi_stream_bits": STREAM_BITS,
        "host": HOSTS,
        "style": ("auto", "spatial", "temporal"),
        "flow": FLOWS,
        "ddr_gb_s": float,
        "ddr_latency_ns": float,
    }

    def contradictions(self, profile: Profile) -> Iterable[tuple[str, str]]:
        yield from contradictions(profile)
        if _is_rtl(profile) and profile.settings.get("style") == "temporal":
            problem = "the temporal style's engine is C++ for Vitis HLS and has no SystemVerilog"
            yield "settings.flow", f"{problem}; write hls, or settings.style: spatial"

    def integers(self, profile: Profile) -> str | None:
        return (
            f"the SystemVerilog of {profile.name} (settings.flow: rtl) computes in integers"
            if _is_rtl(profile)
            else None
        )

    def fabric(self, profile: Profile) -> Fabric:
        return fabric(profile)

    def port_bits(self, profile: Profile) -> int:
        return stream_bits(profile)

    def offer(self, graph: KernelGraph, profile: Profile) -> Offer:
        bits = stream_bits(profile)
        for port in (*graph.inputs, *graph.outputs):
            dtype = graph.buffers[port].type.dtype
            if 8 * dtypes.to_numpy(dtype).itemsize > bits:
                problem = f"{bits} bits can't carry an element of port {port} ({dtype}); take a wider stream"
                raise ProfileError(profile.source, None, "settings.axi_stream_bits", problem)
        return super().offer(graph, profile)

    def synthesis(self, profile: Mapping[str, Any]) -> Flow:
        return flow(profile)

    def styles(self, profile: Profile) -> Sequence[Style]:
        """By the setting `style`; "auto": the faster of both."""
        other = ZynqTemporal()
        spatial, temporal = Style("spatial", self), Style("temporal", other, least_cycles=other.least_cycles)
        if _is_rtl(profile):
            return (replace(spatial, reason="its core is SystemVerilog (settings.flow: rtl)"),)
        match profile.setting("style", "auto"):
            case "spatial":
                return (spatial,)
            case "temporal":
                return (replace(temporal, reason="the profile asks for it (settings.style)"),)
        return (spatial, temporal)

    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        # What a driver may expect of a batch: cycles from one sample to the next.
        interval = ceil(design.timing.interval) if design.timing is not None else 0
        return project(module, design.graph, profile, golden, interval)


def _is_rtl(profile: Profile) -> bool:
    return profile.settings.get("flow") == RTL

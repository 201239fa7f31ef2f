"""AMD Zynq and Zynq UltraScale+: Vitis HLS C++ for the fabric, the processor for floats at the border."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.fpga import cost, dataflow, fold
from cuvil_hw.adapters.fpga.stage import classify, refusal
from cuvil_hw.adapters.zynq.device import open_device
from cuvil_hw.adapters.zynq.fabric import fabric, stream_bits
from cuvil_hw.adapters.zynq.project import project
from cuvil_hw.build import BuildPlan
from cuvil_hw.profile import Profile
from cuvil_hw.runtime.device import Device
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.measured import Measured
from cuvil_hw.schedule.space import Choice, Estimate, Schedule

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cuvil_hw.ops.base import Op
    from cuvil_hw.types import TensorType


class ZynqAdapter:
    """See adapters/base.py for the contract."""

    name = "zynq"
    interface = "sim"
    float_ends = True
    axes = ("lut", "ff", "bram18", "dsp")

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        return refusal(op, inputs, outputs, profile.name)

    def schedules(self, kernel: Kernel, profile: Profile) -> Iterable[Schedule]:
        return fold.schedules(classify(kernel), fabric(profile).floats)

    def estimate(self, kernel: Kernel, schedule: Schedule, profile: Profile) -> Estimate:
        stage = classify(kernel)
        cycles = cost.cycles(stage, schedule, fabric(profile).floats)
        family = fabric(profile)
        use = cost.resources(stage, schedule, family).axes(family)
        return Estimate(cycles / profile.clock_hz, cycles, use)

    def overhead(self, graph: KernelGraph, profile: Profile) -> Mapping[str, float]:
        return dataflow.overhead(graph, fabric(profile), stream_bits(profile))

    def lower(self, graph: KernelGraph, choice: Choice, profile: Profile) -> ModuleOp:
        return dataflow.lower(graph, choice, stream_bits(profile))

    def plan(self, module: ModuleOp, graph: KernelGraph, choice: Choice, profile: Profile, golden: Golden) -> BuildPlan:
        return project(module, graph, profile, golden)

    def measure(self, plan: BuildPlan, profile: Profile) -> Measured:
        return Measured()

    def open(self, profile: Profile, interface: str) -> Device:
        return open_device(asdict(profile), interface)

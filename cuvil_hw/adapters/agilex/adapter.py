"""Intel (Altera) Agilex: OpenCL C with channels and SYCL with pipes, the streaming design that Zynq has too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from cuvil_hw.adapters.agilex.device import open_device
from cuvil_hw.adapters.agilex.fabric import AGILEX7
from cuvil_hw.adapters.agilex.project import project
from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.fpga import cost, dataflow, fold, ports
from cuvil_hw.adapters.fpga.stage import classify, refusal
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

MEMORY_BITS = 64  # of the host's memory that one port moves a cycle, for the cost of its load and store units


class AgilexAdapter:
    """See adapters/base.py for the contract."""

    name = "agilex"
    interface = "sim"
    float_ends = True
    axes = ("alm", "ff", "m20k", "mlab", "dsp")

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        return refusal(op, inputs, outputs, profile.name)

    def schedules(self, kernel: Kernel, profile: Profile) -> Iterable[Schedule]:
        return fold.schedules(classify(kernel), AGILEX7.floats)

    def estimate(self, kernel: Kernel, schedule: Schedule, profile: Profile) -> Estimate:
        stage = classify(kernel)
        cycles = cost.cycles(stage, schedule, AGILEX7.floats)
        use = cost.resources(stage, schedule, AGILEX7).axes(AGILEX7)
        return Estimate(cycles / profile.clock_hz, cycles, use)

    def overhead(self, graph: KernelGraph, profile: Profile) -> Mapping[str, float]:
        return dataflow.overhead(graph, AGILEX7, MEMORY_BITS)

    def lower(self, graph: KernelGraph, choice: Choice, profile: Profile) -> ModuleOp:
        return ports.memory_ports(dataflow.lower(graph, choice, MEMORY_BITS))

    def plan(self, module: ModuleOp, graph: KernelGraph, choice: Choice, profile: Profile, golden: Golden) -> BuildPlan:
        return project(module, graph, profile)

    def measure(self, plan: BuildPlan, profile: Profile) -> Measured:
        return Measured()

    def open(self, profile: Profile, interface: str) -> Device:
        return open_device(asdict(profile), interface)

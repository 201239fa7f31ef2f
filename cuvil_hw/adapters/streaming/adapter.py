"""The contract for streaming designs, apart from what a family, its languages and its devices are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from cuvil_hw.adapters.base import Golden, SettingKind
from cuvil_hw.adapters.streaming.analysis import cost, fold
from cuvil_hw.adapters.streaming.analysis.stage import classify, refusal
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Device
from cuvil_hw.ops.base import Op
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.measured import Measured
from cuvil_hw.schedule.space import Estimate, Schedule
from cuvil_hw.target.profile import Profile
from cuvil_hw.types import TensorType

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class Streaming(ABC):
    """See adapters/base.py for the contract. A target adds its family (`fabric`, `port_bits`), `plan` and `open`."""

    interface = "sim"
    interfaces: ClassVar[tuple[str, ...]]
    settings: ClassVar[Mapping[str, SettingKind]]
    float_ends = True
    axes: ClassVar[tuple[str, ...]]
    alignment = 64
    packets = False  # whether a packet of a port may carry many samples

    @abstractmethod
    def fabric(self, profile: Profile) -> cost.Fabric:
        """The family of a profile. Raises ProfileError."""

    @abstractmethod
    def port_bits(self, profile: Profile) -> int:
        """Bits that a port moves a cycle. Raises ProfileError."""

    @abstractmethod
    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        """See the contract."""

    @abstractmethod
    def open(self, profile: Profile, interface: str) -> Device:
        """See the contract."""

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        return refusal(op, inputs, outputs, profile.name)

    def schedules(self, kernel: Kernel, profile: Profile) -> Iterable[Schedule]:
        return fold.schedules(classify(kernel), self.fabric(profile).floats)

    def estimate(self, kernel: Kernel, schedule: Schedule, profile: Profile) -> Estimate:
        stage, family = classify(kernel), self.fabric(profile)
        cycles = cost.cycles(stage, schedule, family.floats)
        use = cost.resources(stage, schedule, family).axes(family)
        return Estimate(cycles / profile.clock_hz, cycles, use)

    def overhead(self, graph: KernelGraph, profile: Profile) -> Mapping[str, float]:
        return dataflow.overhead(graph, self.fabric(profile), self.port_bits(profile), self.packets)

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        return dataflow.lower(design.graph, design.choice, self.port_bits(profile), self.packets)

    def measure(self, plan: BuildPlan, profile: Profile) -> Measured:
        return Measured()

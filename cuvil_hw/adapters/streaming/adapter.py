"""The contract for streaming designs, apart from what a family, its languages and its devices are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden, Offer, SettingKind
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric, fifo_kind, fifo_use
from cuvil_hw.adapters.streaming.analysis.order import stream_orders, whole_ports
from cuvil_hw.adapters.streaming.analysis.stage import foldable, refusal
from cuvil_hw.adapters.streaming.lowering import dataflow
from cuvil_hw.adapters.streaming.lowering.form import Process, processes
from cuvil_hw.adapters.streaming.rtl.delays import Delays
from cuvil_hw.adapters.streaming.rtl.emit import stages
from cuvil_hw.adapters.streaming.rtl.worst import worst_cases
from cuvil_hw.adapters.streaming.synthesis.yosys import Flow
from cuvil_hw.adapters.streaming.timing.figures import time_design
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.errors import CuvilError
from cuvil_hw.ops.base import Op
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.resources import Rule
from cuvil_hw.schedule.space import Objective
from cuvil_hw.schedule.timing import DesignTiming
from cuvil_hw.target.profile import Profile
from cuvil_hw.types import TensorType

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class Streaming(ABC):
    """See adapters/base.py for the contract. A target adds its family (`fabric`, `port_bits`) and `plan`."""

    interface = "sim"
    interfaces: ClassVar[tuple[str, ...]]
    settings: ClassVar[Mapping[str, SettingKind]]
    float_ends = True
    axes: ClassVar[Mapping[str, Rule]]
    objective: Objective = "slowest"
    alignment = 1  # nothing lies in memory
    packets = False  # whether a packet of a port may carry many samples

    @abstractmethod
    def fabric(self, profile: Profile) -> Fabric:
        """The family of a profile. Raises ProfileError."""

    @abstractmethod
    def port_bits(self, profile: Profile) -> int:
        """Bits that a port moves a cycle. Raises ProfileError."""

    def integers(self, profile: Profile) -> str | None:
        """Why designs for a profile compute in integers alone; None where they needn't."""
        return None

    def delays(self, profile: Profile) -> Delays:
        """For the stages of its SystemVerilog."""
        return Delays.at(profile.clock_hz)

    @abstractmethod
    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        """See the contract."""

    def synthesis(self, profile: Mapping[str, Any]) -> Flow:
        """How Yosys maps designs to the family of a profile, given as data. Raises CuvilError where it can't."""
        part = profile.get("part") or profile.get("name")
        raise CuvilError(f"yosys maps no designs to {part}; take the vendor's tools")

    def channels(self, count: int) -> int:
        """See FoldsChannels."""
        return foldable(count)

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        why = self.integers(profile)
        if why is not None and any(dtypes.is_float(kind.dtype) for kind in (*inputs, *outputs)):
            return f"{op.mnemonic} works on floats, and {why}; choose int8"
        return refusal(op, inputs, outputs, profile.name)

    def offer(self, graph: KernelGraph, profile: Profile) -> Offer:
        fabric = self.fabric(profile)
        orders = stream_orders(graph)
        ends = whole_ports(graph)
        forms = [processes(kernel, fabric, graph.constants, orders, ends) for kernel in graph.kernels]
        narrow = [f[0] for f in forms]
        overhead = dataflow.overhead(graph, narrow, fabric, self.port_bits(profile), self.packets)
        return Offer(forms, overhead, self.paced(graph, profile))

    def paced(self, graph: KernelGraph, profile: Profile) -> int:
        """Cycles in which the ports move a sample: layers that are faster would only wait for them."""
        return dataflow.port_cycles(graph, self.port_bits(profile))

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        return dataflow.lower(design.graph, design.forms(Process), self.port_bits(profile), self.packets)

    def timing(self, module: ModuleOp, design: Design, profile: Profile) -> DesignTiming:
        fabric, used = self.fabric(profile), design.choice.use
        spare = {a.name: max(a.budget - used.get(a.name, 0.0), 0.0) for a in profile.axes if a.rule == "sum"}

        def price(depth: int, bits: int) -> Mapping[str, float]:
            return fifo_use(fabric, depth, bits).axes(fabric)

        def made_of(depth: int, bits: int) -> str:
            return fifo_kind(fabric, depth, bits)

        return time_design(module, design.graph.constants, price, made_of, spare)

    def worst_cases(self, module: ModuleOp, design: Design, profile: Profile) -> Mapping[str, int]:
        assert design.timing is not None
        top, plans = stages(module, design.graph.constants, self.delays(profile))
        return worst_cases(top, plans, design.timing, [k.name for k in design.graph.kernels])

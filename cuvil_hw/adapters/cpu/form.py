"""How a kernel runs on a processor: a loop nest with accumulators side by side in vector lanes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from xdsl.dialects.func import FuncOp

from cuvil_hw.adapters.cpu import cost
from cuvil_hw.adapters.sequential.alike import form_of
from cuvil_hw.adapters.sequential.nest import Layout, Nest, apply
from cuvil_hw.lower.emit import Tables
from cuvil_hw.schedule.kernel import Buffer, Kernel
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile


@dataclass(frozen=True, slots=True)
class LoopNest:
    """`lanes`: accumulators along the iterator `vector` ("": none); 0 for a kernel without a reduction. `layouts`:
    physical order of its buffers, by name, where it isn't the logical one."""

    kernel: Kernel = field(compare=False, repr=False)
    vector: str
    lanes: int
    layouts: Mapping[str, Layout] = field(compare=False, repr=False)

    @property
    def nest(self) -> Nest:
        return Nest(self.vector, self.lanes, self.layouts)

    def describe(self) -> str:
        return f"lanes={self.lanes}" if self.lanes else "default"

    def estimate(self, profile: Profile) -> Estimate:
        return cost.estimate(self.kernel, self.lanes, profile)

    def alike(self, buffers: Mapping[str, Buffer]) -> Hashable:
        """What the function of a form depends on besides its names: equal ones need one function."""
        orders = tuple(self.nest.layout(buffers[name]) for name in (*self.kernel.inputs, self.kernel.output))
        return form_of(self.kernel), self.vector, self.lanes, orders

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        return apply(self.kernel, self.nest, buffers, tables, symbol, layer)

"""Compiles for the accelerator: one kernel a layer, run one after another by commands of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden, Offer, SettingKind
from cuvil_hw.adapters.sequential.form import emit_functions
from cuvil_hw.adapters.sequential.nest import Nest, apply
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.lower.emit import Tables
from cuvil_hw.render.c.cfamily import render
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Buffer, Kernel, KernelGraph
from cuvil_hw.schedule.resources import Rule
from cuvil_hw.schedule.space import Estimate, Objective
from cuvil_hw.target.profile import Profile
from cuvil_toy.lang import HEADER, TOY_C

if TYPE_CHECKING:
    from cuvil_hw.ops.base import Op
    from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class Lanes:
    """A kernel with so many accumulators side by side."""

    kernel: Kernel = field(compare=False)
    lanes: int

    def describe(self) -> str:
        return f"lanes={self.lanes}"

    def estimate(self, profile: Profile) -> Estimate:
        """One operation a lane and cycle; the scratchpad holds the accumulators."""
        kernel = self.kernel
        cycles = -(-sum(kernel.op_counts().values()) // self.lanes) + kernel.type.size
        word = dtypes.to_numpy(kernel.reduce.dtype if kernel.reduce else kernel.type.dtype).itemsize
        return Estimate(cycles / profile.clock_hz, cycles, {"scratch": float(64 + self.lanes * word)})

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        widest = max(self.kernel.iterators, key=lambda i: i.extent, default=None)
        nest = Nest(widest.name if widest and self.kernel.reduce else "", self.lanes)
        return apply(self.kernel, nest, buffers, tables, symbol, layer)


class ToyAdapter:
    name = "toy"
    interface = "null"
    interfaces = ("null",)
    settings: ClassVar[Mapping[str, SettingKind]] = {"lanes": int}
    float_ends = True
    objective: Objective = "sum"
    alignment = 64
    axes: ClassVar[Mapping[str, Rule]] = {"scratch": "max"}

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        if any(dtypes.is_float(t.dtype) for t in (*inputs, *outputs)):
            return f"{profile.name} has no float unit; quantize the model"
        return None

    def offer(self, graph: KernelGraph, profile: Profile) -> Offer:
        """1, 2, 4 … accumulators side by side, up to the lanes that there are."""
        widest = profile.setting("lanes", 8)
        return Offer([[Lanes(k, 1 << n) for n in range(widest.bit_length())] for k in graph.kernels])

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        return emit_functions(design, design.forms(Lanes))

    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        """Sources for the vendor's compiler; `info`: the commands that the host queues, and where buffers lie."""
        graph, memory = design.graph, design.memory
        info = {
            "commands": [{"kernel": k.name, "buffers": [*k.inputs, k.output]} for k in graph.kernels],
            "constants": {b.name: b.digest for b in graph.buffers.values() if b.role == "const"},
            "offset_bytes": dict(memory.offset_bytes),
            "arena_bytes": memory.size_bytes,
        }
        source = render(module, TOY_C, graph.constants)
        return BuildPlan({"model.toy.c": source.encode(), "toy.h": HEADER.encode()}, info=info)

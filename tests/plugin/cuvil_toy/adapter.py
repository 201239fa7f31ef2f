"""Compiles for the accelerator: one kernel a layer, run one after another by commands of the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, ClassVar

from xdsl.dialects.builtin import ModuleOp

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden, SettingKind
from cuvil_hw.adapters.sequential.nest import Nest, apply
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Device
from cuvil_hw.lower.emit import Tables
from cuvil_hw.render.c.cfamily import render
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.measured import Measured
from cuvil_hw.schedule.space import Estimate, Schedule
from cuvil_hw.target.profile import Profile
from cuvil_toy.device import open_device
from cuvil_toy.lang import HEADER, TOY_C

if TYPE_CHECKING:
    from cuvil_hw.ops.base import Op
    from cuvil_hw.types import TensorType


class ToyAdapter:
    name = "toy"
    interface = "null"
    interfaces = ("null",)
    settings: ClassVar[Mapping[str, SettingKind]] = {"lanes": int}
    float_ends = True
    alignment = 64
    axes = ("scratch",)

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        if any(dtypes.is_float(t.dtype) for t in (*inputs, *outputs)):
            return f"{profile.name} has no float unit; quantize the model"
        return None

    def schedules(self, kernel: Kernel, profile: Profile) -> Iterable[Schedule]:
        """1, 2, 4 … accumulators side by side, up to the lanes that there are."""
        widest = profile.setting("lanes", 8)
        return [Schedule(options=(("lanes", str(1 << n)),)) for n in range(widest.bit_length())]

    def estimate(self, kernel: Kernel, schedule: Schedule, profile: Profile) -> Estimate:
        """One operation a lane and cycle; the scratchpad holds the accumulators."""
        lanes = int(schedule.option("lanes"))
        cycles = -(-sum(kernel.op_counts().values()) // lanes) + kernel.type.size
        word = dtypes.to_numpy(kernel.reduce.dtype if kernel.reduce else kernel.type.dtype).itemsize
        return Estimate(cycles / profile.clock_hz, cycles, {"scratch": float(64 + lanes * word)})

    def overhead(self, graph: KernelGraph, profile: Profile) -> Mapping[str, float]:
        return {}

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        tables, functions = Tables(design.graph.constants), []
        for number, kernel in enumerate(design.graph.kernels):
            lanes = int(design.choice.candidate(kernel.name).schedule.option("lanes"))
            widest = max(kernel.iterators, key=lambda i: i.extent, default=None)
            nest = Nest(widest.name if widest and kernel.reduce else "", lanes)
            functions.append(apply(kernel, nest, design.graph.buffers, tables, kernel.name, number))
        return ModuleOp([*tables.ops, *functions])

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

    def measure(self, plan: BuildPlan, profile: Profile) -> Measured:
        return Measured()

    def open(self, profile: Profile, interface: str) -> Device:
        return open_device(asdict(profile), interface)

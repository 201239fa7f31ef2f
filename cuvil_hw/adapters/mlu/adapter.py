"""Cambricon MLU: BANG C entry functions, launched as BLOCK tasks over all cores, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil_hw.adapters.base import Golden, SettingKind
from cuvil_hw.adapters.mlu import cost, tile
from cuvil_hw.adapters.mlu.abi import GENERATIONS
from cuvil_hw.adapters.mlu.device import INTERFACES, MODEL, open_device
from cuvil_hw.adapters.mlu.lower import lower
from cuvil_hw.adapters.mlu.record import BufferRecord, KernelRecord, MluRecord
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Device
from cuvil_hw.contract.record import info_of, seal
from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import Refusal, Unsupported
from cuvil_hw.expr.traverse import walk
from cuvil_hw.lower.emit import Tables
from cuvil_hw.ops.base import Op
from cuvil_hw.render.c.cfamily import render_functions, render_tables, symbols
from cuvil_hw.render.c.names import Names, comment_lines
from cuvil_hw.render.langs.bang import BANG
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import Kernel, KernelGraph
from cuvil_hw.schedule.measured import Measured
from cuvil_hw.schedule.memory import buffer_bytes
from cuvil_hw.schedule.space import Estimate, Schedule
from cuvil_hw.target.profile import Profile
from cuvil_hw.types import TensorType

MAX_BYTES = (1 << 31) - 1  # __memcpy counts bytes with an int


class MluAdapter:
    """See adapters/base.py for the contract."""

    name = "mlu"
    interface = "sim"
    interfaces = INTERFACES
    float_ends = False
    alignment = tile.ALIGN_BYTES
    residual_epilogue = True
    axes = ("nram", "gdram")
    settings: ClassVar[Mapping[str, SettingKind]] = {
        "arch": int,
        "cnrt": tuple(GENERATIONS),
        "clusters": int,
        "cores_per_cluster": int,
        "bandwidth_gb_s": float,
    }

    def refuses(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], profile: Profile
    ) -> str | None:
        if any(t.dtype == "f64" for t in (*inputs, *outputs)):
            return f"{op.mnemonic} works on f64; MLU cores have no double"
        largest = max((prod(t.shape) * to_numpy(t.dtype).itemsize for t in (*inputs, *outputs)), default=0)
        if largest > MAX_BYTES:
            return f"a tensor of {largest:,} bytes; BANG C copies count with 32 bits"
        return None

    def schedules(self, kernel: Kernel, profile: Profile) -> Iterable[Schedule]:
        """Cuts of one output dimension into tiles that fit NRAM. Raises Unsupported for arithmetic on f64."""
        if any(e.dtype == "f64" for e in walk(kernel.body)):
            reason = "computes in f64, and MLU cores have no double"
            raise Unsupported([Refusal(" + ".join(kernel.ops), reason, 1, (kernel.loc,))], kernel.name)
        return tile.schedules(kernel, _nram(profile), cost.cores_of(profile))

    def estimate(self, kernel: Kernel, schedule: Schedule, profile: Profile) -> Estimate:
        return cost.estimate(tile.tile_of(kernel, schedule, _nram(profile)), profile)

    def overhead(self, graph: KernelGraph, profile: Profile) -> Mapping[str, float]:
        return {}

    def lower(self, design: Design, profile: Profile) -> ModuleOp:
        """One function of role "kernel" per kernel, arguments: its inputs, then its output."""
        graph = design.graph
        _check_sizes(graph)
        tables, names, functions = Tables(graph.constants), Names(frozenset()), []
        for kernel in graph.kernels:
            cut = tile.tile_of(kernel, design.choice.candidate(kernel.name).schedule, _nram(profile))
            functions.append(lower(kernel, cut, graph.buffers, tables, names.new(kernel.name)))
        module = ModuleOp([*tables.ops, *functions])
        module.verify()
        return module

    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        graph, memory = design.graph, design.memory
        called = symbols(module, BANG)
        entries = [called[op.sym_name.data] for op in module.body.block.ops if isinstance(op, FuncOp)]
        cores, kernels = cost.cores_of(profile), []
        for kernel, symbol in zip(graph.kernels, entries, strict=True):
            cut = tile.tile_of(kernel, design.choice.candidate(kernel.name).schedule, _nram(profile))
            tasks = max(1, min(cores, cut.count))
            kernels.append(KernelRecord(symbol, tasks, (*kernel.inputs, kernel.output)))
        buffers = {
            name: BufferRecord(
                buffer.role,
                buffer_bytes(buffer),
                buffer.digest if buffer.role == "const" else "",
                memory.offset_bytes.get(name, -1),
            )
            for name, buffer in graph.buffers.items()
        }
        info = info_of(MluRecord(tuple(kernels), buffers, memory.size_bytes))
        heading = "\n".join(comment_lines(f"{graph.name}: generated by cuvil-hw."))
        heading += f"\n// Record {seal(info, *graph.ports())}"
        parts = (heading, BANG.preamble, render_tables(module, BANG, graph.constants), render_functions(module, BANG))
        return BuildPlan({MODEL: "\n".join(p for p in parts if p).encode()}, (), (), info)

    def measure(self, plan: BuildPlan, profile: Profile) -> Measured:
        return Measured()

    def open(self, profile: Profile, interface: str) -> Device:
        return open_device(asdict(replace(profile, source=profile.name)), interface)


def _nram(profile: Profile) -> float:
    return profile.axis("nram").budget


def _check_sizes(graph: KernelGraph) -> None:
    big = [b for b in graph.buffers.values() if buffer_bytes(b) > MAX_BYTES]
    if big:
        reason = f"{buffer_bytes(big[0]):,} bytes; BANG C copies count with 32 bits"
        raise Unsupported([Refusal("tensor", reason, len(big), tuple(b.name for b in big))], graph.name)

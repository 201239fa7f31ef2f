"""Packs the results of a compilation into one artifact: manifest, IR, weights, sources, products, report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from cuvil_hw.adapters.base import Adapter
from cuvil_hw.compile.partition import Partition
from cuvil_hw.compile.precision import Precision
from cuvil_hw.compile.report import build_report
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.device import Array, Port
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import level1
from cuvil_hw.ir.graphviz import graph_of
from cuvil_hw.ir.program import Program
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime import host_work
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.manifest import Manifest
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.target.profile import Profile
from cuvil_hw.types import TensorType


def pack(
    program: Program,
    parts: Partition,
    design: Design,
    precision: Precision,
    plan: BuildPlan,
    products: Mapping[str, bytes],
    profile: Profile,
    adapter: Adapter,
    interface: str | None,
) -> Artifact:
    """Everything that running needs, in one artifact. Equal compilations give equal bytes."""
    graph, host = design.graph, str(profile.settings.get("host", ""))
    manifest = Manifest(
        model=program.name,
        adapter=profile.adapter,
        profile=profile_data(profile),
        inputs=_ports(program.inputs),
        outputs=_ports(program.outputs),
        device_inputs=graph.ports()[0],
        device_outputs=graph.ports()[1],
        prologue=parts.prologue,
        epilogue=parts.epilogue,
        interface=interface or adapter.interface,
        info=plan.info,
        abi=_abi(plan),
        calling=program.calling,
    )
    report = build_report(
        model=program.name,
        target={"name": profile.name, "adapter": profile.adapter, "part": profile.part, "board": profile.board},
        precision=precision.label,
        kernels=graph,
        choice=design.choice,
        timing=design.timing,
        slots=design.slots,
        axes=profile.axes,
        clock_hz=profile.clock_hz,
        fixed=design.overhead,
        memory=design.memory,
        live_bytes=design.live_bytes,
        prologue=parts.prologue,
        epilogue=parts.epilogue,
        state=[(s.input, dict(program.inputs)[s.input]) for s in program.calling.states],
        graph=graph_of(parts.core),
        quantization=program.notes.get("quantization"),
        host=host_work.entries(parts.host, host),
        notes=[
            *(f"warning: {text}" for text in host_work.warnings(parts.host, host)),
            *(f"assumed: {text}" for text in program.notes.get("assumed", ())),
            *program.notes.get("precision", ()),
            *program.notes.get("measured", ()),
            *program.notes.get("style", ()),
            *program.notes.get("loops", ()),
            *parts.core.notes.get("channels", ()),
            *program.notes.get("built", ()),
            *(use.note for use in design.slots),
        ],
    )
    return container.assemble(
        manifest,
        level1=program.text() + "\n",
        report=report,
        constants={**constants(program, graph), **parts.constants, **_initial(program)},
        sources=plan.files,
        products=products,
    )


def constants(program: Program, graph: KernelGraph) -> dict[str, Array]:
    """The arrays that the level1 text and the device program name, by digest."""
    named = [op.handle.data for op in program.block.ops if isinstance(op, level1.ConstOp) and op.handle is not None]
    named += [buffer.digest for buffer in graph.buffers.values() if buffer.role == "const"]
    return {digest: graph.constants[digest] for digest in named}


def _initial(program: Program) -> dict[str, Array]:
    return {s.initial: program.constants[s.initial] for s in program.calling.states if s.initial}


def profile_data(profile: Profile) -> dict[str, Any]:
    """A profile as JSON data for a manifest. Where its file lies is left out: equal profiles give equal artifacts."""
    return asdict(replace(profile, source=profile.name))


def _ports(named: Iterable[tuple[str, TensorType]]) -> tuple[Port, ...]:
    return tuple(Port(name, kind.shape, kind.dtype) for name, kind in named)


def _abi(plan: BuildPlan) -> dict[str, str]:
    """The kind of host that can run the products itself, if the adapter's plan states one."""
    abi = plan.info.get("abi", {})
    if not isinstance(abi, Mapping):
        raise CuvilError(f"the plan's abi is {abi!r}, not a mapping of machine and system; repair the adapter")
    return {str(key): str(value) for key, value in abi.items()}

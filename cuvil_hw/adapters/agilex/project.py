"""The sources of a design: OpenCL C with channels, the same with buffers, and SYCL, as a BuildPlan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects import func
from xdsl.ir import SSAValue

from cuvil_hw.adapters.agilex.host import COMPILER, MAIN, host_files
from cuvil_hw.adapters.agilex.record import AgilexRecord, ProcessRecord, StreamRecord
from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.streaming.analysis.streamed import crossing
from cuvil_hw.adapters.streaming.project.project import TOP, facts, has_floats, project_name
from cuvil_hw.adapters.streaming.project.record import PortRecord
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Array
from cuvil_hw.contract.record import info_of, seal
from cuvil_hw.ir.level2 import StreamOp, StreamReadOp, StreamType, StreamWriteOp
from cuvil_hw.render.c.cfamily import render_functions, render_streams, render_tables, streams, symbols
from cuvil_hw.render.c.lang import Lang
from cuvil_hw.render.c.scalar import native_type
from cuvil_hw.render.langs.opencl import OPENCL, OPENCL_BUFFERS
from cuvil_hw.render.langs.sycl import SYCL
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.target.profile import Profile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def project(module: ModuleOp, graph: KernelGraph, profile: Profile, golden: Golden) -> BuildPlan:
    """All files of the project. Compilers for hardware are optional commands: they need the vendor's tools."""
    name = project_name(graph)
    kernels = _kernels(module)
    record = AgilexRecord(**facts(graph), kernels=kernels, streams=_streams(module))
    info = info_of(record)
    head = f"// Record {seal(info, *graph.ports())}\n".encode()
    files = {
        f"src/{name}.cl": head + _source(module, graph, OPENCL, (TOP,)),
        f"src/{name}_buffers.cl": head + _source(module, graph, OPENCL_BUFFERS, (TOP,)),
        f"src/{name}.sycl.cpp": head + _source(module, graph, SYCL, ()),
    }
    board = f"-board={profile.board}" if profile.board else "-board=default"
    opencl = Command(
        ("aoc", board, f"src/{name}.cl", "-o", f"{name}.aocx"),
        "compile the kernels for the card",
        "install the FPGA SDK for OpenCL of the card's vendor and put aoc on PATH",
        optional=True,
    )
    exact = ("-fp-model=precise",) if has_floats(module) else ()  # its default reorders sums
    flags = ("-fsycl", "-fintelfpga", *exact)

    def crossed(arrays: tuple[Array, ...], ports: tuple[PortRecord, ...]) -> tuple[Array, ...]:
        return tuple(crossing(a, p.order) for a, p in zip(arrays, ports, strict=False))

    ends = crossed(golden.inputs, record.inputs), crossed(golden.outputs, record.outputs)
    files |= host_files(graph, name, profile.part, flags, Golden(lambda: ends))
    sycl = Command(
        (COMPILER, *flags, "-Xshardware", f"-Xstarget={profile.part}", MAIN, "-o", f"{name}.fpga"),
        "compile the SYCL source and its host program for the device",
        "install oneAPI 2025.0, the last release with FPGA support, and put icpx on PATH",
        optional=True,
    )
    return BuildPlan(files, (opencl, sycl), (), info)


def _source(module: ModuleOp, graph: KernelGraph, lang: Lang, without: tuple[str, ...]) -> bytes:
    tasks = ""
    if lang is SYCL:  # the names of kernels have to be visible at namespace scope
        tasks = "".join(f"class {k.name}_task;\n" for k in _kernels(module, SYCL))
    floats = "#pragma OPENCL FP_CONTRACT OFF\n" if lang is not SYCL and has_floats(module) else ""
    parts = (
        lang.preamble + floats,
        render_streams(module, lang) + tasks,
        render_tables(module, lang, graph.constants),
        render_functions(module, lang, without),
    )
    return "\n".join(p for p in parts if p).encode()


def _kernels(module: ModuleOp, lang: Lang = OPENCL) -> tuple[ProcessRecord, ...]:
    """The processes in the order of their calls."""
    names, joined = symbols(module, lang), streams(module, lang)
    functions = {f.sym_name.data: f for f in module.body.block.ops if isinstance(f, func.FuncOp)}
    top = functions[TOP]
    ports: dict[SSAValue, int] = {arg: n for n, arg in enumerate(top.body.block.args[1:])}
    found = []
    for call in top.body.block.ops:
        if not isinstance(call, func.CallOp):
            continue
        process = functions[call.callee.root_reference.data]
        reads = {joined[op.stream] for op in process.walk() if isinstance(op, StreamReadOp)}
        writes = {joined[op.stream] for op in process.walk() if isinstance(op, StreamWriteOp)}
        args = tuple(joined[v] for v in call.arguments if v in joined)
        port = next((ports[v] for v in call.arguments if v in ports), -1)
        name = names[process.sym_name.data]
        found.append(ProcessRecord(name, port, args, tuple(sorted(reads)), tuple(sorted(writes))))
    return tuple(found)


def _streams(module: ModuleOp) -> dict[str, StreamRecord]:
    joined = streams(module, OPENCL)
    found = {}
    for op in module.walk():
        if isinstance(op, StreamOp):
            kind = op.output.type
            assert isinstance(kind, StreamType)
            assert op.words is not None
            element = native_type(kind.element).bits
            element = max(element, 8) // 8
            found[joined[op.output]] = StreamRecord(op.words.value.data, element * kind.lanes.data, op.depth.value.data)
    return found

"""The temporal style on Zynq: its project."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import ceil
from string import Template
from typing import TYPE_CHECKING, ClassVar

from cuvil_hw import data
from cuvil_hw.adapters.base import Golden, SettingKind
from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.adapters.streaming.project.project import facts, project_name
from cuvil_hw.adapters.temporal.adapter import Temporal, forms_of, functions
from cuvil_hw.adapters.temporal.descriptor import COMBINE, CONVOLVE, row_length, struct_source
from cuvil_hw.adapters.temporal.engine import BoardMemory, TiledConvolution
from cuvil_hw.adapters.temporal.form import EnginePass, VectorLoop
from cuvil_hw.adapters.temporal.layout import laid_out
from cuvil_hw.adapters.temporal.record import TABLE, TemporalRecord
from cuvil_hw.adapters.temporal.source import ENGINE_PORTS, NESTS, memory_types, nests, top
from cuvil_hw.adapters.zynq.device import INTERFACES
from cuvil_hw.adapters.zynq.fabric import fabric
from cuvil_hw.adapters.zynq.project import top_name
from cuvil_hw.adapters.zynq.record import heading
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.record import info_of, seal
from cuvil_hw.errors.quoting import markdown, tcl
from cuvil_hw.render.c.cfamily import render_tables
from cuvil_hw.schedule.design import Design
from cuvil_hw.schedule.resources import Rule
from cuvil_hw.target.profile import Profile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

_HEADERS = ("math.h", "stdint.h", "cuvil_hls.h", "cuvil_engine.h")
# Of a 16-bit DDR3-1050, as a PYNQ-Z2 has it, at most.
_GB_S = 2.1
# From asking for a burst to its first word. Nominal: it depends on the board's memory controller and who else uses it.
_LATENCY_NS = 400.0


class ZynqTemporal(Temporal):
    name = "zynq"
    interfaces = INTERFACES
    axes: ClassVar[Mapping[str, Rule]] = {"lut": "sum", "ff": "sum", "bram18": "sum", "dsp": "sum"}
    settings: ClassVar[Mapping[str, SettingKind]] = {}  # the adapter's own

    def fabric(self, profile: Profile) -> Fabric:
        return fabric(profile)

    def memory(self, profile: Profile) -> BoardMemory:
        latency = profile.setting("ddr_latency_ns", _LATENCY_NS) * profile.clock_hz / 1e9
        return BoardMemory(profile.setting("ddr_gb_s", _GB_S) * 1e9 / profile.clock_hz, ceil(latency))

    def plan(self, module: ModuleOp, design: Design, profile: Profile, golden: Golden) -> BuildPlan:
        graph, forms, memory = design.graph, forms_of(design), self.memory(profile)
        name = project_name(graph)
        numbers = functions(design, self.fabric(profile))[1]
        layout = laid_out(design, forms, numbers)
        orders = {n: physical(graph.buffers[n].type.rank) for n in (*graph.inputs, *graph.outputs)}
        record = TemporalRecord(
            **facts(graph, top_name(graph), orders),
            memory_bytes=layout.memory_bytes,
            table_sha256=hashlib.sha256(layout.table).hexdigest(),
            factors=tuple(layout.factors),
            plain=tuple(layout.plain),
            inputs_at=tuple(layout.at[n] for n in graph.inputs),
            outputs_at=tuple(layout.at[n] for n in graph.outputs),
            cycles=int(design.choice.objective),
            latency_cycles=memory.latency,
            bytes_per_cycle=memory.bytes_per_cycle,
            masters=(*ENGINE_PORTS, *memory_types(module).values()),
        )
        info = info_of(record)
        engine = next((f.engine for f in forms if isinstance(f, EnginePass)), None)
        units = {
            CONVOLVE if isinstance(f.work, TiledConvolution) else COMBINE for f in forms if isinstance(f, EnginePass)
        }
        around = {numbers[f.kernel.name]: f.around for f in forms if isinstance(f, VectorLoop)}
        places = max((len(f.kernel.inputs) + 1 for f in forms if isinstance(f, VectorLoop)), default=0)
        parts = (
            heading(seal(info, *graph.ports())),
            "#define CUVIL_WEIGHTS_IN_URAM\n" if engine is not None and engine.uram else "",
            "".join(f"#include <{header}>\n" for header in _HEADERS),
            render_tables(module, NESTS, graph.constants),
            nests(module),
            top(module, engine, len(forms), top_name(graph), sorted(units), around),
        )
        files = {
            f"src/{name}.cpp": "\n".join(p for p in parts if p).encode(),
            "src/passes.h": struct_source(row_length(places)).encode(),
            f"src/{TABLE}": layout.table,
            **{f"src/{h}": (data.folder("hls") / h).read_bytes() for h in ("cuvil_hls.h", "cuvil_engine.h")},
        }
        values = {
            "project": name, "top": top_name(graph), "part": tcl(profile.part), "part_text": markdown(profile.part),
            "clock_ns": f"{1e9 / profile.clock_hz:g}",
        }  # fmt: skip
        templates = data.folder("hls") / "temporal"
        for file in ("run_hls.tcl", "README.md"):
            files[file] = Template((templates / file).read_text()).safe_substitute(values).encode()
        remedy = "install Vitis HLS and put it on PATH (source settings64.sh)"
        synthesis = Command(("vitis_hls", "-f", "run_hls.tcl"), "synthesise the design", remedy, optional=True)
        return BuildPlan(files, (synthesis,), (), info)

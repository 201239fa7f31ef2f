"""The Vitis HLS project of a design: sources, Tcl, testbench and golden vectors, as a BuildPlan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.dialects import func
from xdsl.dialects.builtin import StringAttr

from cuvil_hw import data, dtypes
from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.streaming.analysis.operand import Order
from cuvil_hw.adapters.streaming.analysis.order import stream_orders
from cuvil_hw.adapters.streaming.project.project import TOP, facts, has_floats, project_name
from cuvil_hw.adapters.streaming.project.rtl import rtl_files
from cuvil_hw.adapters.streaming.rtl.delays import Delays
from cuvil_hw.adapters.streaming.verilated.record import of_files
from cuvil_hw.adapters.zynq import shell
from cuvil_hw.adapters.zynq.core import core_files
from cuvil_hw.adapters.zynq.fabric import stream_bits
from cuvil_hw.adapters.zynq.ports import design_digest, stream_ports
from cuvil_hw.adapters.zynq.record import HLS, RTL, ZynqRecord, heading
from cuvil_hw.contract import canonical
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Array
from cuvil_hw.contract.record import info_of, seal
from cuvil_hw.errors.quoting import markdown, tcl
from cuvil_hw.ir.level2 import AxisReadOp
from cuvil_hw.render.c.cfamily import render_declarations, render_functions, render_tables
from cuvil_hw.render.c.lang import HLS_CPP
from cuvil_hw.schedule.kernel import Buffer, KernelGraph
from cuvil_hw.target.profile import Profile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def project(module: ModuleOp, graph: KernelGraph, profile: Profile, golden: Golden, cycles: int = 0) -> BuildPlan:
    """All files of the project. Synthesis is an optional command: it needs the vendor's tools. `cycles`: as in the
    record. Raises NotHardware where the profile's flow is "rtl" and the design can't be that."""
    name, top, bits = project_name(graph), top_name(graph), stream_bits(profile)
    flow = profile.setting("flow", HLS)
    module = _renamed(module, top)
    extra = ["cuvil_hls_float.h"] if has_floats(module) else []
    orders = stream_orders(graph)
    packets = any(isinstance(op, AxisReadOp) and op.ends is not None for op in module.walk())
    values = {
        "project": name,
        "top": top,
        "part": tcl(profile.part),
        "part_plain": profile.part,
        "part_text": markdown(profile.part),
        "clock_ns": f"{1e9 / profile.clock_hz:g}",
        "clock_mhz": f"{profile.clock_hz / 1e6:g}",
        "bits": str(bits),
        "ports": _port_table(graph, orders),
        "body": _testbench_body(graph, top, bits, golden),
        "ends": "n == samples - 1" if packets else "true",
        "compare": _COMPARE if any(dtypes.is_float(graph.buffers[b].type.dtype) for b in graph.outputs) else "",
    }
    templates = data.folder("hls") / "project"

    def fill(file: str) -> bytes:
        return Template((templates / file).read_text()).safe_substitute(values).encode()

    # No header of the vendor's or the compiler's ends so: `-Isrc` would put ours in its place.
    top_header = f"{name}_top.h"
    guard = f"{name.upper()}_TOP_H"
    prototype = render_declarations(module, HLS_CPP, [top])
    includes = "".join(f"#include <{h}>\n" for h in ("cuvil_hls.h", *extra))
    header = f"#ifndef {guard}\n#define {guard}\n\n{includes}\n{prototype}\n#endif\n"
    record = ZynqRecord(**facts(graph, top, orders), axis_bits=bits, packets=packets, cycles=cycles, flow=flow)
    info = info_of(record)
    head = heading(seal(info, *graph.ports()))
    source = f'{head}#include "{top_header}"\n#include "tables.h"\n\n{render_functions(module, HLS_CPP)}'
    tables = render_tables(module, HLS_CPP, graph.constants)
    files: dict[str, bytes] = {
        f"src/{top_header}": header.encode(),
        f"src/{name}.cpp": source.encode(),
        "src/tables.h": f"#pragma once\n#include <cstdint>\n\n{tables}".encode(),
        **{f"src/{h}": (data.folder("hls") / h).read_bytes() for h in ("cuvil_hls.h", *extra)},
    }
    files |= rtl_files(module, graph.constants, name, bits, Delays.at(profile.clock_hz), required=flow == RTL)
    if flow == RTL:
        files |= core_files(of_files(name, _below("rtl/", files)), *stream_ports(info), values)
        tool, command = "Vivado", "vivado -mode batch -source ip.tcl"
    else:
        files |= {file: fill(file) for file in ("run_hls.tcl", "hls_config.cfg", "README.md")}
        files["build.py"] = (templates / "build.py").read_bytes()
        tool, command = "Vitis HLS", "vitis_hls -f run_hls.tcl"
    values |= shell.tcl_values(*stream_ports(info), profile.part, profile.board, design_digest(files, info), flow)
    files |= {
        "design.tcl": fill("design.tcl"),
        **{file: (templates / file).read_bytes() for file in ("shell.tcl", "driver.py", "demo.ipynb")},
        "ports.json": _ports_json(info, profile.clock_hz, golden),
        "tb/testbench.cpp": fill("testbench.cpp"),
        "tb/golden.txt": _golden_text(graph, golden, bits, orders).encode(),
    }
    remedy = f"install {tool} and put it on PATH (source settings64.sh)"
    return BuildPlan(files, (Command(tuple(command.split()), "make the design's IP core", remedy, True),), (), info)


def _below(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path.removeprefix(folder): text for path, text in files.items() if path.startswith(folder)}


def top_name(graph: KernelGraph) -> str:
    """Name of the HLS top function, and so of the IP core: the model's, so that several cores fit in one catalogue."""
    return f"{project_name(graph)}_top"


def _renamed(module: ModuleOp, top: str) -> ModuleOp:
    """A copy whose function that joins the processes is called `top`; nothing calls it."""
    copy = module.clone()
    for op in copy.body.block.ops:
        if isinstance(op, func.FuncOp) and op.sym_name.data == TOP:
            op.properties["sym_name"] = StringAttr(top)
    return copy


def _ports_json(info: Mapping[str, Any], clock_hz: float, golden: Golden) -> bytes:
    """What driver.py needs to know of the design."""
    inputs, outputs = stream_ports(info)
    tolerances = {p.name: _tolerance(p.dtype, a) for p, a in zip(outputs, golden.outputs, strict=False)}
    rows = [
        {
            "name": p.name,
            "direction": p.direction,
            "shape": p.shape,
            "order": p.order,
            "container": dtypes.to_numpy(p.dtype).name,
            "dma": shell.dma_name(p),
            "row": p.sample_bytes,
            "tolerance": tolerances.get(p.name, 0.0),
        }
        for p in (*inputs, *outputs)
    ]
    return canonical.dump({"bits": info["axis_bits"], "clock_hz": clock_hz, "ports": rows})


def _port_table(graph: KernelGraph, orders: Mapping[str, Order]) -> str:
    rows = ["| port | direction | shape (streamed) | dtype |", "|---|---|---|---|"]
    for names, way in ((graph.inputs, "in"), (graph.outputs, "out")):
        for name in names:
            kind = graph.buffers[name].type
            shape = "×".join(str(kind.shape[d]) for d in orders[name])
            rows.append(f"| `{name}` | {way} | {shape} | {kind.dtype} |")
    return "\n".join(rows)


def stream_words(array: Array, dtype: str, bits: int, order: Order) -> Array:
    """One sample (logical shape) as the words of its port, zero padded: bytes in streaming order, as uint64; a word of
    more than 64 bits as several, low ones first. `order`: the logical dimension of each streamed
    one."""
    ordered = np.ascontiguousarray(array.transpose(order), dtypes.to_numpy(dtype))
    raw = ordered.tobytes()
    raw += bytes(-len(raw) % (bits // 8))
    return np.frombuffer(raw, f"<u{min(bits, PIECE) // 8}").astype(np.uint64)


def _golden_text(graph: KernelGraph, golden: Golden, bits: int, orders: Mapping[str, Order]) -> str:
    """`samples`, then per sample the words of each port in order, hexadecimal, in pieces of at most 64 bits."""
    samples = golden.inputs[0].shape[0] if golden.inputs else 0
    lines = [str(samples)]
    for n in range(samples):
        for names, arrays in ((graph.inputs, golden.inputs), (graph.outputs, golden.outputs)):
            for name, array in zip(names, arrays, strict=True):
                words = stream_words(array[n], graph.buffers[name].type.dtype, bits, orders[name])
                lines.append(" ".join(f"{int(w):x}" for w in words))
    return "\n".join(lines) + "\n"


def _words(buffer: Buffer, bits: int) -> int:
    return -(-buffer.type.size * dtypes.to_numpy(buffer.type.dtype).itemsize // (bits // 8))


PIECE = 64  # bits of a word that the testbench reads at once

# Share of an output's largest value by which its floats may differ: the functions of hls_math.h round unlike NumPy's.
FLOAT_TOLERANCE = 1e-5


def _tolerance(dtype: str, expected: Array) -> float:
    """By how much an output may differ from its golden values: not at all where it has integers."""
    if not dtypes.is_float(dtype):
        return 0.0
    return FLOAT_TOLERANCE * float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))


_COMPARE = """#include <cmath>
#include <cstring>

// Whether the floats in two words are near each other: functions may round differently in the last places.
static bool near(unsigned long long got, unsigned long long wanted, int floats, float tolerance) {
    for (int n = 0; n < floats; ++n) {
        const unsigned int words[2] = {(unsigned int)(got >> (32 * n)), (unsigned int)(wanted >> (32 * n))};
        float values[2];
        std::memcpy(values, words, sizeof values);
        if (words[0] == words[1] || (values[0] != values[0] && values[1] != values[1])) continue;
        if (!(std::fabs(values[0] - values[1]) <= tolerance)) return false;
    }
    return true;
}
"""


def _check(buffer: Buffer, bits: int, expected: Array) -> list[str]:
    """Compare a word of an output with the golden one: bits for integers. The last word of all ends the packet."""
    compare = "if (got != value) ++wrong;"
    if dtypes.is_float(buffer.type.dtype):
        tolerance = np.float32(_tolerance(buffer.type.dtype, expected))
        compare = f"if (!near(got.to_uint64(), value, {min(bits, PIECE) // 32}, {tolerance!s}f)) ++wrong;"
    piece = "word.data" if bits <= PIECE else f"word.data.range({PIECE} * k + {PIECE - 1}, {PIECE} * k)"
    return [
        f"const ap_axiu<{bits}, 0, 0, 0> word = {_stream(buffer.name)}.read();",
        *_pieces(bits, [f"const ap_uint<{min(bits, PIECE)}> got = {piece};", compare]),
        "++words;",
        f"if ((word.last != 0) != (ends && i == {_words(buffer, bits) - 1})) ++misplaced;",
    ]


def _stream(port: str) -> str:
    """A port in the testbench, whose own variables have names without that ending."""
    return f"{port}_stream"


def _testbench_body(graph: KernelGraph, top: str, bits: int, golden: Golden) -> str:
    ports = [_stream(b) for b in (*graph.inputs, *graph.outputs)]
    lines = [f"hls::stream<ap_axiu<{bits}, 0, 0, 0> > {p};" for p in ports]
    for name in graph.inputs:
        lines += _loop(graph.buffers[name], bits, [
            f"ap_axiu<{bits}, 0, 0, 0> word;",
            *_pieces(bits, [
                "word.data = value;" if bits <= PIECE else
                f"word.data.range({PIECE} * k + {PIECE - 1}, {PIECE} * k) = value;",
            ]),
            f"word.keep = {(1 << bits // 8) - 1}{'ULL' if bits > PIECE else ''};",
            "word.strb = word.keep;",
            f"word.last = ends && i == {_words(graph.buffers[name], bits) - 1};",
            f"{_stream(name)}.write(word);",
        ])  # fmt: skip
    lines.append(f"{top}({', '.join(ports)});")
    outputs = golden.outputs or [np.zeros(0) for _ in graph.outputs]
    for name, expected in zip(graph.outputs, outputs, strict=True):
        lines += _loop(graph.buffers[name], bits, _check(graph.buffers[name], bits, expected))
    return "\n".join(" " * 8 + line for line in lines)


def _loop(buffer: Buffer, bits: int, body: Sequence[str]) -> list[str]:
    return [
        f"for (int i = 0; i < {_words(buffer, bits)}; ++i) {{",
        *("    " + line for line in body),
        "}",
    ]


def _pieces(bits: int, body: Sequence[str]) -> list[str]:
    """Read a word of the golden vectors, piece by piece."""
    each = ["unsigned long long value = 0;", 'if (std::fscanf(file, "%llx", &value) != 1) return 1;', *body]
    if bits <= PIECE:
        return each
    return [f"for (int k = 0; k < {bits // PIECE}; ++k) {{", *("    " + line for line in each), "}"]

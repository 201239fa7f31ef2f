"""A design's SystemVerilog as an IP core for the shell: streams named as the model's ports, registers, packaging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template

from cuvil_hw import data
from cuvil_hw.adapters.streaming.verilated.record import RtlRecord
from cuvil_hw.adapters.zynq.ports import StreamPort

_ENDS = ("tdata", "tkeep", "tlast", "tvalid", "tready")


def core_files(
    record: RtlRecord, inputs: Sequence[StreamPort], outputs: Sequence[StreamPort], values: Mapping[str, str]
) -> dict[str, bytes]:
    """The core's top module, the script that packages it, and its readme. `record`: of the modules inside; `values`: of
    the project's templates."""
    streams = [
        (port, f"{way}_axis_{inner}")
        for way, ports, names in (("s", inputs, record.inputs), ("m", outputs, record.outputs))
        for port, inner in zip(ports, names, strict=True)
    ]
    taken = [f"({p.name}_tvalid && {p.name}_tready)" for p in inputs]
    ended = [f"({p.name}_tvalid && {p.name}_tready && {p.name}_tlast)" for p in outputs]
    made = {
        **values,
        "port_table": values["ports"],
        "streams": ":".join(p.name for p in (*inputs, *outputs)),
        "ports": ",\n".join(line for p, _ in streams for line in _port(p)),
        "wires": "".join(f"    wire {inner}_tready;\n" for p, inner in streams if p.direction == "in")
        + "".join(
            f"    assign {p.name}_tready = {inner}_tready && run;\n" for p, inner in streams if p.direction == "in"
        ),
        "joined": ",\n        ".join(line for p, inner in streams for line in _joined(p, inner)),
        "taken": " || ".join(taken) or "1'b0",
        "ended": " || ".join(ended) or "1'b0",
    }
    templates = data.folder("rtl") / "zynq"

    def fill(file: str) -> bytes:
        return Template((templates / file).read_text()).safe_substitute(made).encode()

    return {f"rtl/{values['top']}_core.v": fill("core.v"), "ip.tcl": (templates / "ip.tcl").read_bytes(),
            "README.md": fill("README.md")}  # fmt: skip


def _port(port: StreamPort) -> list[str]:
    wide = {"tdata": f"[{port.bits - 1}:0] ", "tkeep": f"[{port.bits // 8 - 1}:0] "}
    lines = []
    for end in _ENDS:
        into = (port.direction == "in") != (end == "tready")
        said = f'(* X_INTERFACE_INFO = "xilinx.com:interface:axis:1.0 {port.name} {end.upper()}" *)'
        lines.append(f"    {said}\n    {'input ' if into else 'output'} wire {wide.get(end, '')}{port.name}_{end}")
    return lines


def _joined(port: StreamPort, inner: str) -> list[str]:
    """Words pass while the core runs; what it gives always leaves."""
    outer = {end: f"{port.name}_{end}" for end in _ENDS}
    if port.direction == "in":
        outer |= {"tvalid": f"{port.name}_tvalid && run", "tready": f"{inner}_tready"}
    return [f".{inner}_{end}({outer[end]})" for end in _ENDS]

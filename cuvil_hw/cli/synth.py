"""`cuvil synth`: what Yosys makes of a streaming design's SystemVerilog, beside the analytic figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuvil_hw.cli.output import check_outputs, command_line, console, print_json, progress, show_table
from cuvil_hw.errors import CuvilError
from cuvil_hw.report import text
from cuvil_hw.report.report import Report
from cuvil_hw.schedule.timing import layer_of

if TYPE_CHECKING:
    from cuvil_hw.adapters.streaming.synthesis.yosys import Synthesised
    from cuvil_hw.adapters.streaming.verilated.record import RtlRecord

REST = "ports, forks, converters"


def synthesise(
    program: Annotated[
        Path,
        typer.Argument(help="A .cuvil file for a streaming target; its report gets the figures.", show_default=False),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the program with the figures here, leave it unchanged.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write its report with these figures as one HTML file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Synthesise a design's SystemVerilog with Yosys: LUTs, flip-flops, DSP blocks and block RAMs of each layer. The
    program's report keeps them, and `cuvil report` shows them beside the estimates.

    Example: cuvil synth kws.cuvil --html kws.html
    """
    from cuvil_hw.adapters.registry import load_adapter
    from cuvil_hw.adapters.streaming.adapter import Streaming
    from cuvil_hw.adapters.streaming.synthesis import yosys
    from cuvil_hw.adapters.streaming.verilated.record import FOLDER, of_files
    from cuvil_hw.contract import canonical
    from cuvil_hw.runtime import artifact
    from cuvil_hw.runtime.load import program_in

    check_outputs([html, output], [program])
    read = artifact.read(program)
    report = program_in(read).report
    adapter = load_adapter(read.manifest.adapter)
    if not isinstance(adapter, Streaming):
        raise CuvilError(f"cuvil synth maps streaming designs of FPGAs; this program is for {adapter.name}")
    flow = adapter.synthesis(read.manifest.profile)
    head = f"{artifact.SOURCES}{FOLDER}/"
    files = {name.removeprefix(head): data for name, data in read.files.items() if name.startswith(head)}
    record = of_files(read.manifest.model, files)
    with progress("synthesis") as bar:
        found = yosys.synthesise(files, record.top, flow, bar)
    report["synthesis"] = beside(report, record, found)
    kept = {**read.files, artifact.REPORT: canonical.dump(report)}
    artifact.write(output or program, replace(read, files=kept))
    if html is not None:
        report.save_html(html, command_line())
    if json:
        print_json(report["synthesis"])
        return
    show_table(*text.synthesis(report))
    out = console()
    for line in text.synthesis_remarks(report):
        out.print(line, markup=False, soft_wrap=True)
    for path in filter(None, (output or program, html)):
        out.print(f"written: {path}", markup=False, soft_wrap=True)


def beside(report: Report, record: RtlRecord, found: Synthesised) -> dict[str, Any]:
    """The figures by layer, of all its processes and the FIFOs that they write, and in all, beside the report's own."""
    axes = [t["axis"] for t in report["totals"]]
    layers = [layer["name"] for layer in report["layers"]]
    writer = {f"fifo_{c.name}": c.writer for c in record.channels}
    counted: dict[str, dict[str, float]] = {name: {} for name in (*layers, REST)}
    for instance, use in (*found.instances.items(), ("", found.rest)):
        _add(counted[layer_of(writer.get(instance, instance), layers, REST)], use)
    rows = [
        {"layer": layer["name"], "analytic": dict(layer["use"]), "yosys": counted[layer["name"]]}
        for layer in report["layers"]
    ]
    whole: dict[str, float] = {}
    for use in counted.values():
        _add(whole, use)
    analytic = {t["axis"]: t["used"] for t in report["totals"]}
    own = {axis: analytic[axis] - sum(layer["use"].get(axis, 0.0) for layer in report["layers"]) for axis in axes}
    rows.append({"layer": REST, "analytic": own, "yosys": counted[REST]})
    return {
        "origin": found.origin,
        "axes": [axis for axis in axes if axis in analytic],
        "layers": rows,
        "total": {"analytic": analytic, "yosys": whole},
        "limit": {t["axis"]: t["limit"] for t in report["totals"]},
        "unknown_cells": dict(found.unknown),
    }


def _add(into: dict[str, float], use: Mapping[str, float]) -> None:
    for axis, amount in use.items():
        into[axis] = into.get(axis, 0.0) + amount

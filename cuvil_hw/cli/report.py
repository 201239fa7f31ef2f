"""`cuvil report`: what an artifact costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.output import check_outputs, command_line, console, print_json, show_views
from cuvil_hw.cli.vendor import beside, show
from cuvil_hw.report import text


def show_report(
    program: Annotated[Path, typer.Argument(help="A .cuvil file.", show_default=False)],
    html: Annotated[Path | None, typer.Option(help="Write one self-contained HTML file.")] = None,
    vendor: Annotated[
        Path | None, typer.Option(help="A folder in which Vitis HLS or Vivado ran: its figures beside these.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the resources, cycles and schedules of a compiled program.

    Example: cuvil report kws.cuvil --html kws.html
    """
    from cuvil_hw.runtime import artifact
    from cuvil_hw.runtime.load import program_in

    check_outputs([html], [program])
    read = artifact.read(program)
    report = program_in(read).report
    if html is not None:
        report.save_html(html, command_line())
    if vendor is not None:
        compared = beside(report, read.manifest.info, vendor)
        if json:
            print_json({**report, "vendor": compared})
        else:
            show(compared)
        return
    if json:
        print_json(report)
        return
    show_views(text, report)
    if html is not None:
        console().print(f"written: {html}", markup=False, soft_wrap=True)

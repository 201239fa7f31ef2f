"""`cuvil timing`: how long a sample takes in a streaming design, simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.output import check_outputs, command_line, console, print_json, show_views
from cuvil_hw.errors import CuvilError
from cuvil_hw.report import timing as views
from cuvil_hw.report.file import write_text


def show_timing(
    program: Annotated[Path, typer.Argument(help="A .cuvil file for a streaming target.", show_default=False)],
    depth: Annotated[
        list[str] | None,
        typer.Option("--depth", help="Words of a FIFO in place of the design's own: stream=5; repeatable."),
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(help="sim-cycles: the sources; rtl: their SystemVerilog.", show_default="sim-cycles"),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained HTML file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a streaming design with clocks: cycles per sample, who waits for whom, how full its FIFOs are.

    Example: cuvil timing kws.cuvil --html timing.html
    """
    from cuvil_hw.runtime import artifact
    from cuvil_hw.runtime.executable import Executable
    from cuvil_hw.runtime.load import program_in

    check_outputs([html], [program])
    executable = program_in(artifact.read(program), interface)
    if not isinstance(executable, Executable):
        raise CuvilError(f"{program}: has open shapes: a program for each size; compile it for one of them")
    found = executable.timing(_depths(depth or ()))
    if html is not None:
        write_text(html, views.document(found, command_line()))
    if json:
        print_json(found.to_json())
        return
    show_views(views, found)
    if html is not None:
        console().print(f"written: {html}", markup=False, soft_wrap=True)


def _depths(given: list[str] | tuple[str, ...]) -> dict[str, int]:
    depths = {}
    for text in given:
        name, _, words = text.rpartition("=")
        if not name or not words.isdecimal() or int(words) < 1:
            raise typer.BadParameter(f"--depth {text}: give a stream and a number of words from 1 on, as stream=5")
        depths[name] = int(words)
    return depths

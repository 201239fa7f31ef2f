"""`cuvil compile`: a model file to an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cuvil_hw.cli.output import console, print_json, progress, read_arrays


def compile_model(
    model: Annotated[Path, typer.Argument(help="An .onnx file.", show_default=False)],
    target: Annotated[
        str, typer.Option("--target", "-t", help="A built-in target (see `cuvil targets list`) or a .yaml file.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the artifact.", show_default="MODEL.cuvil here"),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Representative inputs for quantization: .npy (N, …), or .npz by input name.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="float32, int8 (int2…int8) or fixed<W,I>.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the program.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Shape of an input that the file leaves open: name=1,3,224,224.")
    ] = None,
    interface: Annotated[str | None, typer.Option(help="Device that the artifact opens: hw, sim or null.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report as one HTML file.")] = None,
    sources: Annotated[Path | None, typer.Option(help="Write the generated sources below this folder.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compile an ONNX model for a target.

    Example: cuvil compile kws.onnx --target pynq-z2 -o kws.cuvil --report kws.html
    """
    from cuvil_hw import api

    shapes = dict(parse_shape(text) for text in shape or ())
    data = read_arrays(calibration) if calibration is not None else None
    with progress(f"{model.name} → {target}") as step:
        executable = api.compile(
            str(model), target, None, data, precision, name=name, shapes=shapes, interface=interface, progress=step
        )
    path = output if output is not None else Path(f"{model.stem}.cuvil")
    executable.save(path)
    written: dict[str, Any] = {"artifact": str(path)}
    if report is not None:
        executable.report.save_html(report)
        written["report"] = str(report)
    if sources is not None:
        written["sources"] = str(sources)
        written["files"] = write_sources(executable.artifact, sources)
    if json:
        print_json({**written, "report_data": executable.report})
        return
    out = console()
    out.print(executable.report.text(), markup=False, soft_wrap=True)
    for what, where in written.items():
        if what != "files":
            out.print(f"{what}: {where}", markup=False, soft_wrap=True)


def write_sources(artifact: Any, folder: Path) -> list[str]:
    """Write the generated sources of an artifact below `folder`, made if need be; returns their names."""
    from cuvil_hw.build import write_files
    from cuvil_hw.errors import CuvilError
    from cuvil_hw.runtime.artifact import SOURCES

    files = {n.removeprefix(SOURCES): data for n, data in artifact.files.items() if n.startswith(SOURCES)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CuvilError(f"{folder}: can't be made: {e.strerror or e}; choose another folder") from e
    write_files(folder, files)
    return sorted(files)


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`name=1,3,224,224`. Raises BadParameter."""
    name, _, extents = text.rpartition("=")
    try:
        shape = tuple(int(extent) for extent in extents.split(","))
    except ValueError:
        shape = ()
    if not name or not shape:
        raise typer.BadParameter(f"--shape is {text!r}, expected name=extents such as input=1,3,224,224")
    return name, shape

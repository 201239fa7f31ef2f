"""`cuvil compare`: programs, or one model on several targets, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cuvil_hw.cli.compile import parse_constant, parse_pair, parse_shape
from cuvil_hw.cli.model import Example, Trust, open_model
from cuvil_hw.cli.output import print_json, read_array, read_arrays, show_table
from cuvil_hw.cli.several import compile_for, complete_targets, targets_of
from cuvil_hw.errors import CuvilError


def compare(
    files: Annotated[
        list[Path], typer.Argument(help="Several .cuvil files, or one model as for compile.", show_default=False)
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", help="Targets to compile the model for: a,b,c.", autocompletion=complete_targets
        ),
    ] = None,
    inputs: Annotated[
        list[Path] | None, typer.Option("--input", "-i", help="x.npy, once per input; the outputs are compared.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="The class of each input, .npy: accuracies are shown.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Inputs for quantization: .npy, or .npz by name.")] = None,
    example: Annotated[list[Path] | None, Example] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16, int8 (int2…int8) or fixed<W,I>.")
    ] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Shape of an open input: name=1,3,224,224.")] = None,
    constant: Annotated[list[str] | None, typer.Option(help="An input made constant: name=16000.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="State kept between calls: in=out.")] = None,
    max_trips: Annotated[int | None, typer.Option(help="Bound of loops whose end depends on values.")] = None,
    interface: Annotated[
        str | None, typer.Option(help="Device to run on: hw, sim, null or another that the target has.")
    ] = None,
    trust: Annotated[bool, Trust] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare artifacts, or the targets of one model: size, estimates, resources, outputs, accuracy.

    Differences are those to the first that ran. Exit code 1 when one could not be made or run.

    Example: cuvil compare kws.onnx --target pynq-z2,cpu,h100 --input x.npy --labels labels.npy
    """
    from cuvil_hw.entry import compare as side_by_side
    from cuvil_hw.runtime import artifact
    from cuvil_hw.runtime.executable import Executable

    if labels is not None and not inputs:
        raise typer.BadParameter("--labels are those of inputs; give them with --input")
    if target is None:
        given = (calibration, example, precision, shape, constant, state, max_trips)
        if any(option not in (None, []) for option in given):
            raise typer.BadParameter(
                "--calibration, --example, --precision, --shape, --constant, --state and --max-trips go with --target "
                "and a model"
            )
        if any((path.suffix != ".cuvil" and not path.exists()) or path.suffix in (".onnx", ".pt2") for path in files):
            raise typer.BadParameter("a model needs --target")
        if len(files) < 2:
            raise typer.BadParameter("give two .cuvil files or more, or a model and --target a,b,c")
        programs = {label: Executable(artifact.read(path), interface) for label, path in _labelled(files).items()}
        rows = [side_by_side.row_of(label, program) for label, program in programs.items()]
    else:
        if len(files) != 1:
            raise typer.BadParameter("--target goes with one model")
        data = read_arrays(calibration) if calibration is not None else None
        opened = open_model(files[0], example, data, trust)
        options: dict[str, Any] = {
            "example_inputs": opened.example_inputs,
            "calibration": data,
            "precision": precision,
            "shapes": dict(parse_shape(text) for text in shape or ()),
            "constants": dict(parse_constant(text) for text in constant or ()),
            "state": dict(parse_pair(text) for text in state or ()),
            "max_trips": max_trips,
            "interface": interface,
        }
        made = compile_for(opened.model, opened.file.name, targets_of(target), options)
        programs = made.programs
        rows = [
            side_by_side.failure(label, result, made.seconds.get(label))
            if isinstance(result, CuvilError)
            else side_by_side.row_of(label, result, made.seconds[label])
            for label, result in made.results.items()
        ]
    try:
        if inputs:
            classes = read_array(labels) if labels is not None else None
            rows = side_by_side.run(programs, rows, [read_array(path) for path in inputs], classes)
    finally:
        for program in programs.values():
            program.close()
    if json:
        print_json({"programs": side_by_side.to_json(rows)})
    else:
        show_table(*side_by_side.table(rows), split=True)
    if any(row.error for row in rows):
        raise typer.Exit(1)


def _labelled(files: list[Path]) -> dict[str, Path]:
    """Files by name, or by path where names are the same."""
    names = [path.name for path in files]
    found = {path.name if names.count(path.name) == 1 else str(path): path for path in files}
    if len(found) != len(files):
        raise typer.BadParameter("the same file is given twice")
    return found

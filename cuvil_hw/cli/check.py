"""`cuvil check`: a model looked at before it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuvil_hw.cli.model import HELP, Example, Trust, open_model
from cuvil_hw.cli.output import console, print_json, read_arrays, show_table
from cuvil_hw.cli.several import complete_targets, targets_of

if TYPE_CHECKING:
    from cuvil_hw.entry.check import Check, Coverage
    from cuvil_hw.types import TensorType


def check_model(
    model: Annotated[Path, typer.Argument(help=HELP, show_default=False)],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            help="Targets a,b,c (names or .yaml files).",
            show_default="one of each kind",
            autocompletion=complete_targets,
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Representative inputs: .npy (N, …), or .npz by input name.")
    ] = None,
    example: Annotated[list[Path] | None, Example] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16, int8 (int2…int8) or fixed<W,I>.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Shape of an input that the file leaves open: name=1,3,224,224.")
    ] = None,
    constant: Annotated[list[str] | None, typer.Option(help="An input made constant: name=16000.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="State kept between calls: in=out.")] = None,
    max_trips: Annotated[int | None, typer.Option(help="Bound of loops whose end depends on values.")] = None,
    trust: Annotated[bool, Trust] = False,
    layers: Annotated[bool, typer.Option("--layers", help="List every layer with its shapes.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a model: shapes, broadcasts, unsupported operators, precision hazards, and what each target runs.

    The exit code is 0 when nothing stands in the way, 1 for errors (and, with --strict, for warnings).

    Example: cuvil check kws.onnx --target pynq-z2,cpu
    """
    from cuvil_hw.cli.compile import parse_constant, parse_pair, parse_shape
    from cuvil_hw.errors import needs_compiler

    with needs_compiler("check a model"):
        from cuvil_hw.entry.check import check
    data = read_arrays(calibration) if calibration is not None else None
    opened = open_model(model, example, data, trust)
    found = check(
        opened.model,
        targets_of(target) if target is not None else None,
        opened.example_inputs,
        data,
        precision,
        shapes=dict(parse_shape(text) for text in shape or ()),
        constants=dict(parse_constant(text) for text in constant or ()),
        state=dict(parse_pair(text) for text in state or ()),
        max_trips=max_trips,
    )
    if json:
        print_json(to_json(found))
    else:
        show(found, layers)
    if found.errors or (strict and found.warnings):
        raise typer.Exit(1)


def show(found: Check, layers: bool) -> None:
    """Print the findings. Problems come last, where a reader of a terminal looks first."""
    line = _printer()
    line(found.name)
    for what, ends in (("input", found.inputs), ("output", found.outputs)):
        for name, kind in ends:
            line(f"  {what} {name}: {_type(kind)}")
    for text in found.assumed:
        line(f"  assumed: {text}")
    listed = found.layers if layers else found.broadcasts
    if listed:
        line("\nlayers" if layers else "\nbroadcasts that the model leaves to be understood")
        rows = [(e.where, e.op, ", ".join(map(_type, e.inputs)), ", ".join(map(_type, e.outputs))) for e in listed]
        show_table(("where", "op", "from", "to"), rows)
    if found.targets:
        line("\ntargets")
        show_table(("target", "precision", "device", "processor", "refused", "fits"), [_row(t) for t in found.targets])
        for target in found.targets:
            for text in (target.note, *map(str, target.refused), target.problem):
                if text:
                    line(f"  {target.target}: {text}")
            for text in target.warnings:
                line(f"  {target.target}: warning: {text}")
    if found.stale:
        line("\nshapes stated in the file that its operators don't give")
        for text in found.stale:
            line(f"  warning: {text}")
    if found.hazards:
        line("\nprecision hazards")
        for hazard in found.hazards:
            line(f"  {hazard.severity}: {hazard.kind}: {f'{hazard.where}: ' if hazard.where else ''}{hazard.what}")
    if found.refused:
        line("\nunsupported on every target")
        for refusal in found.refused:
            line(f"  {refusal}")
    line(f"\n{_count(found.errors, 'error')}, {_count(found.warnings, 'warning')}")


def _printer() -> Any:
    out = console()
    return lambda text: out.print(text, markup=False, soft_wrap=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _type(kind: TensorType) -> str:
    return f"{kind.dtype}[{', '.join(map(str, kind.shape))}]"


def _row(t: Coverage) -> tuple[str, ...]:
    refused = sum(r.count for r in t.refused)
    fits = {True: "likely" if t.note else "yes", False: "no", None: "—"}[t.fits]
    return t.target, t.precision, str(sum(t.device.values())), str(sum(t.processor.values())), str(refused), fits


def to_json(found: Check) -> Mapping[str, Any]:
    """Everything, with counts of errors and warnings."""
    return {
        "name": found.name,
        "inputs": {name: _type(kind) for name, kind in found.inputs},
        "outputs": {name: _type(kind) for name, kind in found.outputs},
        "assumed": found.assumed,
        "stale": found.stale,
        "layers": [
            {
                "where": e.where,
                "op": e.op,
                "inputs": [_type(t) for t in e.inputs],
                "outputs": [_type(t) for t in e.outputs],
                "broadcast": e.broadcast,
            }
            for e in found.layers
        ],
        "refused": found.refused,
        "hazards": found.hazards,
        "targets": [{**asdict(t), "ok": t.ok} for t in found.targets],
        "errors": found.errors,
        "warnings": found.warnings,
    }

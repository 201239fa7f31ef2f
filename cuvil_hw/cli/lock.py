"""`cuvil lock`: what a compilation depends on, by digest and version, in a file to be committed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.asked import (
    Asked,
    Calibration,
    Constants,
    Constraints,
    Dims,
    Examples,
    Golden,
    Interface,
    MaxTrips,
    Name,
    Precision,
    Shape,
    State,
    Target,
    lock_of,
)
from cuvil_hw.cli.model import HELP, Trust, open_model
from cuvil_hw.cli.output import check_outputs, console, print_json, read_arrays


def lock_model(
    model: Annotated[Path | None, typer.Argument(help=f"{HELP} With --strict it may be left out.")] = None,
    target: Annotated[str, Target] = "cpu",
    file: Annotated[Path, typer.Option("--file", "-f", help="The lock.")] = Path("cuvil.lock"),
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing; exit code 1 if anything differs from the lock.")
    ] = False,
    calibration: Calibration = None,
    example: Examples = None,
    precision: Precision = None,
    name: Name = None,
    shape: Shape = None,
    dim: Dims = None,
    constraint: Constraints = None,
    constant: Constants = None,
    state: State = None,
    max_trips: MaxTrips = None,
    interface: Interface = None,
    golden: Golden = None,
    trust: Annotated[bool, Trust] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a lock of a compilation: digests of model, profile and data, options, versions of compiler and tools.
    `cuvil compile --locked` and `cuvil lock --strict` refuse what differs from it, by name. Commit the file.

    Example: cuvil lock kws.onnx --target pynq-z2 --calibration x.npy; cuvil lock --strict
    """
    from cuvil_hw.entry import lock

    if model is None and strict:
        asked = Asked.read(lock.read(file)["asked"])
    elif model is None:
        raise typer.BadParameter("give a model; only --strict takes it from the lock")
    else:
        asked = Asked.of(
            model, target, calibration=calibration, example=example, precision=precision, name=name, shape=shape,
            dim=dim, constraint=constraint, constant=constant, state=state, max_trips=max_trips, interface=interface,
            golden=golden,
        )  # fmt: skip
    if "," in asked.target:
        raise typer.BadParameter("a lock is of one target; write one for each, with --file")
    data = read_arrays(Path(asked.calibration)) if asked.calibration else None
    opened = open_model(Path(asked.model), [Path(p) for p in asked.example], data, trust)
    now = lock_of(asked, opened)
    if strict:
        lock.check(file, now)
    else:
        check_outputs([file], [opened.file, *asked.inputs().values()])
        lock.write(file, now)
    if json:
        print_json({"file": str(file), "lock": now})
        return
    done = "nothing has changed since it was locked" if strict else f"locked {asked.model} for {asked.target}"
    console().print(f"{file}: {done}", markup=False, soft_wrap=True)

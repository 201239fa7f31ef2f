"""`cuvil export`: a program in the form of another server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.output import console, print_json
from cuvil_hw.cli.sign import MinRelease, SignedBy


def export(
    program: Annotated[Path, typer.Argument(help="A .cuvil file.", show_default=False)],
    triton: Annotated[
        Path, typer.Option(help="A model repository of Triton, in which NAME/ is written.", show_default=False)
    ],
    name: Annotated[str | None, typer.Option(help="Name of the model.", show_default="that of the file")] = None,
    model_version: Annotated[int, typer.Option(help="Version of the model.", min=1)] = 1,
    max_batch: Annotated[int, typer.Option(help="Most samples that Triton merges; 1: none.", min=1)] = 32,
    signed_by: SignedBy = None,
    min_release: MinRelease = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a model of a Triton repository: config.pbtxt, and the program behind Triton's Python backend.

    Example: cuvil export kws.cuvil --triton models/
    """
    from cuvil_hw.serve.triton import export

    files = export(program, triton, name or program.stem, model_version, max_batch, signed_by or (), min_release)
    if json:
        print_json({"triton": [str(f) for f in files]})
    else:
        for file in files:
            console().print(f"written: {file}", markup=False, soft_wrap=True)

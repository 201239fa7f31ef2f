"""`cuvil opt`: passes on level1 text, for tests and for looking at what a pass does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.output import print_json, show_table
from cuvil_hw.errors import CuvilError

PIPELINES = {
    "default": ("fold", "batch-norm", "integerize", "accumulators", "decompose", "fold", "fuse"),
    "float": ("fold", "batch-norm", "fold-dequantize", "decompose", "fold", "fuse"),
}


def run_passes(
    file: Annotated[
        Path | None, typer.Argument(help="Level1 text; - or nothing: standard input.", show_default=False)
    ] = None,
    passes: Annotated[list[str] | None, typer.Option("--pass", "-p", help="A pass; repeatable, in order.")] = None,
    pipeline: Annotated[str | None, typer.Option(help=f"Passes by name: {', '.join(PIPELINES)}.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List passes and pipelines.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run passes on level1 text and print the result.

    Example: cuvil opt model.mlir --pass fold --pass fuse
    """
    from cuvil_hw.errors import needs_compiler

    with needs_compiler("run passes"):
        from cuvil_hw.ir.program import parse
        from cuvil_hw.passes import PASSES, run_pipeline
    if listing:
        rows = [(name, _first_line(function)) for name, function in PASSES.items()]
        if json:
            print_json({"passes": dict(rows), "pipelines": PIPELINES})
        else:
            show_table(["pass", "what it does"], rows)
            show_table(["pipeline", "passes"], [(name, " → ".join(steps)) for name, steps in PIPELINES.items()])
        return
    if pipeline is not None and pipeline not in PIPELINES:
        raise typer.BadParameter(f"--pipeline {pipeline!r}: there are {', '.join(PIPELINES)}")
    if pipeline is not None and passes:
        raise typer.BadParameter("give --pass or --pipeline, not both")
    program = parse(_text(file))
    run_pipeline(program, PIPELINES[pipeline] if pipeline is not None else passes or ())
    if json:
        print_json({"text": program.text()})
    else:
        sys.stdout.write(program.text() + "\n")


def _text(file: Path | None) -> str:
    if file is None or str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise CuvilError(f"{file}: can't be read as text: {getattr(e, 'strerror', None) or e}") from e


def _first_line(function: Callable[..., None]) -> str:
    doc = function.__doc__ if function.__name__ != "run" else sys.modules[function.__module__].__doc__
    return (doc or "").strip().partition("\n")[0]

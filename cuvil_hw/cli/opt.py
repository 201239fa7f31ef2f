"""`cuvil opt`: passes on level1 text; level2 text checked, run and lowered. For tests and to look at what they do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cuvil_hw.cli.output import print_json, read_arrays, show_table
from cuvil_hw.errors import CuvilError


def run_passes(
    file: Annotated[
        Path | None, typer.Argument(help="Level1 text; - or nothing: standard input.", show_default=False)
    ] = None,
    passes: Annotated[
        list[str] | None,
        typer.Option("--pass", "-p", help="A pass: fold{dequantize=true}; repeatable, in order."),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="A pipeline by name (--list), or passes: fold,batch-norm,fuse{alone=true}.")
    ] = None,
    dump: Annotated[Path | None, typer.Option(help="Write the IR after every pass below this folder.")] = None,
    lowered: Annotated[bool, typer.Option("--lowered", help="The text is level2: check it, run no passes.")] = False,
    interpret: Annotated[
        str | None,
        typer.Option(help="Run this function of level2 text and print what its memories and streams hold."),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", "-a", help="An argument of it: numbers as 1,2,3, or _ for nothing yet; repeatable."),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of threads that run it.")] = 1,
    samples: Annotated[int, typer.Option(min=1, help="Tensors that cross each port of a design.")] = 1,
    constants: Annotated[
        Path | None, typer.Option(help="Arrays of its tables by digest (.npz).", show_default=False)
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Lower a streaming design of level2 text: hardware (its modules), verilog (their files)."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List passes and pipelines.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run passes on level1 text and print the result; or check level2 text, run a function of it, or lower it to
    hardware.

    Example: cuvil opt model.mlir --pass fold --pass fuse
    """
    from cuvil_hw.errors import needs_compiler

    with needs_compiler("run passes"):
        from cuvil_hw.compile.dump import Dump
        from cuvil_hw.ir.program import parse
        from cuvil_hw.passes.pipeline import PASSES, PIPELINES, observed, run_pipeline
    if listing:
        rows = [(name, " ".join((one.__doc__ or "").split())) for name, one in PASSES.items()]
        if json:
            print_json({"passes": dict(rows), "pipelines": {name: spec.split(",") for name, spec in PIPELINES.items()}})
        else:
            show_table(["pass", "what it does"], rows)
            show_table(["pipeline", "passes"], list(PIPELINES.items()))
        return
    if pipeline is not None and passes:
        raise typer.BadParameter("give --pass or --pipeline, not both")
    if to not in (None, "hardware", "verilog"):
        raise typer.BadParameter(f"--to takes hardware or verilog, not {to}")
    if to is not None and interpret is not None:
        raise typer.BadParameter("give --to or --interpret, not both")
    if lowered or interpret is not None or to is not None:
        if passes or pipeline is not None:
            raise typer.BadParameter("passes are for level1 text; give --pass and --pipeline without --lowered")
        if to is not None:
            text = _hardware(_text(file), to, constants)
        else:
            text = _level2(_text(file), interpret, arguments or (), constants, blocks, samples)
        if json:
            print_json({"text": text.rstrip("\n")})
        else:
            sys.stdout.write(text)
        return
    program = parse(_text(file))
    with observed(Dump(dump) if dump is not None else None):
        run_pipeline(program, PIPELINES.get(pipeline, pipeline) if pipeline is not None else passes or ())
    if json:
        print_json({"text": program.text()})
    else:
        sys.stdout.write(program.text() + "\n")


def _level2(
    text: str, name: str | None, arguments: Sequence[str], constants: Path | None, blocks: int, samples: int
) -> str:
    """The checked module, or what the memories and streams of one of its functions hold after it ran."""
    from cuvil_hw.ir.interpreter.text import interpreted
    from cuvil_hw.ir.legal import parse

    module = parse(text)
    if name is None:
        return str(module) + "\n"
    return interpreted(module, name, arguments, _tables(constants), blocks, samples)


def _hardware(text: str, to: str, constants: Path | None) -> str:
    """A streaming design one level below."""
    from cuvil_hw.adapters.streaming.rtl.emit import emit, hardware
    from cuvil_hw.ir.legal import parse

    module, arrays = parse(text), _tables(constants)
    if to == "hardware":
        return f"{hardware(module, arrays, 'model')[0]}\n"
    files = emit(module, arrays, "model")
    return "\n".join(f"// file: {name}\n{files[name]}" for name in files)


def _tables(constants: Path | None) -> dict[str, Any]:
    """Arrays of tables by digest."""
    arrays = {} if constants is None else read_arrays(constants)
    if not isinstance(arrays, dict):
        raise CuvilError(f"{constants}: holds one array; tables are found by digest, in a .npz file")
    return arrays


def _text(file: Path | None) -> str:
    if file is None or str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise CuvilError(f"{file}: can't be read as text: {getattr(e, 'strerror', None) or e}") from e

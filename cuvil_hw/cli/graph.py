"""`cuvil graph`: draw a model or a compiled program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.output import check_outputs, console, print_json
from cuvil_hw.errors import CuvilError


def draw(
    model: Annotated[Path, typer.Argument(help="An .onnx or .cuvil file.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write: .svg or .dot.")],
    shape: Annotated[list[str] | None, typer.Option(help="Shape of an ONNX input: name=1,3,224,224.")] = None,
    constant: Annotated[list[str] | None, typer.Option(help="An ONNX input made constant: name=16000.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw the level1 graph of a model, as imported, or of a compiled program.

    Example: cuvil graph kws.onnx -o kws.svg
    """
    from cuvil_hw.api import import_model
    from cuvil_hw.cli.compile import parse_constant, parse_shape
    from cuvil_hw.report.file import write_text

    if output.suffix not in (".svg", ".dot"):
        raise typer.BadParameter(f"{output}: a graph is written as .svg or .dot")
    check_outputs([output], [model])
    if model.suffix == ".cuvil":
        from cuvil_hw.runtime import artifact
        from cuvil_hw.runtime.load import program_in

        executable = program_in(artifact.read(model))
        if not executable.ir:
            raise CuvilError(f"{model}: holds no level1 IR")
        from cuvil_hw.ir.program import parse

        program = parse(executable.ir, name=executable.name)
    else:
        shapes, constants = map(parse_shape, shape or ()), map(parse_constant, constant or ())
        program = import_model(str(model), None, dict(shapes), None, dict(constants))
    from cuvil_hw.ir import graphviz

    write_text(output, graphviz.to_svg(program) if output.suffix == ".svg" else graphviz.to_dot(program))
    if json:
        drawn = [n for n in graphviz.graph_of(program).nodes if n.kind not in ("input", "output")]
        print_json({"graph": str(output), "operations": len(drawn)})
    else:
        console().print(f"written: {output}", markup=False, soft_wrap=True)

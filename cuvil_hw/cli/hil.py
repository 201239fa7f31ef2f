"""`cuvil hil`: the same checks on every board of a rig."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.output import check_outputs, console, print_json, show_table
from cuvil_hw.report.junit import write_junit


def hardware(
    programs: Annotated[list[Path], typer.Argument(help=".cuvil files.", show_default=False)],
    rig: Annotated[
        Path, typer.Option(help="The rig file (YAML): boards, and how they are reached.", show_default=False)
    ],
    board: Annotated[
        list[str] | None, typer.Option("--board", "-b", help="Only this board; may be given again.")
    ] = None,
    feature: Annotated[
        list[str] | None, typer.Option("--feature", "-f", help="Only boards with this feature; may be given again.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the checks as JUnit XML.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test programs on boards: they open, give what the IR means, sample by sample, in batches and opened again, and
    refuse wrong inputs. Each program runs on every board of its target. Exit code 1 when a check fails.

    Example: cuvil hil kws.cuvil --rig rig.yaml --junit out.xml
    """
    from cuvil_hw.rig.rig_file import read_rig
    from cuvil_hw.rig.suite import BoardCheck, case_of, run

    check_outputs([junit], [rig, *programs])
    found = read_rig(rig)

    def said(result: BoardCheck) -> None:
        if not json and not result.right:
            console().print(
                f"{result.board}: {result.program}: {result.check}: {result.why}", markup=False, soft_wrap=True
            )

    results = run(found, programs, board or (), feature or (), said)
    if junit is not None:
        write_junit(junit, [case_of(r) for r in results])
    passed = all(r.right for r in results)
    if json:
        print_json({"rig": str(rig), "passed": passed, "checks": [asdict(r) for r in results]})
    else:
        rows = []
        for r in results:
            figures = ", ".join(f"{k} {v:,.4g}" for k, v in r.figures.items())
            rows.append((r.board, r.program, r.check, r.status if r.right else r.status.upper(), figures))
        show_table(("board", "program", "check", "", "measured on the board"), rows)
        if junit is not None:
            console().print(f"written: {junit}", markup=False, soft_wrap=True)
    if not passed:
        raise typer.Exit(1)

"""`cuvil bitstreams`: the registry of bitstreams, by which artifacts find theirs on a board."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuvil_hw.cli.output import console, print_json, show_table
from cuvil_hw.errors import CuvilError

if TYPE_CHECKING:
    from cuvil_hw.runtime.artifact import Artifact

app = typer.Typer(help="Register, list and verify bitstreams for boards.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Program = Annotated[Path, typer.Argument(help="A .cuvil file for a Zynq target.", show_default=False)]


@app.command("project")
def write_project(
    program: Program,
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder.", show_default=False)],
) -> None:
    """Write a program's Vitis HLS and Vivado project, to build its bitstream from.

    Example: cuvil bitstreams project kws.cuvil -o project
    """
    from cuvil_hw.runtime import artifact as container

    artifact = _zynq(program)
    try:
        output.mkdir(parents=True)
    except OSError as e:
        raise CuvilError(f"{output}: can't be made: {e.strerror or e}; name a folder that doesn't exist yet") from e
    container.extract(artifact, output)
    out = console()
    out.print(f"written: {output}", markup=False, soft_wrap=True)
    out.print("there: python3 build.py", markup=False)
    out.print("then:  vivado -mode batch -source shell.tcl", markup=False)


@app.command("design")
def show_design(program: Program) -> None:
    """Print the digest of the design that a program needs on the fabric."""
    typer.echo(_design(_zynq(program)))


@app.command("add")
def add_bitstream(
    program: Program,
    bit: Annotated[Path, typer.Argument(help="The .bit file.", show_default=False)],
    hwh: Annotated[
        Path | None, typer.Option(help="Its .hwh file.", show_default="beside the .bit, of the same name")
    ] = None,
    tool: Annotated[str | None, typer.Option(help="What built it.", show_default="as the .hwh says")] = None,
    shell: Annotated[str | None, typer.Option(help="The block design.", show_default="the project's")] = None,
    shared: Annotated[bool, typer.Option("--shared", help="For all users of this machine; needs root.")] = False,
    json: Json = False,
) -> None:
    """Register the bitstream of a program, after checking that it fits: part, addresses, DMAs and widths.

    Example: cuvil bitstreams add kws.cuvil shell.bit
    """
    from cuvil_hw.adapters.zynq import bitstreams
    from cuvil_hw.adapters.zynq.ports import ends_of
    from cuvil_hw.adapters.zynq.shell import SHELL

    artifact = _zynq(program)
    manifest = artifact.manifest
    entry = bitstreams.add(
        _bytes(bit),
        _bytes(hwh if hwh is not None else bit.with_suffix(".hwh")),
        design=_design(artifact),
        part=str(manifest.profile.get("part", "")),
        **ends_of(manifest.info),
        shell=shell or SHELL,
        tool=tool,
        shared=shared,
    )
    if json:
        print_json({"added": asdict(entry)})
    else:
        text = f"added: {manifest.model} on {entry.part}, {entry.tool}, {entry.shell}"
        console().print(text, markup=False, soft_wrap=True)


@app.command("list")
def list_bitstreams(json: Json = False) -> None:
    """List the registered bitstreams: this user's, and those for all users."""
    from cuvil_hw.adapters.zynq import bitstreams

    entries, shared = bitstreams.everywhere(), bitstreams.shared_home()
    if json:
        found = [{**asdict(e), "home": str(top)} for top, e in entries]
        print_json({"home": str(bitstreams.home()), "shared": str(shared), "bitstreams": found})
        return
    rows = [
        [e.design[:12], e.part, e.tool, e.shell, e.bit[:12], "all users" if top == shared else "you"]
        for top, e in entries
    ]
    show_table(["design", "part", "tool", "shell", "bit", "for"], rows)


@app.command("verify")
def verify_bitstreams(json: Json = False) -> None:
    """Check every registered file against its digest. Exit code 1 when one is damaged."""
    from cuvil_hw.adapters.zynq import bitstreams

    found = bitstreams.verify()
    if json:
        print_json({"bitstreams": [{**asdict(e), "problem": problem} for e, problem in found.items()]})
    else:
        rows = [[e.design[:12], e.part, e.tool, problem or "sound"] for e, problem in found.items()]
        show_table(["design", "part", "tool", "files"], rows)
    if any(found.values()):
        raise typer.Exit(1)


def _zynq(program: Path) -> Artifact:
    from cuvil_hw.runtime import artifact as container

    artifact = container.read(program)
    if artifact.manifest.adapter != "zynq":
        raise CuvilError(f"{program}: is for {artifact.manifest.adapter}; only Zynq targets have bitstreams")
    return artifact


def _design(artifact: Artifact) -> str:
    from cuvil_hw.adapters.zynq.ports import design_digest
    from cuvil_hw.runtime.artifact import SOURCES

    sources = {n.removeprefix(SOURCES): d for n, d in artifact.files.items() if n.startswith(SOURCES)}
    return design_digest(sources, artifact.manifest.info)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise CuvilError(f"{path}: could not be read: {e.strerror or e}; check the path") from e

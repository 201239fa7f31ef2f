"""`cuvil compile`: a model file to an artifact, or to one for each of several targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from cuvil_hw.cli.model import HELP, ModelFile, Trust, open_model
from cuvil_hw.cli.output import (
    check_outputs,
    command_line,
    console,
    print_error,
    print_json,
    progress,
    read_array,
    read_arrays,
    show_table,
)
from cuvil_hw.cli.several import compile_for, file_of, targets_of
from cuvil_hw.cli.shapes import parse_shapes
from cuvil_hw.contract import canonical
from cuvil_hw.errors import CuvilError
from cuvil_hw.report.file import write_bytes

if TYPE_CHECKING:
    from cuvil_hw.runtime.dynamic import DynamicExecutable
    from cuvil_hw.runtime.executable import Executable


def compile_model(
    model: Annotated[Path, typer.Argument(help=HELP, show_default=False)],
    target: Annotated[str, Target] = "cpu",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write the artifact, or for cpu targets a library for C (.so, .a or .c, with its .h); with "
            "several targets a folder for MODEL.TARGET.cuvil.",
            show_default="MODEL.cuvil here",
        ),
    ] = None,
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
    report: Annotated[Path | None, typer.Option(help="Write the report as one HTML file.")] = None,
    sources: Annotated[Path | None, typer.Option(help="Write the generated sources below this folder.")] = None,
    dump: Annotated[Path | None, typer.Option(help="Write the IR after every pass below this folder.")] = None,
    locked: Annotated[
        Path | None, typer.Option(help="A lock (`cuvil lock`): refuse to compile if anything differs from it.")
    ] = None,
    provenance: Annotated[
        Path | None, typer.Option(help="Write where the artifact comes from: SLSA v1 in an in-toto statement, JSON.")
    ] = None,
    builder: Annotated[
        str | None, typer.Option(help="With --provenance: a URI that names who compiles.", show_default="a local one")
    ] = None,
    sbom: Annotated[Path | None, typer.Option(help="Write a bill of materials: CycloneDX 1.6, JSON.")] = None,
    trust: Annotated[bool, Trust] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compile an ONNX or PyTorch model for a target, or for several, with one import and one calibration.

    With several targets, those that can't be compiled for are listed, and the exit code is 1.

    Example: cuvil compile kws.onnx --target pynq-z2 -o kws.cuvil --report kws.html
    """
    from cuvil_hw import api
    from cuvil_hw.runtime import native

    data = read_arrays(calibration) if calibration is not None else None
    opened = open_model(model, example, data, trust)
    attested = Attested(locked, provenance, sbom, builder)
    options: dict[str, Any] = {
        "example_inputs": opened.example_inputs,
        "calibration": data,
        "precision": precision,
        "name": name,
        "shapes": parse_shapes(shape or (), dim or ()),
        "constants": dict(parse_constant(text) for text in constant or ()),
        "state": dict(parse_pair(text) for text in state or ()),
        "max_trips": max_trips,
        "interface": interface,
        "golden": golden or 0,
    }
    if "," in target:
        if report is not None or sources is not None or dump is not None:
            raise typer.BadParameter("--report, --sources, --dump go with one target; for others see `cuvil report`")
        if attested:
            raise typer.BadParameter("--locked, --provenance and --sbom go with one target")
        if dim or constraint:
            raise typer.BadParameter("--dim and --constraint go with one target")
        compile_several(opened, targets_of(target), output if output is not None else Path(), options, json)
        return
    path = output if output is not None else Path(f"{opened.file.stem}.cuvil")
    files = [Path(text.rpartition("=")[2]) for text in constant or ()]
    read = [opened.file, calibration, Path(target), locked, *files, *(example or ())]
    check_outputs([path, report, provenance, sbom], read)
    if attested:
        asked = Asked.of(
            model, target, calibration=calibration, example=example, precision=precision, name=name, shape=shape,
            dim=dim, constraint=constraint, constant=constant, state=state, max_trips=max_trips, interface=interface,
            golden=golden,
        )  # fmt: skip
        attested.begin(lock_of(asked, opened))
    with progress(f"{model.name} → {target}") as step:
        rules = tuple(constraint or ())
        executable = api.compile(opened.model, target, constraints=rules, progress=step, dump=dump, **options)
    executable.save(path)
    written: dict[str, Any] = {"artifact": str(path)}
    if native.kind_of(path) is not None:
        size = path.stat().st_size
        written = {"library": str(path), "library_bytes": size, "header": str(path.with_suffix(".h"))}
    written |= attested.write(path)
    if report is not None:
        executable.report.save_html(report, command_line())
        written["report"] = str(report)
    if sources is not None:
        written["sources"] = str(sources)
        written["files"] = write_sources(executable, sources)
    if json:
        print_json({**written, "report_data": executable.report})
        return
    out = console()
    out.print(executable.report.text(), markup=False, soft_wrap=True)
    if (holds := _held(executable)) is not None:
        out.print(f"sizes: {holds}", markup=False, soft_wrap=True)
    for what, where in written.items():
        if what != "files":
            out.print(f"{what}: {where}", markup=False, soft_wrap=True)


@dataclass(slots=True)
class Attested:
    """What is checked before an artifact is made, and said about it afterwards."""

    locked: Path | None
    provenance: Path | None
    sbom: Path | None
    builder: str | None
    lock: dict[str, Any] = field(default_factory=dict)
    started: str = ""

    def __bool__(self) -> bool:
        return any(path is not None for path in (self.locked, self.provenance, self.sbom))

    def begin(self, lock: dict[str, Any]) -> None:
        """Raises LockDrift where something differs from the lock."""
        from cuvil_hw.entry import lock as locks
        from cuvil_hw.entry import provenance

        if self.locked is not None:
            locks.check(self.locked, lock)
        self.lock, self.started = lock, provenance.now()

    def write(self, artifact: Path) -> dict[str, str]:
        """Write the documents about the artifact; their paths by what they are. Raises CuvilError."""
        from cuvil_hw.entry import provenance as about

        written: dict[str, str] = {}
        if not (self.provenance or self.sbom):
            return written
        data = artifact.read_bytes()
        if self.provenance is not None:
            given = {"builder": self.builder} if self.builder is not None else {}
            made = about.statement(self.lock, artifact.name, data, started=self.started, **given)
            write_bytes(self.provenance, canonical.dump(made))
            written["provenance"] = str(self.provenance)
        if self.sbom is not None:
            made = about.bill_of_materials(self.lock, artifact.name, data)
            write_bytes(self.sbom, canonical.dump(made))
            written["sbom"] = str(self.sbom)
        return written


def _held(executable: Executable | DynamicExecutable) -> str | None:
    """Which sizes the artifact has programs for, where it takes more than those; None for fixed shapes."""
    from cuvil_hw.runtime.dynamic import DynamicExecutable

    if not isinstance(executable, DynamicExecutable):
        return None
    dims = executable.program.domain.dims
    if all(d.max is not None and len(d.sizes) > d.max - d.min for d in dims):
        return None
    found = executable.report["open"]
    free = ", ".join(found["batch"])
    others = f"others of {free} are cut and padded to them; " if free else ""
    return f"the artifact runs {', '.join(found['sizes'])}; {others}list more in --dim, as in batch=1:64:1,8"


def compile_several(
    opened: ModelFile, targets: Sequence[str], folder: Path, options: Mapping[str, Any], json: bool
) -> None:
    """Write an artifact for each target and show them side by side."""
    from cuvil_hw.entry import compare

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CuvilError(f"{folder}: can't be made: {e.strerror or e}; choose another folder") from e
    made = compile_for(opened.model, opened.file.name, targets, options)
    rows, written, errors = [], {}, {}
    for label, result in made.results.items():
        seconds = made.seconds.get(label)
        if isinstance(result, CuvilError):
            rows.append(compare.failure(label, result, seconds))
            errors[label] = result
        else:
            path = folder / file_of(opened.file.stem, label)
            result.save(path)
            written[label] = path
            rows.append(compare.row_of(label, result, seconds))
    if json:
        print_json({"artifacts": written, "programs": compare.to_json(rows)})
    else:
        show_table(*compare.table(rows), split=True)
        out = console()
        for path in written.values():
            out.print(f"artifact: {path}", markup=False, soft_wrap=True)
        for label, error in errors.items():
            error.add_note(f"on target {label}")
            print_error(error, False)
    if errors:
        raise typer.Exit(1)


def write_sources(executable: Executable | DynamicExecutable, folder: Path) -> list[str]:
    """Write the generated sources of a program below `folder`, made if need be, those of each size in a folder of its
    own; returns their names."""
    from cuvil_hw.contract.build import write_files
    from cuvil_hw.runtime.artifact import SOURCES
    from cuvil_hw.runtime.executable import Executable

    programs = {"": executable.artifact} if isinstance(executable, Executable) else executable.programs
    files = {
        (f"{key}/" if key else "") + name.removeprefix(SOURCES): data
        for key, artifact in programs.items()
        for name, data in artifact.files.items()
        if name.startswith(SOURCES)
    }
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


def parse_pair(text: str) -> tuple[str, str]:
    """`input=output`. Raises BadParameter."""
    name, _, output = text.partition("=")
    if not name or not output:
        raise typer.BadParameter(f"--state is {text!r}, expected input=output such as state=stateN")
    return name, output


def parse_constant(text: str) -> tuple[str, Any]:
    """`name=number`, `name=numbers` or `name=FILE.npy`. Raises BadParameter, and as `read_array` does."""
    name, _, given = text.rpartition("=")
    if name and given.endswith(".npy"):
        return name, read_array(Path(given))
    try:
        numbers = [int(part) if part.lstrip("+-").isdigit() else float(part) for part in given.split(",")]
    except ValueError:
        numbers = []
    if not name or not numbers:
        raise typer.BadParameter(f"--constant is {text!r}, expected name=number, name=1,2,3 or name=FILE.npy")
    return name, numbers if "," in given else numbers[0]

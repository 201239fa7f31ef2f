"""`cuvil test`: a gate for continuous integration: a program must be as right, as small and as fast as is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree

import numpy as np
import typer

from cuvil_hw.cli.output import check_outputs, console, print_json, read_array, show_table
from cuvil_hw.cli.sign import MinRelease, SignedBy
from cuvil_hw.errors import CuvilError
from cuvil_hw.errors.quoting import visible
from cuvil_hw.report.file import write_bytes

if TYPE_CHECKING:
    from cuvil_hw.report.report import Report
    from cuvil_hw.runtime.executable import Executable


@dataclass(frozen=True, slots=True)
class Requirement:
    """`got`: what the program has, `wanted`: what was asked."""

    name: str
    passed: bool
    got: str
    wanted: str


def gate(
    program: Annotated[Path, typer.Argument(help="A .cuvil file.", show_default=False)],
    inputs: Annotated[
        list[Path] | None, typer.Option("--input", "-i", help="x.npy of N samples, once per input, in order.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="The class of each sample, .npy.")] = None,
    expect: Annotated[
        list[Path] | None, typer.Option(help="y.npy, once per output: what must come out, to the bit.")
    ] = None,
    min_accuracy: Annotated[float | None, typer.Option(help="Least share of right labels, 0 to 1.")] = None,
    min_throughput: Annotated[float | None, typer.Option(help="Least inferences/s by the report's estimate.")] = None,
    max_use: Annotated[
        list[str] | None, typer.Option(help="Most of a resource, as a share of the target's: lut=0.7 or lut=70%.")
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            help="Device to run on: hw, sim, null or another that the target has.", show_default="the artifact's"
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the checks as JUnit XML.")] = None,
    signed_by: SignedBy = None,
    min_release: MinRelease = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test a compiled program against limits; for continuous integration. Exit code 1 when a check fails.

    Example: cuvil test kws.cuvil --input x.npy --labels labels.npy --min-accuracy 0.9 --max-use lut=0.7 --junit out.xml
    """
    from cuvil_hw.runtime.executable import Executable
    from cuvil_hw.runtime.load import load

    if (labels is None) != (min_accuracy is None):
        raise typer.BadParameter("--labels and --min-accuracy go together")
    if (labels is not None or expect) and not inputs:
        raise typer.BadParameter("--min-accuracy and --expect are of what the program gives for an --input")
    if min_accuracy is None and not expect and min_throughput is None and not max_use:
        raise typer.BadParameter("nothing to test: give --min-accuracy, --expect, --min-throughput or --max-use")
    limits = parse_uses(max_use or ())
    check_outputs([junit], [program, labels, *(inputs or ()), *(expect or ())])
    loaded = load(program, interface, trust=signed_by, min_release=min_release)
    try:
        if not isinstance(loaded, Executable):
            remedy = "test the program of one size, as cuvil.load(path).at(…) gives"
            raise CuvilError(f"{program}: has open shapes; {remedy}")
        found = [*_uses(loaded.report, limits)]
        if min_throughput is not None:
            rate = loaded.report["throughput"]["inferences_per_s"] or 0.0
            asked = f"at least {min_throughput:,.6g}/s"
            found.append(Requirement("throughput", rate >= min_throughput, f"{rate:,.6g}/s", asked))
        arrays = [read_array(path) for path in inputs or ()]
        if labels is not None and min_accuracy is not None:
            share = loaded.evaluate(tuple(arrays), read_array(labels)).accuracy or 0.0
            found.append(Requirement("accuracy", share >= min_accuracy, f"{share:.4f}", f"at least {min_accuracy:g}"))
        if expect:
            found += _outputs(loaded, arrays, [read_array(path) for path in expect])
        name = loaded.name
    finally:
        loaded.close()
    if junit is not None:
        write_junit(junit, name, found)
    if json:
        print_json({"program": name, "passed": all(c.passed for c in found), "checks": [asdict(c) for c in found]})
    else:
        rows = [(c.name, "passed" if c.passed else "FAILED", c.got, c.wanted) for c in found]
        show_table(("check", "", "has", "asked"), rows)
        if junit is not None:
            console().print(f"written: {junit}", markup=False, soft_wrap=True)
    if not all(c.passed for c in found):
        raise typer.Exit(1)


def parse_uses(texts: Sequence[str]) -> dict[str, float]:
    """The share by resource. Raises BadParameter, also for a resource that is named twice."""
    limits: dict[str, float] = {}
    for axis, limit in map(parse_use, texts):
        if axis in limits:
            raise typer.BadParameter(f"--max-use names {axis} twice; give one share of it")
        limits[axis] = limit
    return limits


def parse_use(text: str) -> tuple[str, float]:
    """`lut=0.7` or `lut=70%` → the share. Raises BadParameter."""
    axis, _, share = text.partition("=")
    try:
        limit = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
    except ValueError:
        limit = -1.0
    if not axis or not 0 <= limit <= 1:
        raise typer.BadParameter(f"--max-use is {text!r}, expected a resource and a share of it: lut=0.7 or lut=70%")
    return axis, limit


def _uses(report: Report, limits: Mapping[str, float]) -> list[Requirement]:
    totals: dict[str, Any] = {t["axis"]: t for t in report["totals"]}
    found = []
    for axis, limit in limits.items():
        if axis not in totals:
            raise CuvilError(f"--max-use {axis}: the target has no such resource; it has {', '.join(totals)}")
        used, budget = totals[axis]["used"], totals[axis]["budget"]
        share = used / budget if budget else float(used > 0)
        found.append(
            Requirement(f"use of {axis}", share <= limit, f"{share:.1%} ({used:,.6g})", f"at most {limit:.1%}")
        )
    return found


def _outputs(program: Executable, arrays: Sequence[Any], expected: Sequence[Any]) -> list[Requirement]:
    outputs = program.run(*arrays).outputs
    if len(outputs) != len(expected):
        raise CuvilError(f"{len(expected)} --expect given, {program.name} has {len(outputs)} outputs")
    found = []
    for port, got, want in zip(program.outputs, outputs, expected, strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            shown = f"{got.dtype}{list(got.shape)}"
            found.append(Requirement(f"output {port.name}", False, shown, f"{want.dtype}{list(want.shape)}"))
            continue
        same = (got == want) | ((got != got) & (want != want))
        wrong = int(np.size(same) - np.count_nonzero(same))
        found.append(Requirement(f"output {port.name}", not wrong, f"{wrong} of {got.size} differ", "0"))
    return found


def write_junit(path: Path, program: str, found: Sequence[Requirement]) -> None:
    """One test case a check. Raises CuvilError when the file can't be written."""
    failures = sum(not c.passed for c in found)
    suite = ElementTree.Element("testsuite", name=visible(program), tests=str(len(found)), failures=str(failures))
    for c in found:
        case = ElementTree.SubElement(suite, "testcase", classname=visible(program), name=visible(c.name))
        if not c.passed:
            ElementTree.SubElement(case, "failure", message=f"{c.got}, asked: {c.wanted}")
    write_bytes(path, ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))

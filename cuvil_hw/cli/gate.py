"""`cuvil test`: a gate for continuous integration: a program must be as right, as small and as fast as is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.output import check_outputs, console, print_json, read_array, show_table
from cuvil_hw.cli.sign import MinRelease, SignedBy
from cuvil_hw.errors import CuvilError
from cuvil_hw.report.junit import write_junit


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
    max_latency: Annotated[
        str | None,
        typer.Option(help="Most time of one sample, as 5ms: measured on hardware, elsewhere the report's."),
    ] = None,
    golden: Annotated[
        bool | None,
        typer.Option(
            help="Check golden vectors: those in the artifact, else some computed from its IR.",
            show_default="if nothing else is asked",
        ),
    ] = None,
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
    """Test a compiled program against golden vectors and limits; for continuous integration. Exit code 1 when a check
    fails.

    Example: cuvil test kws.cuvil --golden --input x.npy --labels y.npy --min-accuracy 0.9 --junit out.xml
    """
    from cuvil_hw.entry import gate as checks
    from cuvil_hw.runtime.executable import Executable
    from cuvil_hw.runtime.load import load

    if (labels is None) != (min_accuracy is None):
        raise typer.BadParameter("--labels and --min-accuracy go together")
    if (labels is not None or expect) and not inputs:
        raise typer.BadParameter("--min-accuracy and --expect are of what the program gives for an --input")
    limits = parse_uses(max_use or ())
    most_s = parse_time(max_latency, "--max-latency") if max_latency is not None else None
    check_outputs([junit], [program, labels, *(inputs or ()), *(expect or ())])
    # Golden vectors are checked unless other limits are asked for; with --golden also then.
    others = (min_accuracy, min_throughput, most_s, *(max_use or ()), *(expect or ()))
    if golden is None:
        golden = all(value is None for value in others)
    loaded = load(program, interface, trust=signed_by, min_release=min_release)
    try:
        if not isinstance(loaded, Executable):
            remedy = "test the program of one size, as cuvil.load(path).at(…) gives"
            raise CuvilError(f"{program}: has open shapes; {remedy}")
        found = [checks.golden(loaded)] if golden else []
        found += checks.uses(loaded.report, limits)
        if min_throughput is not None:
            found.append(checks.throughput(loaded.report, min_throughput))
        if most_s is not None:
            found.append(checks.latency(loaded, most_s))
        arrays = [read_array(path) for path in inputs or ()]
        if labels is not None and min_accuracy is not None:
            found.append(checks.accuracy(loaded, arrays, read_array(labels), min_accuracy))
        if expect:
            found += checks.outputs(loaded, arrays, [read_array(path) for path in expect])
        name = loaded.name
    finally:
        loaded.close()
    if not found:
        raise typer.BadParameter("nothing to test: --no-golden, and no limit")
    if junit is not None:
        write_junit(junit, [c.case(name) for c in found])
    if json:
        print_json({"program": name, "passed": all(c.passed for c in found), "checks": [asdict(c) for c in found]})
    else:
        rows = [(c.name, "passed" if c.passed else "FAILED", c.got, c.wanted) for c in found]
        show_table(("check", "", "has", "asked"), rows)
        if junit is not None:
            console().print(f"written: {junit}", markup=False, soft_wrap=True)
    if not all(c.passed for c in found):
        raise typer.Exit(1)


def parse_time(text: str, option: str) -> float:
    """`5ms`, `800us` or `0.01s` → seconds. Raises BadParameter."""
    for unit, factor in (("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("s", 1.0)):
        if text.endswith(unit):
            try:
                seconds = float(text.removesuffix(unit)) * factor
            except ValueError:
                break
            if 0 < seconds < float("inf"):
                return seconds
            break
    raise typer.BadParameter(f"{option} is {text!r}, expected a time and its unit: 5ms, 800us or 0.01s")


def parse_uses(texts: Sequence[str]) -> dict[str, float]:
    """The share by resource. Raises BadParameter, also for a resource that is named twice."""
    limits: dict[str, float] = {}
    for axis, limit in map(parse_use, texts):
        if axis in limits:
            raise typer.BadParameter(f"--max-use names {axis} twice; give one share of it")
        limits[axis] = limit
    return limits


def parse_share(text: str, option: str) -> float:
    """`0.05` or `5%`. Raises BadParameter for what is no number, or negative."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise typer.BadParameter(f"{option} is {text!r}, expected a share: 0.05 or 5%")
    return share


def parse_use(text: str) -> tuple[str, float]:
    """`lut=0.7` or `lut=70%` → the share. Raises BadParameter."""
    axis, _, share = text.partition("=")
    told = f"--max-use is {text!r}, expected a resource and a share of it: lut=0.7 or lut=70%"
    try:
        limit = parse_share(share, "--max-use")
    except typer.BadParameter as e:
        raise typer.BadParameter(told) from e
    if not axis or limit > 1:
        raise typer.BadParameter(told)
    return axis, limit

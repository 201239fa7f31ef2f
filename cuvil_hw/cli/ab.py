"""`cuvil ab`: two builds of a model, with statistics, for continuous integration."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuvil_hw.cli.gate import parse_share
from cuvil_hw.cli.output import console, print_json, read_array, show_table
from cuvil_hw.cli.sign import MinRelease, SignedBy
from cuvil_hw.errors import CuvilError
from cuvil_hw.report import words

if TYPE_CHECKING:
    from cuvil_hw.entry.ab import AB


def ab(
    old: Annotated[Path, typer.Argument(help="A .cuvil file.", show_default=False)],
    new: Annotated[Path, typer.Argument(help="A .cuvil file that is to replace it.", show_default=False)],
    data: Annotated[
        list[Path], typer.Option("--data", "-d", help="x.npy of N samples, once per input.", show_default=False)
    ],
    labels: Annotated[
        Path | None, typer.Option(help="The class of each sample, .npy: accuracies are compared.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Of timing both builds, in random order.", min=10)] = 100,
    alpha: Annotated[str, typer.Option(help="Most share of runs in which equal builds are told apart.")] = "5%",
    slower_by: Annotated[str, typer.Option(help="A slowdown up to which nothing is said.")] = "3%",
    seed: Annotated[int, typer.Option(help="Of the order of rounds, and of resamples.", min=0)] = 0,
    interface: Annotated[str | None, typer.Option(help="Device to run on.", show_default="each artifact's")] = None,
    signed_by: SignedBy = None,
    min_release: MinRelease = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two builds of a model: latency, interleaved, with a bootstrap interval, and accuracy by McNemar's test.
    The exit code is 1 when the new one is slower or less accurate beyond doubt.

    Example: cuvil ab old.cuvil new.cuvil --data x.npy --labels y.npy
    """
    from cuvil_hw.entry import ab as statistics
    from cuvil_hw.runtime.executable import Executable
    from cuvil_hw.runtime.load import load

    level, tolerance = parse_share(alpha, "--alpha"), parse_share(slower_by, "--slower-by")
    if not 0 < level < 0.5:
        raise typer.BadParameter(f"--alpha is {alpha}, expected more than 0 and less than 50%")
    arrays = tuple(read_array(path) for path in data)
    classes = read_array(labels) if labels is not None else None
    builds = []
    try:
        for path in (old, new):
            builds.append(load(path, interface, trust=signed_by, min_release=min_release))
        first, second = builds
        if not isinstance(first, Executable) or not isinstance(second, Executable):
            raise CuvilError("a program with open shapes isn't compared; give those of one size, program.at(…)")
        found = statistics.compare(
            first, second, arrays, classes, rounds=rounds, alpha=level, tolerance=tolerance, seed=seed
        )
    finally:
        for build in builds:
            build.close()
    if json:
        print_json({**asdict(found), "regressed": found.regressed})
    else:
        _show(found)
    if found.regressed:
        raise typer.Exit(1)


def _show(found: AB) -> None:
    rows = []
    if (t := found.latency) is not None:
        between = f"{t.ratio - 1:+.1%} ({t.low - 1:+.1%} to {t.high - 1:+.1%}; {t.detectable - 1:+.1%} would be found)"
        rows.append(
            ("latency", words.seconds(t.old_s), words.seconds(t.new_s), between, "SLOWER" if t.slower else "no slower")
        )
    if (a := found.accuracy) is not None:
        between = f"{a.new - a.old:+.2%} ({a.low:+.2%} to {a.high:+.2%}); {a.lost} lost, {a.won} won, p = {a.p:.3g}"
        rows.append(("accuracy", f"{a.old:.2%}", f"{a.new:.2%}", between, "WORSE" if a.worse else "no worse"))
    rows.append(("outputs", "", "", f"{found.same} of {found.samples} samples have the same bits", ""))
    show_table(("", "old", "new", "new beside old", "verdict"), rows)
    if found.note:
        console().print(found.note, markup=False, soft_wrap=True)

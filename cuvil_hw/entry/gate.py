"""What a program must keep in continuous integration: golden vectors, accuracy, resources, speed. Each check is a
Requirement; `cuvil test` and the pytest plug-in show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError, needs_compiler
from cuvil_hw.report import words
from cuvil_hw.report.junit import JUnitCase
from cuvil_hw.report.report import Report
from cuvil_hw.runtime import vectors
from cuvil_hw.runtime.executable import Executable

CALLS = 200  # of which the slowest but two decides --max-latency
_MOST_S = 5.0  # and so long at most


@dataclass(frozen=True, slots=True)
class Requirement:
    """`got`: what the program has, `wanted`: what was asked."""

    name: str
    passed: bool
    got: str
    wanted: str

    def case(self, program: str, suite: str = "") -> JUnitCase:
        why = "" if self.passed else f"{self.got}, asked: {self.wanted}"
        return JUnitCase(suite or program, program, self.name, "passed" if self.passed else "failed", why)


def golden(program: Executable) -> Requirement:
    """Run the golden vectors in the artifact; where it has none, two that are computed from its IR. The result says
    which. Raises CuvilError for a program that can't have any, ToolNotFound where they'd need the compiler."""
    found, origin = vectors.in_artifact(program.artifact), "in the artifact"
    if found is None:
        with needs_compiler("compute golden vectors from the IR (or compile with --golden N, which keeps them)"):
            from cuvil_hw.compile.golden import of_artifact
        found, origin = of_artifact(program.artifact), "computed from the IR: the artifact has none"
    wrong = vectors.check(program, found)
    return Requirement("golden vectors", wrong is None, wrong or "none differs", f"{found.samples} {origin}")


def uses(report: Report, limits: Mapping[str, float]) -> list[Requirement]:
    """`limits`: shares of the target's resources. Raises CuvilError for a resource that the target hasn't."""
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


def throughput(report: Report, least: float) -> Requirement:
    """By the report's estimate, in inferences a second."""
    rate = report["throughput"]["inferences_per_s"] or 0.0
    return Requirement("throughput", rate >= least, f"{rate:,.6g}/s", f"at least {least:,.6g}/s")


def latency(program: Executable, most: float) -> Requirement:
    """Of one sample, in seconds: on hardware the 99th percentile of calls (of zeros) that are timed now, elsewhere the
    report's, since a simulator's time says nothing; the result says which."""
    if program.interface != "hw":
        told = program.report["latency"]
        seconds, origin = told["seconds"], told["origin"]
    else:
        times = _times(program)
        seconds, origin = float(np.quantile(times, 0.99)), f"measured: 99th percentile of {len(times)} calls"
    if seconds is None:
        raise CuvilError(f"{program.name}: --max-latency: the report of this target has no latency; leave it out")
    return Requirement("latency", seconds <= most, f"{words.seconds(seconds)} ({origin})", f"<= {words.seconds(most)}")


def _times(program: Executable) -> list[float]:
    inputs = {p.name: np.zeros(p.shape, dtypes.to_numpy(p.dtype)) for p in program.inputs}
    program.run(inputs)  # the first call is another one
    times: list[float] = []
    while len(times) < CALLS and sum(times) < _MOST_S:
        start = perf_counter()
        program.run(inputs)
        times.append(perf_counter() - start)
    return times


def accuracy(program: Executable, arrays: Sequence[Any], labels: Any, least: float) -> Requirement:
    share = program.evaluate(tuple(arrays), labels).accuracy or 0.0
    return Requirement("accuracy", share >= least, f"{share:.4f}", f"at least {least:g}")


def outputs(program: Executable, arrays: Sequence[Any], expected: Sequence[Any]) -> list[Requirement]:
    """To the bit; a NaN equals a NaN. Raises CuvilError for another number of outputs."""
    made = program.run(*arrays).outputs
    if len(made) != len(expected):
        raise CuvilError(f"{len(expected)} --expect given, {program.name} has {len(made)} outputs")
    found = []
    for port, got, want in zip(program.outputs, made, expected, strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            shown = f"{got.dtype}{list(got.shape)}"
            found.append(Requirement(f"output {port.name}", False, shown, f"{want.dtype}{list(want.shape)}"))
            continue
        wrong = int(np.count_nonzero(~vectors.same(got, want)))
        found.append(Requirement(f"output {port.name}", not wrong, f"{wrong} of {got.size} differ", "0"))
    return found

"""Compiling for several targets from the command line: progress, times, and targets that fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuvil_hw.cli.output import progress
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime.executable import Executable


@dataclass(slots=True)
class TargetResults:
    """Results by target, failures last: the program, or why there is none; and the seconds it took, without import and
    calibration."""

    results: dict[str, Executable | CuvilError] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def programs(self) -> dict[str, Executable]:
        return {label: r for label, r in self.results.items() if isinstance(r, Executable)}


def targets_of(text: str) -> list[str]:
    """`a,b,c`, without repetitions."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def complete_targets(incomplete: str) -> list[str]:
    """For a shell: `a,b,` with every target that comes with Cuvil."""
    from cuvil_hw.target.profile import builtin_profiles

    before, comma, last = incomplete.rpartition(",")
    names = [name for p in builtin_profiles() for name in (p.name, *p.aliases)]
    return [f"{before}{comma}{name}" for name in sorted(names) if name.startswith(last)]


def compile_for(model: Any, title: str, targets: Sequence[str], options: Mapping[str, Any]) -> TargetResults:
    """Compile for every target that can be compiled for; `title`: what is shown meanwhile; `options` are those of
    api.compile_all. Raises CuvilError when
    the model or its calibration data is at fault."""
    from cuvil_hw import api

    made = TargetResults()
    started: dict[str, float] = {}
    with progress(title) as bar:

        def watch(label: str) -> Callable[[str, int, int], None]:
            started[label] = time.perf_counter()
            return lambda step, at, of: bar(f"{label}: {step}", len(started) * of - of + at, len(targets) * of)

        def done(label: str, result: Executable | CuvilError) -> None:
            made.results[label] = result
            if label in started:
                made.seconds[label] = time.perf_counter() - started[label]

        api.compile_all(model, targets, progress=watch, done=done, **options)
    made.results = dict(sorted(made.results.items(), key=lambda found: isinstance(found[1], CuvilError)))
    return made


def file_of(stem: str, target: str) -> str:
    """`NAME.TARGET.cuvil`; a target such as cuda:sm_75 names a file too."""
    return f"{stem}.{target.replace(':', '-').replace('/', '-')}.cuvil"

"""The same checks for every board: programs, inputs for them, and what must come out, by the meaning of their IR."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cuvil_hw.compile.golden import of_artifact
from cuvil_hw.errors import CuvilError, needs_python
from cuvil_hw.report.junit import JUnitCase
from cuvil_hw.rig.reach import Reached, reached
from cuvil_hw.rig.rig_file import Rig, RigBoard
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.on_board import CHECKS
from cuvil_hw.target.profile import load_profile

SAMPLES = 32
_FIELDS = ("check", "status", "why", "seconds", "figures")


@dataclass(frozen=True, slots=True)
class BoardCheck:
    """One check of one program on one board. `status`: "passed", "failed" (wrong), "error" (it could not be found out)
    or "skipped"; `figures`: measured on the board."""

    board: str
    program: str
    check: str
    status: str
    why: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return self.status in ("passed", "skipped")


@dataclass(frozen=True, slots=True)
class RigCase:
    """`profile`: of the target that the program was compiled for."""

    path: Path
    name: str
    profile: str
    vectors: Path


@contextmanager
def cases(paths: Sequence[Path], samples: int = SAMPLES) -> Iterator[list[RigCase]]:
    """Programs with their vectors, random over the range of each input (fixed seed), in a folder that is removed at the
    end. Raises CuvilError for a path that is no program, ToolNotFound on a Python without the compiler."""
    needs_python("compute what boards must give")
    for path in paths:
        if not path.is_file():
            raise CuvilError(f"{path}: is no file; give .cuvil files, as `cuvil compile -o` writes them")
    with TemporaryDirectory(prefix="cuvil-rig-") as folder:
        yield [_case(path, Path(folder) / f"{n}.npz", samples) for n, path in enumerate(paths)]


def _case(path: Path, vectors: Path, samples: int) -> RigCase:
    artifact = container.read(path)
    manifest = artifact.manifest
    found = of_artifact(artifact, samples)
    # A sample of a port may itself have a first dimension of 1: a batch lies in its place.
    named = {f"{k}{n}": a for k, group in (("x", found.inputs), ("y", found.outputs)) for n, a in enumerate(group)}
    arrays: dict[str, Any] = {name: _batched(a) for name, a in named.items()}
    np.savez(vectors, **arrays)
    return RigCase(path, manifest.model, str(manifest.profile.get("name", "")), vectors)


def _batched(stack: Any) -> Any:
    """(N, 1, …) as (N, …)."""
    return stack.reshape(len(stack), *stack.shape[2:]) if stack.ndim > 1 and stack.shape[1] == 1 else stack


def run(
    rig: Rig,
    paths: Sequence[Path],
    boards: Sequence[str] = (),
    features: Sequence[str] = (),
    said: Callable[[BoardCheck], None] = lambda found: None,
) -> list[BoardCheck]:
    """Every program on every chosen board of its target, boards side by side. `said` hears each result at once.

    Raises CuvilError for a board that isn't in the rig, a program without a board, and as `cases` does; what happens on
    a board is a result."""
    chosen = rig.choose(boards, features)
    lock = threading.Lock()
    with cases(paths) as found:
        profiles = {b.name: load_profile(b.profile).name for b in chosen}
        for case in found:
            if case.profile not in profiles.values():
                have = ", ".join(f"{n} ({p})" for n, p in profiles.items()) or "none"
                raise CuvilError(f"{case.path}: was compiled for {case.profile}; the boards chosen are: {have}")

        def heard(result: BoardCheck) -> None:
            with lock:
                said(result)

        def of(board: RigBoard) -> list[BoardCheck]:
            return on_board(board, [c for c in found if c.profile == profiles[board.name]], heard)

        with ThreadPoolExecutor(max(1, len(chosen))) as pool:
            return [result for results in pool.map(of, chosen) for result in results]


def on_board(board: RigBoard, found: Sequence[RigCase], said: Callable[[BoardCheck], None]) -> list[BoardCheck]:
    """All checks of programs on one board. What can't be done there is an error of each check that it left undone."""
    results: list[BoardCheck] = []

    def add(result: BoardCheck) -> None:
        results.append(result)
        said(result)

    try:
        if found:
            with reached(board) as there:
                for case in found:
                    for result in _checks(there, case):
                        add(result)
    except CuvilError as e:
        done = {(r.program, r.check) for r in results}
        for case in found:
            if (case.name, CHECKS[0]) not in done:
                add(BoardCheck(board.name, case.name, CHECKS[0], "error", str(e)))
    return results


def _checks(there: Reached, case: RigCase) -> Iterator[BoardCheck]:
    board = there.board.name
    try:
        done = there.check(there.put(case.path, "program.cuvil"), there.put(case.vectors, "vectors.npz"))
    except CuvilError as e:
        yield BoardCheck(board, case.name, CHECKS[0], "error", str(e))
        return
    seen = []
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            try:
                given = json.loads(line)
                made = BoardCheck(board, case.name, **{k: given[k] for k in _FIELDS})
            except (ValueError, TypeError, KeyError):
                continue  # a driver's own output
            seen.append(made.check)
            yield made
    missing = [c for c in CHECKS if c not in seen]
    if seen and seen[-1] == CHECKS[0] and missing == list(CHECKS[1:]) and done.returncode == 0:
        for check in missing:
            yield BoardCheck(board, case.name, check, "skipped", "the program doesn't open")
    elif missing:
        tail = (done.stderr.strip() or done.stdout.strip() or "nothing was printed").splitlines()[-1]
        why = f"the board's Python ended with {done.returncode} before: {tail}"
        yield BoardCheck(board, case.name, missing[0], "error", why)


def case_of(r: BoardCheck) -> JUnitCase:
    """A suite for each board, a class for each program."""
    return JUnitCase(r.board, f"{r.board}.{r.program}", r.check, r.status, r.why, r.seconds, r.figures)

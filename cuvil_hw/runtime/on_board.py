"""Runs on a board: checks of one program on the board's own hardware, one line of JSON each on standard output.

    python -m cuvil_hw.runtime.on_board program.cuvil vectors.npz [--interface hw]

`vectors.npz` has inputs x0, x1, … (N, *shape) and what must come out, y0, y1, …, in the order of the ports. A rig
(cuvil_hw/rig) copies both here. Needs what a board has: numpy, pyyaml and the target's driver.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from cuvil_hw.errors import CuvilError, InputError
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.load import load
from cuvil_hw.runtime.vectors import difference

CHECKS = ("opens", "results", "batch", "again", "refuses", "speed")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0: every check ran, whatever it found; 2: wrong usage."""
    parser = argparse.ArgumentParser(prog="on_board", description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--interface", default="hw")
    options = parser.parse_args(argv)
    with np.load(options.vectors, allow_pickle=False) as arrays:
        inputs = [arrays[f"x{n}"] for n in range(sum(k.startswith("x") for k in arrays))]
        expected = [arrays[f"y{n}"] for n in range(sum(k.startswith("y") for k in arrays))]
    for name, check in checks(options.program, options.interface, inputs, expected):
        start = perf_counter()
        line: dict[str, Any] = {"check": name, "status": "passed", "why": "", "figures": {}}
        try:
            line["figures"] = check() or {}
        except AssertionError as e:
            line |= {"status": "failed", "why": str(e)}
        except CuvilError as e:
            line |= {"status": "error", "why": str(e)}
        except Exception:
            line |= {"status": "error", "why": traceback.format_exc()}
        print(json.dumps({**line, "seconds": perf_counter() - start}), flush=True)
        if name == "opens" and line["status"] != "passed":
            break  # the others would say the same
    return 0


def checks(
    path: Path, interface: str, inputs: Sequence[Any], expected: Sequence[Any]
) -> list[tuple[str, Callable[[], dict[str, Any] | None]]]:
    """The checks in their order; each returns figures, and raises AssertionError where the board is wrong."""
    programs: list[Executable] = []

    def opens() -> dict[str, Any]:
        start = perf_counter()
        found = load(path, interface)
        if not isinstance(found, Executable):
            raise CuvilError(f"{path}: has open shapes; save the program of one size, as cuvil.load(path).at(…) gives")
        found.open()
        programs.append(found)
        return {"open_s": perf_counter() - start}

    def results() -> None:
        """Sample by sample, what the meaning of the IR gives."""
        for n in range(min(4, len(inputs[0]))):
            _equal(_run(programs[0], [x[n : n + 1] for x in inputs]), [y[n : n + 1] for y in expected], f"sample {n}")

    def batch() -> None:
        _equal(_run(programs[0], inputs), expected, f"a batch of {len(inputs[0])}")

    def again() -> None:
        """Opened anew, the fabric is programmed again."""
        programs[0].close()
        programs[0] = load(path, interface)  # type: ignore[assignment]
        _equal(_run(programs[0], inputs), expected, "after opening again")

    def refuses() -> None:
        """Wrong inputs are refused before anything is sent, and the program works afterwards."""
        wrong = [np.zeros((*x.shape, 2), x.dtype) for x in inputs]
        try:
            _run(programs[0], wrong)
        except InputError:
            pass
        else:
            raise AssertionError(f"inputs of shapes {[w.shape for w in wrong]} were taken")
        _equal(_run(programs[0], [x[:1] for x in inputs]), [y[:1] for y in expected], "after a refusal")

    def speed() -> dict[str, Any]:
        many = [np.concatenate([x] * max(1, 256 // len(x))) for x in inputs]
        _run(programs[0], many)
        start = perf_counter()
        run = programs[0].run(*many)
        took = perf_counter() - start
        programs[0].close()
        return {"samples": run.samples, "device_s": run.device_seconds, "samples_per_s": run.samples / took}

    return list(zip(CHECKS, (opens, results, batch, again, refuses, speed), strict=True))


def _run(program: Executable, inputs: Sequence[Any]) -> list[Any]:
    ports = program.inputs
    return list(program.run({p.name: x for p, x in zip(ports, inputs, strict=True)}).outputs)


def _equal(got: Sequence[Any], wanted: Sequence[Any], what: str) -> None:
    """Raises AssertionError for the first difference."""
    wrong = difference(got, wanted, what)
    assert wrong is None, wrong


if __name__ == "__main__":
    sys.exit(main())

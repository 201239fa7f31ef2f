"""Compare compiled programs: size, estimates, use of the budget, outputs and accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cuvil_hw.contract.device import Array
from cuvil_hw.errors import CuvilError, InputError, ToolNotFound
from cuvil_hw.report import words
from cuvil_hw.report.text import Table
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.evaluation import ranked
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.vectors import same

MOST = 120  # characters of an error in a row


@dataclass(frozen=True, slots=True)
class Results:
    """The outputs of a program. `integers`: the program is quantized, so its integer results are the same on every
    target."""

    outputs: tuple[Array, ...]
    integers: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One program in the comparison; None or "" where a value isn't known or doesn't apply.

    Attributes:
        axis: the resource nearest to its budget, with `used` and `budget` in `unit`; "" if the target states no limits.
        largest_difference, equal_bits: compared with the first program that ran.
        accuracy: share of inputs, 0 to 1, whose largest output is the label.
        error: why there is no program, or no result.
    """

    label: str
    target: str = ""
    precision: str = ""
    bytes: int | None = None
    latency_s: float | None = None
    latency_origin: str = ""
    inferences_per_s: float | None = None
    throughput_origin: str = ""
    axis: str = ""
    unit: str = ""
    used: float | None = None
    budget: float | None = None
    compile_s: float | None = None
    interface: str = ""
    largest_difference: float | None = None
    equal_bits: bool | None = None
    accuracy: float | None = None
    error: str = ""


def row_of(label: str, executable: Executable, compile_s: float | None = None) -> Row:
    """What the program's own report says of it."""
    report = executable.report
    limited = [t for t in report["totals"] if t["budget"] > 0]
    tightest: Mapping[str, Any] = max(limited, key=lambda t: t["used"] / t["budget"], default={})
    return Row(
        label,
        target=report["target"]["name"],
        precision=report["precision"],
        bytes=len(container.to_bytes(executable.artifact)),
        latency_s=report["latency"]["seconds"],
        latency_origin=report["latency"]["origin"],
        inferences_per_s=report["throughput"]["inferences_per_s"],
        throughput_origin=report["throughput"]["origin"],
        axis=tightest.get("axis", ""),
        unit=tightest.get("unit", ""),
        used=tightest.get("used"),
        budget=tightest.get("budget"),
        compile_s=compile_s,
    )


def failure(label: str, error: CuvilError, compile_s: float | None = None) -> Row:
    """The row of a program that could not be compiled."""
    return Row(label, compile_s=compile_s, error=_brief(error))


def run(
    programs: Mapping[str, Executable],
    rows: Sequence[Row],
    inputs: Sequence[Array],
    labels: Array | None = None,
) -> list[Row]:
    """Run each program on `inputs` (as for `cuvil.Executable`), on the device that it opens, and fill the results into
    its row. A device that isn't available becomes the error of its row. Raises InputError for wrong inputs or
    labels."""
    first: Results | None = None
    found = []
    for row in rows:
        if row.label not in programs:
            found.append(row)
            continue
        executable = programs[row.label]
        try:
            results = _results(executable, inputs)
        except InputError:
            raise
        except CuvilError as e:
            why = f"not run: {_brief(e)}" if isinstance(e, ToolNotFound) else _brief(e)
            found.append(replace(row, interface=executable.interface, error=why))
            continue
        first = first or results
        difference, equal = difference_of(first, results)
        right = None if labels is None else ranked(results.outputs[0], labels, (1,))[1]
        found.append(
            replace(
                row,
                interface=executable.interface,
                largest_difference=difference,
                equal_bits=equal,
                accuracy=right,
            )
        )
    return found


def _results(executable: Executable, inputs: Sequence[Array]) -> Results:
    result = executable.run(*inputs)
    return Results(tuple(np.asarray(o) for o in result.outputs), "float" not in executable.report["precision"])


def difference_of(first: Results, other: Results) -> tuple[float | None, bool | None]:
    """(largest absolute difference, whether all bits are equal). Equal infinities and NaNs count as no difference.

    The second is None unless both programs are quantized; both are None if the outputs differ in shape.
    """
    pairs = list(zip(first.outputs, other.outputs, strict=False))
    if len(first.outputs) != len(other.outputs) or any(a.shape != b.shape for a, b in pairs):
        return None, None
    largest = 0.0
    for a, b in pairs:
        unlike = ~same(a, b)
        if unlike.any():
            gap = np.abs(a[unlike].astype(np.float64) - b[unlike].astype(np.float64))
            largest = max(largest, float(np.where(np.isnan(gap), np.inf, gap).max()))
    if not (first.integers and other.integers):
        return largest, None
    return largest, all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table; columns that no row fills are left out."""
    columns: list[tuple[str, bool, list[str]]] = [
        ("program", False, [r.label for r in rows]),
        ("target", False, [r.target for r in rows]),
        ("precision", False, [r.precision for r in rows]),
        ("artifact", True, [words.size(r.bytes) if r.bytes is not None else "" for r in rows]),
        ("latency", True, [words.seconds(r.latency_s) if r.bytes is not None else "" for r in rows]),
        ("inferences/s", True, [words.rate(r.inferences_per_s) if r.bytes is not None else "" for r in rows]),
        ("origin", False, [_origins(r) for r in rows]),
        ("tightest resource", False, [_tightest(r) for r in rows]),
        ("compiled in", True, [words.seconds(r.compile_s) if r.compile_s is not None else "" for r in rows]),
        ("ran on", False, [r.interface for r in rows]),
        ("largest difference", True, [_number(r.largest_difference, ".4g") for r in rows]),
        ("equal bits", False, ["" if r.equal_bits is None else ("yes" if r.equal_bits else "no") for r in rows]),
        ("accuracy", True, [_number(r.accuracy, ".2%") for r in rows]),
        ("error", False, [r.error for r in rows]),
    ]
    if [r.label for r in rows] == [r.target for r in rows]:
        del columns[0]
    shown = [c for c in columns if any(c[2])]
    cells = [list(row) for row in zip(*(c[2] for c in shown), strict=True)]
    return [c[0] for c in shown], cells, [c[1] for c in shown]


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def _origins(row: Row) -> str:
    return ", ".join(dict.fromkeys(o for o in (row.latency_origin, row.throughput_origin) if o))


def _tightest(row: Row) -> str:
    if row.used is None or row.budget is None:
        return ""
    used, budget = (words.size(v) if row.unit == "B" else words.count(v) for v in (row.used, row.budget))
    return f"{row.axis} {100 * row.used / row.budget:.0f} % ({used} of {budget})"


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def _brief(error: CuvilError) -> str:
    """The error cut to the width of a cell; `cuvil compile` prints all of it."""
    text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"

"""Formats numbers for readers, the same in text and HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# How front ends write where something comes from: 'onnx node "/fc/Gemm" (Gemm)', 'model.py:12 features.0'.
_ONNX, _LINE = re.compile(r'onnx node "(.*)" \(\w+\)\Z', re.DOTALL), re.compile(r"\S+:\d+(?: |\Z)")


def count(value: float | None) -> str:
    """1,234 or 12.5; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def seconds(value: float | None) -> str:
    """A duration with a fitting unit."""
    if value is None:
        return "–"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= factor:
            return f"{value / factor:,.3g} {unit}" if value < 1000 * factor else f"{value / factor:,.0f} {unit}"
    return f"{value / 1e-9:,.3g} ns" if value > 0 else "0 s"


def decibels(value: float | None) -> str:
    """A signal-to-noise ratio; None: there is no noise."""
    return "exact" if value is None else f"{value:.1f} dB"


def rate(value: float | None) -> str:
    """Events per second, at three significant digits below 1000."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"


def size(value: float) -> str:
    """A number of bytes."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= factor:
            return f"{value / factor:,.1f} {unit}"
    return f"{value:,.0f} B"


def amount(total: Mapping[str, Any], key: str) -> str:
    """A figure in a row of `totals`, in the unit of its axis."""
    return size(total[key]) if total["unit"] == "B" else count(total[key])


def gap(report: Mapping[str, Any]) -> str:
    """The distance between the chosen schedules and the proven lower bound, in words."""
    solver = report["solver"]
    share = float(solver["gap"])
    if share <= 0:
        return "proven fastest among the schedules considered"
    return f"at most {100 * share:.1f} % above the proven bound of {count(solver['bound_cycles'])} cycles"


def slowest(report: Mapping[str, Any]) -> str:
    """What to call the layer with the most cycles: the "bottleneck" of a spatial design, else the "slowest layer"."""
    return "bottleneck" if report["style"] == "spatial" else "slowest layer"


def in_the_model(loc: str) -> str:
    """A layer's name in the model; empty if only a source line is known."""
    node = _ONNX.match(loc)
    return node[1] if node else _LINE.sub("", loc, count=1)


def layer(found: Mapping[str, Any]) -> str:
    """`conv_0 (features.0)`: a layer's name in the program and in the model."""
    name = in_the_model(found["loc"])
    return f"{found['name']} ({name})" if name else str(found["name"])


MOST_NAMES = 4  # of processes that are equally slow


def slowest_layer(report: Mapping[str, Any]) -> str:
    """All that are as slow as the slowest layer: layers by their names in the program and in the model, ports and
    converters by their own."""
    found = report["bottleneck"]
    layers = {known["name"]: layer(known) for known in report["layers"]}
    names = [layers.get(name, name) for name in found.get("processes") or [found["layer"]]]
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def waits(process: Mapping[str, Any], most: int = 2) -> str:
    """`123 cycles for words of conv_0 (conv_0_out)`: what a process waits for, longest first."""
    parts = []
    for w in process["waits"][:most]:
        of = f"words of {w['process']}" if w["for"] == "words" else f"room before {w['process']}"
        parts.append(f"{count(w['cycles'])} for {of} ({w['stream']})")
    return "; ".join(parts)


def target(report: Mapping[str, Any]) -> str:
    """`pynq-z2 (xc7z020clg400-1)`."""
    t = report["target"]
    return f"{t['name']} ({t['part']})" if t.get("part") else str(t["name"])


def state(report: Mapping[str, Any]) -> str:
    """What the program keeps between calls."""
    return ", ".join(f"{s['name']} ({s['type']})" for s in report.get("state", ()))


def host(report: Mapping[str, Any]) -> str:
    """Which ops run on the processor; empty if none does."""
    parts = []
    for where in ("before", "after"):
        ops = [h["op"] for h in report["host"] if h["where"] == where]
        if ops:
            parts.append(f"{', '.join(ops)} ({where} the device)")
    return "; ".join(parts)


def saturated(counts: Mapping[str, int]) -> str:
    """`12 high, 3 low` from a layer's counters."""
    named = {what.removeprefix("saturated_").replace("_", " "): n for what, n in counts.items()}
    return ", ".join(f"{count(n)} {what}" for what, n in named.items() if n)

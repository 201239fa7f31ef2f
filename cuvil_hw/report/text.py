"""The report as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from cuvil_hw.errors.quoting import lines, visible
from cuvil_hw.report import words

# Converters make node names of hundreds of characters.
WIDEST = 160
TERMINAL = 80  # columns
NARROWEST = 10
# Columns, rows, and which columns are numbers.
Table = tuple[Sequence[str], Sequence[Sequence[str]], Sequence[bool]]


def render(report: Mapping[str, Any], width: int = TERMINAL) -> str:
    """The report as text: tables of layers and resources, at most `width` characters wide if possible, and one line for
    each other figure."""
    parts = [head(report), *(table(*t, WIDEST, width) for t in tables(report)), "\n".join(closing(report))]
    return lines("\n\n".join(parts)) + "\n"


def tables(report: Mapping[str, Any]) -> list[Table]:
    """Every table that has rows."""
    found = [layers(report), schedules(report)] if report["layers"] else []
    makers = (
        ("timing", timing),
        ("totals", totals),
        ("synthesis", synthesis),
        ("quantization", quantization),
        ("accuracy", accuracy),
        ("saturations", saturations),
    )
    for key, make in makers:
        if report.get(key):
            found.append(make(report))
    return found


def head(report: Mapping[str, Any]) -> str:
    clock = f"{report['clock_hz'] / 1e6:g} MHz"
    return f"{report['model']} for {words.target(report)}, {report['precision']}, {clock}, {report['style']}"


def layers(report: Mapping[str, Any]) -> Table:
    """What each layer costs; its name in the model where one is known."""
    named = any(words.in_the_model(layer["loc"]) for layer in report["layers"])
    axes = [t["axis"] for t in report["totals"] if any(t["axis"] in layer["use"] for layer in report["layers"])]
    slowest = (report["bottleneck"] or {}).get("layer")
    rows = [
        [
            layer["name"] + (" *" if layer["name"] == slowest else ""),
            *([words.in_the_model(layer["loc"])] if named else []),
            words.count(layer["cycles"]),
            words.seconds(layer["seconds"]),
            *(words.count(layer["use"].get(axis, 0.0)) for axis in axes),
        ]
        for layer in report["layers"]
    ]
    texts = ["layer", "in the model"] if named else ["layer"]
    figures = ["cycles", "time", *axes]
    return [*texts, *figures], rows, [False] * len(texts) + [True] * len(figures)


def schedules(report: Mapping[str, Any]) -> Table:
    """How each layer is computed, and where it comes from."""
    rows = [[layer["name"], " + ".join(layer["ops"]), layer["schedule"], layer["loc"]] for layer in report["layers"]]
    return ["layer", "ops", "schedule", "source"], rows, [False] * 4


def timing(report: Mapping[str, Any]) -> Table:
    """Every process of a streaming design: its cycles for a sample, and for what it waits meanwhile."""
    found = report["timing"]
    rows = [[p["name"], words.count(p["cycles"]), words.waits(p)] for p in found["processes"]]
    return ["process", "busy cycles", f"waits, cycles a sample, {found['origin']}"], rows, [False, True, False]


def totals(report: Mapping[str, Any]) -> Table:
    rows = [
        [
            t["axis"],
            words.amount(t, "used"),
            words.amount(t, "budget"),
            words.amount(t, "limit"),
            f"{t['percent']:.0f} %" if t["limit"] else "–",
            t["origin"],
        ]
        for t in report["totals"]
    ]
    return ["resource", "used", "budget", "limit", "of limit", "origin"], rows, [False, True, True, True, True, False]


def synthesis(report: Mapping[str, Any]) -> Table:
    """What a synthesis tool counts of each layer, beside the estimates."""
    found = report["synthesis"]
    rows = [*found["layers"], {"layer": "in all", **found["total"]}]
    columns = [f"{axis} {who}" for axis in found["axes"] for who in ("yosys", "analytic")]
    cells = [
        [row["layer"], *(words.count(row[w].get(a, 0.0)) for a in found["axes"] for w in ("yosys", "analytic"))]
        for row in rows
    ]
    return ["layer", *columns], cells, [False] + [True] * len(columns)


def synthesis_remarks(report: Mapping[str, Any]) -> list[str]:
    found = report["synthesis"]
    lines = [f"synthesis: counted by {found['origin']}; layers kept apart, nothing placed or routed"]
    if found["unknown_cells"]:
        listed = ", ".join(f"{n} {cell}" for cell, n in sorted(found["unknown_cells"].items()))
        lines.append(f"cells without a known cost, left out: {listed}")
    return lines


def accuracy(report: Mapping[str, Any]) -> Table:
    rows = [
        [a["name"], f"{a['float']:.4g}", f"{a['device']:.4g}", words.count(a["samples"]), a["origin"]]
        for a in report["accuracy"]
    ]
    return ["metric", "float", "device", "samples", "origin"], rows, [False, True, True, True, False]


def quantization(report: Mapping[str, Any]) -> Table:
    """Signal to noise of each quantized value and output against float."""
    found = report["quantization"]
    rows = [[f"{e['op']} {e['layer']}".strip(), words.decibels(e["sqnr_db"]), ""] for e in found["layers"]]
    for o in found["outputs"]:
        same = "" if o["same_largest"] is None else f"{o['same_largest']:.1%}"
        rows.append([f"output {o['name']}", words.decibels(o["sqnr_db"]), same])
    column = f"int against float, {words.count(found['samples'])} samples, {found['origin']}"
    return [column, "signal to noise", "same largest"], rows, [False, True, True]


def saturations(report: Mapping[str, Any]) -> Table:
    found = report["saturations"]
    rows = [[layer, words.saturated(counts) or "none"] for layer, counts in found["layers"].items()]
    column = f"saturated values, {words.count(found['samples'])} samples, {found['origin']}"
    return ["layer", column], rows, [False, False]


def closing(report: Mapping[str, Any]) -> list[str]:
    lines = []
    speed, latency, slowest = report["throughput"], report["latency"], report["bottleneck"]
    if slowest:
        what = words.slowest(report)
        most = f"{words.slowest_layer(report)}, {words.count(slowest['cycles'])} cycles"
        lines.append(f"* {what}: {most}; {words.gap(report)}")
    lines.append(f"throughput: {words.rate(speed['inferences_per_s'])} inferences/s ({speed['origin']})")
    if found := report.get("timing"):
        formula = words.rate(speed["formula_inferences_per_s"])
        lines.append(
            f"  a sample every {words.count(found['interval'])} cycles; by the layers' estimates every "
            f"{words.count(found['formula'])}, {formula} inferences/s (analytic)"
        )
    if speed.get("host_seconds"):
        alone, beside = words.rate(speed["device_inferences_per_s"]), words.seconds(speed["host_seconds"])
        lines.append(f"  the device alone: {alone} inferences/s; the processor's ops take {beside} a sample")
    lines.append(f"latency: {words.seconds(latency['seconds'])} ({latency['origin']}; {latency['note']})")
    memory = report["memory"]
    if memory is not None:
        total, arena = words.size(memory["live_bytes"]), words.size(memory["arena_bytes"])
        lines.append(f"memory: {total}, of which {arena} intermediate results ({memory['origin']})")
    if words.host(report):
        lines.append(f"runs on the processor: {words.host(report)}")
    if words.state(report):
        lines.append(f"kept between calls: {words.state(report)}")
    if report.get("synthesis"):
        lines += synthesis_remarks(report)
    return [*lines, *(f"note: {note}" for note in report["notes"])]


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    most: int = 1000,
    width: int | None = None,
) -> str:
    """Text in aligned columns: numbers to the right, the rest to the left. Line breaks in cells become spaces; cells
    longer than `most` characters lose their middle. With a `width`, texts are folded to keep to it."""
    cells = [[visible(" ".join(str(c).split())) for c in row] for row in (columns, *rows)]
    cells[1:] = [[_cut(c, most) for c in row] for row in cells[1:]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    if width is not None:
        widths = _narrowed(widths, numeric, width)

    def line(row: Sequence[str]) -> str:
        pieces = [textwrap.wrap(c, w, break_on_hyphens=False) or [""] for c, w in zip(row, widths, strict=True)]
        return "\n".join(one([p[i] if i < len(p) else "" for p in pieces]) for i in range(max(map(len, pieces))))

    def one(row: Sequence[str]) -> str:
        parts = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True)]
        return "  ".join(parts).rstrip()

    rule = "  ".join("─" * w for w in widths)
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


def _narrowed(widths: Sequence[int], numeric: Sequence[bool], most: int) -> list[int]:
    """Widths of columns that fit `most` together, the widest texts first; numbers are never folded."""
    found, texts = list(widths), [i for i, n in enumerate(numeric) if not n]
    while sum(found) + 2 * (len(found) - 1) > most and texts:
        widest = max(texts, key=lambda i: found[i])
        if found[widest] <= NARROWEST:
            break
        found[widest] -= 1
    return found


def _cut(text: str, most: int) -> str:
    keep = most // 2
    return text if len(text) <= most else f"{text[: most - keep - 1]}…{text[-keep:]}"

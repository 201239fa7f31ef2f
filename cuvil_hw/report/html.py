"""The report as one self-contained HTML file: no script, no font, image or style from elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cuvil_hw.errors.quoting import xml
from cuvil_hw.report import text, words
from cuvil_hw.report.bars import cycles_chart, resource_chart
from cuvil_hw.report.drawing import Drawing, to_svg
from cuvil_hw.report.style import CSS, ZOOMS
from cuvil_hw.version import VERSION

ORIGINS = (
    ("analytic", "a formula of the target's cost model, for planning; a vendor's report or a measurement replaces it"),
    ("simulated", "counted while the generated sources ran on a simulator"),
    (
        "simulated (timing model)",
        "the control of the emitted design ran over its FIFOs in simulated time; every loop keeps "
        "its interval and pipelines have no latency, so hardware can only be slower",
    ),
    ("measured", "ran here; the command that reproduces it stands with it"),
    ("yosys", "counted by Yosys in the design's SystemVerilog; nothing was placed or routed"),
    ("vendor", "read from a report of the vendor's tools"),
)


def render(report: Mapping[str, Any], command: str = "") -> str:
    """The HTML document. Every name in it is escaped. `command`: the command line that produced it."""
    slowest = (report["bottleneck"] or {}).get("layer", "")
    title = f"{report['model']} on {report['target']['name']}"
    parts = [
        _head(report),
        _figures(report),
        section("Resources against budget", resource_chart(report) + details("Figures", text.totals(report)))
        if report["totals"]
        else "",
        section("Cycles per layer", cycles_chart(report)),
        section("Layers", table(text.layers(report), slowest) + details("Schedules", text.schedules(report))),
        section("Who waits for whom", table(text.timing(report))) if report.get("timing") else "",
        section("Synthesis", table(text.synthesis(report))) if report.get("synthesis") else "",
        section("Quantization", table(text.quantization(report))) if report.get("quantization") else "",
        section("Accuracy", table(text.accuracy(report))) if report["accuracy"] else "",
        section("Saturations", table(text.saturations(report))) if report["saturations"] else "",
        section("Drawing", _graph(report, slowest)),
        section("Remarks", listed(text.closing(report))),
        section("Where the figures come from", _origins()),
    ]
    return page(title, parts, foot(report["schema"], command))


def page(title: str, parts: Sequence[str], ending: str) -> str:
    """A whole document. `parts` and `ending` are HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{xml(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, parts))
        + f"\n<footer>{ending}</footer>\n</main>\n</body>\n</html>\n"
    )


def _head(report: Mapping[str, Any]) -> str:
    target = report["target"]
    facts = [target["name"], target.get("part", ""), report["precision"], f"{report['clock_hz'] / 1e6:g} MHz"]
    facts.append({"spatial": "all layers at once, streaming", "temporal": "layer after layer"}.get(report["style"], ""))
    return header(report["model"], facts)


def header(title: str, facts: Sequence[str]) -> str:
    line = " · ".join(xml(str(f)) for f in facts if f)
    return f'<header><h1>{xml(title)}</h1><p class="sub">{line}</p></header>'


def _figures(report: Mapping[str, Any]) -> str:
    speed, latency, slowest = report["throughput"], report["latency"], report["bottleneck"]
    found = [
        ("Inferences per second", words.rate(speed["inferences_per_s"]), speed["origin"]),
        ("Latency", words.seconds(latency["seconds"]), latency["origin"]),
    ]
    if slowest:
        most = f"{words.count(slowest['cycles'])} cycles"
        found.append((words.slowest(report).capitalize(), words.slowest_layer(report), most))
    full = [t for t in report["totals"] if t["limit"]]
    if full:
        tight = max(full, key=lambda t: t["used"] / t["budget"] if t["budget"] else 0.0)
        used = f"{words.amount(tight, 'used')} of {words.amount(tight, 'limit')}"
        found.append(("Tightest resource", f"{tight['axis']} {tight['percent']:.0f} %", used))
    for a in report["accuracy"]:
        found.append((a["name"], f"{a['device']:.4g}", f"float {a['float']:.4g}, {words.count(a['samples'])} samples"))
    return cards(found)


def cards(figures: Sequence[tuple[str, str, str]]) -> str:
    """A card for each (name, figure, what stands below)."""
    body = "".join(
        f'<div class="card"><span class="k">{xml(k)}</span><b>{xml(v)}</b><span class="o">{xml(o)}</span></div>'
        for k, v, o in figures
    )
    return f'<div class="cards">{body}</div>'


def section(title: str, body: str) -> str:
    name = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{xml(title)}</h2>{body}</section>'


def table(content: text.Table, marked: str = "") -> str:
    columns, rows, numeric = content
    head = "".join(
        f'<th scope="col"{" class=n" if n else ""}>{xml(c)}</th>' for c, n in zip(columns, numeric, strict=True)
    )
    body = []
    for row in rows:
        name = row[0].removesuffix(" *")
        cells = "".join(_cell(c, column, n) for c, column, n in zip([name, *row[1:]], columns, numeric, strict=True))
        body.append(f"<tr{' class=mark' if marked and name == marked else ''}>{cells}</tr>")
    return (
        '<div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(content: str, column: str, numeric: bool) -> str:
    style = "n" if numeric else {"ops": "c", "schedule": "c", "source": "s"}.get(column, "")
    return f"<td{f' class={style}' if style else ''}>{xml(content)}</td>"


def details(summary: str, content: text.Table) -> str:
    """A table that opens on demand."""
    return f"<details><summary>{xml(summary)}</summary>{table(content)}</details>"


def _graph(report: Mapping[str, Any], slowest: str) -> str:
    graph = Drawing.from_json(report["graph"])
    drawn = to_svg(graph.marked(slowest), f"{report['model']}: graph of layers")
    width = drawn.partition(' width="')[2].partition('"')[0]
    chosen = [
        f'<input type="radio" name="zoom" id="zoom-{i}"{" checked" if i == 0 else ""}>'
        f'<label for="zoom-{i}">{label}</label>'
        for i, (label, _) in enumerate(ZOOMS)
    ]
    return (
        f'<div class="zoom" role="group" aria-label="Size of the graph">{"".join(chosen)}'
        f'<div class="scroll graph" tabindex="0" style="--w:{width}px">{drawn}</div></div>'
    )


def listed(lines: Sequence[str]) -> str:
    items = [xml(line.removeprefix("* ")) for line in lines]
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def foot(schema: str, command: str) -> str:
    """The foot of a page: version, command and date. The data themselves have no date, so equal compilations give equal
    reports."""
    stated = os.environ.get("SOURCE_DATE_EPOCH", "")
    day = time.strftime("%Y-%m-%d", time.gmtime(int(stated) if stated.isdecimal() else time.time()))
    made = f" by <code>{xml(command)}</code>" if command else ""
    return f"made{made} on {day} with cuvil-hw {VERSION} · {xml(schema)}"


def _origins() -> str:
    return f"<dl>{''.join(f'<dt>{xml(k)}</dt><dd>{xml(v)}</dd>' for k, v in ORIGINS)}</dl>"

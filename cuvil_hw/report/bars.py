"""Bar charts of a report as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cuvil_hw.errors.quoting import xml
from cuvil_hw.report import words

# Units of the viewBox, about pixels at full width.
_WIDTH, _LEFT, _RIGHT, _ROW, _BAR = 1140.0, 190.0, 210.0, 27.0, 17.0
_CHAR = 7.2


def resource_chart(report: Mapping[str, Any]) -> str:
    """A bar per axis from 0 to the limit of the part: a segment per layer, and a line at the budget."""
    slowest = (report["bottleneck"] or {}).get("layer")
    rows = []
    room = _WIDTH - _LEFT - _RIGHT
    shown = [t for t in report["totals"] if t["limit"] > 0 or t["used"] > 0]
    for i, total in enumerate(shown):
        y = 8 + i * (_ROW + 6)
        top = max(total["limit"], total["used"])
        label = f"{words.amount(total, 'used')} of {words.amount(total, 'limit')} ({total['percent']:.0f} %)"
        said = total["unit"].lower() in ("", total["axis"])
        rows.append(_text(0, y, total["axis"] if said else f"{total['axis']} ({total['unit']})"))
        rows.append(f'<rect class="track" x="{_LEFT}" y="{y}" width="{room}" height="{_BAR}" rx="3"/>')
        x = _LEFT
        for value, title, style in _segments(report, total, slowest):
            width = room * value / top
            rows.append(_segment(x, y, width, title, style))
            x += width
        at = _LEFT + room * total["budget"] / top
        rows.append(f'<line class="cap" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 3}" y2="{y + _BAR + 3}">')
        rows.append(f"<title>budget: {xml(words.amount(total, 'budget'))}</title></line>")
        rows.append(_text(_LEFT + room + 12, y, label, "m"))
    title = "Use of each resource by layer, against the budget and the limit of the part"
    height = 8 + len(shown) * (_ROW + 6)
    key = (
        '<p class="key"><i style="background:var(--b0)"></i><i style="background:var(--b1);margin-left:0"></i>'
        "layers in turn"
        f'<i style="background:var(--mark)"></i>{words.slowest(report)}'
        '<i style="background:var(--muted)"></i>outside the layers'
        " · the line is the budget, the whole bar the limit</p>"
    )
    return _svg(height, title, "".join(rows)) + key


def _segments(report: Mapping[str, Any], total: Mapping[str, Any], slowest: str | None) -> list[tuple[float, str, str]]:
    """(amount, what a reader sees on hover, style) of each part of a bar. An axis that isn't a sum has one part."""
    axis = total["axis"]
    if total["rule"] != "sum":
        return [(total["used"], f"{axis}: {words.amount(total, 'used')}", "b0")]
    parts = []
    for i, layer in enumerate(report["layers"]):
        value = layer["use"].get(axis, 0.0)
        style = "hot" if layer["name"] == slowest else f"b{i % 2}"
        parts.append((value, f"{layer['name']}: {words.count(value)} {axis}", style))
    rest = total["used"] - sum(p[0] for p in parts)
    if rest > 0:
        parts.append((rest, f"outside the layers: {words.count(rest)} {axis}", "fix"))
    return [p for p in parts if p[0] > 0]


def cycles_chart(report: Mapping[str, Any]) -> str:
    """A bar per layer; the slowest is marked."""
    layers = report["layers"]
    if not layers:
        return "<p>no layers</p>"
    slowest = report["bottleneck"]["layer"]
    top = max(layer["cycles"] for layer in layers) or 1
    room = _WIDTH - _LEFT - _RIGHT
    rows = []
    for i, layer in enumerate(layers):
        y = 4 + i * _ROW
        hot = layer["name"] == slowest
        width = max(room * layer["cycles"] / top, 1.0)
        title = f"{layer['name']}: {words.count(layer['cycles'])} cycles, {words.seconds(layer['seconds'])}"
        rows.append(_text(0, y, _fit(words.layer(layer))))
        rows.append(_segment(_LEFT, y, width, title, "hot" if hot else "b0"))
        figures = [words.count(layer["cycles"]), words.seconds(layer["seconds"])]
        label = " · ".join([*figures, words.slowest(report)] if hot else figures)
        rows.append(_text(_LEFT + width + 8, y, label, "m"))
    return _svg(4 + len(layers) * _ROW, "Cycles of each layer for one inference", "".join(rows))


def share_chart(
    title: str, rows: Sequence[tuple[str, Sequence[tuple[float, str, str]], str]], key: Sequence[tuple[str, str]]
) -> str:
    """A full bar per row, cut into shares. `rows`: name, (amount, what it is, style) of each share, what stands behind;
    `key`: colour and meaning."""
    room = _WIDTH - _LEFT - _RIGHT
    drawn = []
    for i, (name, shares, behind) in enumerate(rows):
        y, x = 4 + i * _ROW, _LEFT
        whole = sum(amount for amount, _, _ in shares) or 1.0
        drawn.append(_text(0, y, _fit(name)))
        for amount, what, style in shares:
            width = room * amount / whole
            if width:
                drawn.append(_segment(x, y, width, f"{name}: {words.count(amount)} {what}", style))
            x += width
        drawn.append(_text(_LEFT + room + 8, y, _fit(behind), "m"))
    meanings = "".join(f'<i style="background:var(--{colour})"></i>{xml(what)}' for colour, what in key)
    return _svg(4 + len(rows) * _ROW, title, "".join(drawn)) + f'<p class="key">{meanings}</p>'


def _fit(name: str) -> str:
    room = int(_LEFT / _CHAR) - 1
    return name if len(name) <= room else name[: room - 1] + "…"


def _segment(x: float, y: float, width: float, title: str, style: str) -> str:
    rect = f'<rect class="{style}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{_BAR}">'
    return f"{rect}<title>{xml(title)}</title></rect>"


def _text(x: float, y: float, content: str, style: str = "") -> str:
    name = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y + _BAR - 4:.1f}"{name}>{xml(content)}</text>'


def _svg(height: float, title: str, body: str) -> str:
    return (
        f'<div class="scroll" tabindex="0"><svg class="bars" role="img" aria-label="{xml(title)}" '
        f'viewBox="0 0 {_WIDTH:.0f} {height:.0f}">{body}</svg></div>'
    )

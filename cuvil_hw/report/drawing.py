"""A graph as plain data and as SVG. The layered layout is pure Python, so that a report needs no other program.

A node's rank is the length of the longest path to it from an input. Within a rank, nodes are ordered by the mean
position of their neighbours. Edges that span several ranks run through placeholders in the ranks between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from cuvil_hw.errors.quoting import xml

KINDS = ("input", "op", "group", "host", "output")

# Pixels. A character of the fonts below is at most this wide.
_CHAR, _LINE, _PAD = 7.0, 15.0, 9.0
_GAP_X, _GAP_Y, _MARGIN = 28.0, 34.0, 12.0
_MAX_CHARS, _SWEEPS = 44, 6


@dataclass(frozen=True, slots=True)
class Box:
    """`label`: its name; `detail`: further lines; `tip`: text shown on hover (its place in the model)."""

    id: str
    label: str
    detail: tuple[str, ...] = ()
    tip: str = ""
    kind: str = "op"
    mark: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """`label`: type of the tensor that passes along it."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A directed acyclic graph; the ends of every edge are among the nodes."""

    nodes: tuple[Box, ...] = ()
    edges: tuple[Arrow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": [
                {"id": n.id, "label": n.label, "detail": list(n.detail), "tip": n.tip, "kind": n.kind}
                for n in self.nodes
            ],
            "edges": [[e.source, e.target, e.label] for e in self.edges],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Drawing:
        """The inverse of `to_json`; edges to unknown nodes are left out."""
        nodes = tuple(
            Box(str(n["id"]), str(n["label"]), tuple(map(str, n["detail"])), str(n["tip"]), str(n["kind"]))
            for n in value.get("nodes", ())
        )
        known = {n.id for n in nodes}
        edges = tuple(Arrow(str(a), str(b), str(c)) for a, b, c in value.get("edges", ()) if a in known and b in known)
        return cls(nodes, edges)

    def marked(self, label: str) -> Drawing:
        """The same graph with the nodes called `label` marked (drawn as the bottleneck)."""
        return replace(self, nodes=tuple(replace(n, mark=n.label == label and n.kind == "group") for n in self.nodes))


@dataclass(slots=True)
class _Box:
    """A node in the layout, or the placeholder of an edge (`node` is None)."""

    node: Box | None
    width: float
    height: float
    rank: int = 0
    x: float = 0.0
    y: float = 0.0
    above: list[_Box] = field(default_factory=list)
    below: list[_Box] = field(default_factory=list)


def to_document(graph: Drawing, title: str = "model graph") -> str:
    """`to_svg` as a complete file."""
    return to_svg(graph, title).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def to_svg(graph: Drawing, title: str = "model graph") -> str:
    """One <svg> element without outside references. An edge gets a label unless its source's details already state the
    type.

    Colours follow the CSS variables --ink, --muted, --line, --surface, --accent and --mark if the page sets them, else
    the reader's light or dark scheme.
    """
    if not graph.nodes:
        return _svg(200, 40, title, '<text x="12" y="24" class="d">no operations</text>')
    ranks, routes = _layout(graph)
    boxes = [box for rank in ranks for box in rank]
    left = min(b.x - b.width / 2 for b in boxes) - _MARGIN
    for box in boxes:
        box.x -= left
    width = max(b.x + b.width / 2 for b in boxes) + _MARGIN
    height = max(b.y + b.height for b in boxes) + _MARGIN
    parts = [_edge(edge, route) for edge, route in routes]
    parts += [_node(box) for box in boxes if box.node is not None]
    return _svg(width, height, title, "".join(parts))


def _layout(graph: Drawing) -> tuple[list[list[_Box]], list[tuple[Arrow, list[_Box]]]]:
    order = _topological(graph)
    boxes = {n.id: _Box(n, *_size(n)) for n in graph.nodes}
    for name in order:
        for edge in graph.edges:
            if edge.source == name:
                boxes[edge.target].rank = max(boxes[edge.target].rank, boxes[name].rank + 1)
    # Outputs end the picture, whatever their own depth.
    last = max(b.rank for b in boxes.values())
    for box in boxes.values():
        if box.node is not None and box.node.kind == "output":
            box.rank = last
    ranks: list[list[_Box]] = [[] for _ in range(last + 1)]
    for name in order:
        ranks[boxes[name].rank].append(boxes[name])
    routes: list[tuple[Arrow, list[_Box]]] = []
    for edge in dict.fromkeys(graph.edges):
        route = [boxes[edge.source]]
        for rank in range(boxes[edge.source].rank + 1, boxes[edge.target].rank):
            ranks[rank].append(_Box(None, 24.0, 0.0, rank))
            route.append(ranks[rank][-1])
        route.append(boxes[edge.target])
        for upper, lower in pairwise(route):
            upper.below.append(lower)
            lower.above.append(upper)
        routes.append((edge, route))
    _order(ranks)
    _place(ranks)
    return ranks, routes


def _topological(graph: Drawing) -> list[str]:
    incoming = {n.id: 0 for n in graph.nodes}
    following: dict[str, list[str]] = {n.id: [] for n in graph.nodes}
    for edge in graph.edges:
        incoming[edge.target] += 1
        following[edge.source].append(edge.target)
    ready = [n for n, count in incoming.items() if count == 0]
    done: list[str] = []
    while ready:
        name = ready.pop(0)
        done.append(name)
        for target in following[name]:
            incoming[target] -= 1
            if incoming[target] == 0:
                ready.append(target)
    if len(done) != len(graph.nodes):
        raise ValueError("the graph has a cycle")
    return done


def _size(node: Box) -> tuple[float, float]:
    lines = [_cut(node.label), *map(_cut, node.detail)]
    return max(map(len, lines)) * _CHAR + 2 * _PAD, len(lines) * _LINE + 1.4 * _PAD


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


def _order(ranks: Sequence[list[_Box]]) -> None:
    """Sort each rank by the mean position of its neighbours, sweeping down and up in turn."""
    position: dict[int, float] = {}
    for rank in ranks:
        position.update({id(b): float(i) for i, b in enumerate(rank)})
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):

            def key(box: _Box, down: bool = down) -> float:
                near = box.above if down else box.below
                return sum(position[id(n)] for n in near) / len(near) if near else position[id(box)]

            rank.sort(key=key)
            position.update({id(b): float(i) for i, b in enumerate(rank)})


def _place(ranks: Sequence[list[_Box]]) -> None:
    y = _MARGIN
    for rank in ranks:
        height = max(b.height for b in rank)
        at = 0.0
        for box in rank:
            box.y = y + (height - box.height) / 2
            box.x = at + box.width / 2
            at += box.width + _GAP_X
        y += height + _GAP_Y
    for sweep in range(2 * _SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            wanted = []
            for box in rank:
                near = box.above if down else box.below
                wanted.append(sum(n.x for n in near) / len(near) if near else box.x)
            _spread(rank, wanted)


def _spread(rank: Sequence[_Box], wanted: Sequence[float]) -> None:
    """Place the boxes as near to `wanted` as their order and widths allow."""
    edge = float("-inf")
    for box, x in zip(rank, wanted, strict=True):
        box.x = max(x, edge + box.width / 2)
        edge = box.x + box.width / 2 + _GAP_X
    shift = sum(x - box.x for box, x in zip(rank, wanted, strict=True)) / len(rank)
    for box in rank:
        box.x += shift


def _node(box: _Box) -> str:
    node = box.node
    assert node is not None
    x, y = box.x - box.width / 2, box.y
    name = f"n {node.kind if node.kind in KINDS else 'op'}{' mark' if node.mark else ''}"
    tip = " · ".join(filter(None, (node.label, *node.detail, node.tip)))
    text = [f'<text x="{box.x:.1f}" y="{y + _PAD + 10:.1f}" class="l">{xml(_cut(node.label))}</text>']
    for i, line in enumerate(node.detail, 1):
        text.append(f'<text x="{box.x:.1f}" y="{y + _PAD + 10 + i * _LINE:.1f}" class="d">{xml(_cut(line))}</text>')
    return (
        f'<g class="{name}"><title>{xml(tip)}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6"/>{"".join(text)}</g>'
    )


def _edge(edge: Arrow, route: Sequence[_Box]) -> str:
    points = [(route[0].x, route[0].y + route[0].height)]
    points += [(b.x, b.y) for b in route[1:-1]]
    points.append((route[-1].x, route[-1].y - 2))
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        bend = (y1 - y0) / 2
        path += f"C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}"
    middle = ""
    source = route[0].node
    if edge.label and source is not None and edge.label not in source.detail:
        (x0, y0), (x1, y1) = points[:2]
        middle = f'<text x="{(x0 + x1) / 2 + 5:.1f}" y="{(y0 + y1) / 2 + 3:.1f}" class="e">{xml(edge.label)}</text>'
    return f'<path d="{path}" class="w" marker-end="url(#cuvil-arrow)"/>{middle}'


_STYLE = """
.cuvil-graph{--gi:var(--ink,#1b2430);--gm:var(--muted,#5c6875);--gl:var(--line,#c3ccd6);--gs:var(--surface,#fff);
--ga:var(--accent,#2f6db3);--gk:var(--mark,#c2500b);background:var(--gs)}
@media (prefers-color-scheme:dark){.cuvil-graph{--gi:var(--ink,#e6ebf1);--gm:var(--muted,#9aa7b5);
--gl:var(--line,#43505e);--gs:var(--surface,#161c23);--ga:var(--accent,#6aa9ec);--gk:var(--mark,#f0883e)}}
.cuvil-graph text{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:var(--gi)}
.cuvil-graph .l{font-size:11.5px;text-anchor:middle;font-weight:600}
.cuvil-graph .d{font-size:10.5px;text-anchor:middle;fill:var(--gm)}
.cuvil-graph .e{font-size:9.5px;fill:var(--gm);paint-order:stroke;stroke:var(--gs);stroke-width:3px}
.cuvil-graph rect{fill:var(--gs);stroke:var(--gl);stroke-width:1.2}
.cuvil-graph .group rect{stroke:var(--ga)}
.cuvil-graph .input rect,.cuvil-graph .output rect{stroke-dasharray:4 3}
.cuvil-graph .host rect{stroke-dasharray:1 3;stroke:var(--gm)}
.cuvil-graph .mark rect{stroke:var(--gk);stroke-width:2.2}
.cuvil-graph .w{fill:none;stroke:var(--gm);stroke-width:1.1}
.cuvil-graph marker path{fill:var(--gm)}
""".replace("\n", "")


def _svg(width: float, height: float, title: str, body: str) -> str:
    return (
        f'<svg class="cuvil-graph" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"><title>{xml(title)}</title>'
        f"<style>{_STYLE}</style><defs>"
        '<marker id="cuvil-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker></defs>'
        f"{body}</svg>"
    )

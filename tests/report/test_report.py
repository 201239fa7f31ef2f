"""The report: figures that follow from their parts, and HTML that is whole, safe and needs nothing from elsewhere."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cuvil_hw import ops
from cuvil_hw.compile.report import build_report
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import graphviz
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.lower.kernels import kernel_graph
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.report import words
from cuvil_hw.report.drawing import Arrow, Box, Drawing, to_svg
from cuvil_hw.report.report import Report, add_accuracy, add_saturations
from cuvil_hw.runtime.host import HostProgram, HostStep
from cuvil_hw.schedule.memory import plan_memory
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.schedule.space import Candidate, Choice, Estimate
from cuvil_hw.schedule.timing import DesignTiming, ProcessTime, WaitTime
from cuvil_hw.types import TensorType
from cuvil_hw.version import VERSION

EVIL = '<script>alert("x")</script>'
AXES = (
    Resource("lut", 1000, "sum", 0.7, "LUT"),
    Resource("uram", 0, "sum", 0.8, "URAM"),
    Resource("ddr", 4096, "live", 1.0, "B"),
)
CYCLES = (400, 900, 100)


def program() -> Program:
    b = Builder([("x", TensorType((1, 8), "f32"))], "net")
    first = b.op(ops.ReduceMax((1,), True), b.input(0), loc='model.py:3 "a<b>"')
    second = b.op(ops.Sub(), b.input(0), b.op(ops.BroadcastTo((1, 8)), first), loc="model.py:4")
    p = b.finish([("y", b.op(ops.ReduceSum((1,), True), second, loc="model.py:5"))])
    run_pipeline(p, ["fuse"])
    return p


class Unrolled:
    def describe(self) -> str:
        return "unroll o=4"


def report(style: str = "spatial", model: str = "net", timing: DesignTiming | None = None) -> Report:
    p = program()
    graph = kernel_graph(p)
    assert len(graph.kernels) == 3
    form = Unrolled()
    picked = tuple(
        (k.name, Candidate(form, Estimate(c / 1e8, c, {"lut": 10.0 * (i + 1)})))
        for i, (k, c) in enumerate(zip(graph.kernels, CYCLES, strict=True))
    )
    return build_report(
        model=model,
        target={"name": "board", "adapter": "zynq", "part": "part-1", "board": ""},
        precision="int8",
        kernels=graph,
        choice=Choice(picked, 900.0, 720.0, {"lut": 65.0, "uram": 0.0}, style),
        axes=AXES,
        clock_hz=1e8,
        fixed={"lut": 5.0},
        memory=plan_memory(graph, alignment=64),
        live_bytes=2048.0,
        prologue=HostProgram((HostStep("quantize", {}, (), ()),)),
        epilogue=HostProgram((HostStep("dequantize", {}, (), ()), HostStep("softmax", {}, (), ()))),
        graph=graphviz.graph_of(p),
        notes=["assumed: batch of 1"],
        timing=timing,
    )


class Page(HTMLParser):
    """Tags, attributes and visible text of a document."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "rect", "line", "path", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("rect", "line", "path"):
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def full(style: str = "spatial", model: str = "net") -> Report:
    r = report(style, model)
    add_accuracy(r, "top-1 accuracy", 0.975, 0.972, 360, "python examples/digits_zynq.py")
    add_saturations(r, {"reduce_max_0": {"saturated_low": 0, "saturated_high": 12}}, 360, "simulated")
    return r


def test_figures_follow_from_the_layers() -> None:
    r = report()
    assert [(layer["cycles"], layer["loc"]) for layer in r["layers"]] == [
        (400, 'model.py:3 "a<b>"'), (900, "model.py:4"), (100, "model.py:5"),
    ]  # fmt: skip
    slowest = r["layers"][1]["name"]
    assert r["bottleneck"] == {"layer": slowest, "processes": [slowest], "cycles": 900, "origin": "analytic"}
    assert r["throughput"]["inferences_per_s"] == pytest.approx(1e8 / 900)
    assert r["latency"]["seconds"] == pytest.approx(1400 / 1e8)
    assert r["solver"]["gap"] == pytest.approx(0.2)
    lut, uram, ddr = r["totals"]
    assert (lut["used"], lut["fixed"], lut["budget"], lut["percent"]) == (65.0, 5.0, 700.0, 6.5)
    assert (uram["percent"], ddr["used"], ddr["percent"]) == (0.0, 2048.0, 50.0)
    assert r["host"] == [
        {"where": "before", "op": "quantize"},
        {"where": "after", "op": "dequantize"},
        {"where": "after", "op": "softmax"},
    ]


def test_layers_one_after_another_add_up() -> None:
    r = report("temporal")
    assert r["throughput"]["inferences_per_s"] == pytest.approx(1e8 / 1400)
    assert r["memory"]["live_bytes"] == 2048
    assert report("spatial")["memory"] is None


def test_every_figure_has_an_origin() -> None:
    r = full()
    single = [r[key] for key in ("bottleneck", "latency", "throughput", "saturations")]
    for figure in (*r["layers"], *r["totals"], *r["accuracy"], *single):
        assert figure["origin"]
    assert r["accuracy"][0]["origin"] == "measured (python examples/digits_zynq.py)"


def test_it_is_json_and_equal_reports_are_equal() -> None:
    assert json.loads(json.dumps(full())) == full()


def test_text_says_what_matters() -> None:
    text = full().text()
    for word in (
        "net for board (part-1), int8, 100 MHz", "unroll o=4", "model.py:4", "111,111 inferences/s", "65", "0.972",
        "quantize (before the device); dequantize, softmax (after the device)", "note: assumed: batch of 1",
        "at most 20.0 % above the proven bound of 720 cycles", "12 high",
    ):  # fmt: skip
        assert word in text
    costs = text.split("\n\n")[1].splitlines()
    assert costs[0].endswith("lut")
    assert [line.split()[-1] for line in costs[2:]] == ["10", "20", "30"]
    assert len(set(map(len, costs))) == 1


def test_text_shortens_the_names_that_converters_make() -> None:
    r = report()
    r["layers"][0]["loc"] = f'onnx node "{"a/" * 300}conv" (Conv)'
    text = r.text()
    assert 100 < text.count("a/") < 200  # in either table and beside "bottleneck" at most 80, instead of 300
    assert "…" in text
    assert 'conv" (Conv)' in text


def test_tables_fit_a_terminal_and_lose_nothing() -> None:
    r = full()
    for layer in r["layers"]:
        layer["ops"], layer["schedule"] = ["broadcast_to", "rescale"] * 4, "unroll o=4 c=16 w@bram; kind=dense; " * 3
        layer["use"].update(dict.fromkeys(("lut", "uram"), 123456.0))
    tables = r.text().split("\n\n")[1:-1]
    assert max(len(line) for table in tables for line in table.splitlines()) <= 80
    assert sum(table.count("broadcast_to") for table in tables) == 12
    assert sum(table.count("kind=dense;") for table in tables) == 9
    wide = r.text(400).split("\n\n")[2].splitlines()
    assert len(wide) == 5
    assert wide[2].count("broadcast_to + rescale") == 4


@pytest.mark.parametrize(
    ("loc", "name"),
    [
        ('onnx node "/block/conv" (Conv)', "/block/conv"),
        ('onnx node "a "b" (c)" (Conv)', 'a "b" (c)'),
        ("model.py:12 features.0", "features.0"),
        ("model.py:12", ""),
        ("features.0", "features.0"),
        ("", ""),
    ],
)
def test_layers_are_called_as_in_the_model(loc: str, name: str) -> None:
    r = report()
    r["layers"][1]["loc"] = loc
    assert words.in_the_model(loc) == name
    shown = f"{r['layers'][1]['name']} ({name})" if name else r["layers"][1]["name"]
    assert f"* bottleneck: {shown}, 900 cycles" in r.text()
    if name:
        assert "in the model" in r.text()
        assert " ".join(Page(r.html()).text).count(name) >= 3  # chart, card, table


def test_html_is_well_formed_and_names_every_layer_and_resource() -> None:
    r = full()
    page = Page(r.html())
    assert page.open == []
    shown = " ".join(page.text)
    for layer in r["layers"]:
        assert shown.count(layer["name"]) >= 4  # chart, table, graph, hover text
        assert layer["loc"] in shown
    for word in ("lut", "ddr (B)", "measured (python examples/digits_zynq.py)", "111,111", "analytic"):
        assert word in shown
    assert page.tags.count("svg") == 3


def test_html_refers_to_nothing_outside() -> None:
    document = full().html()
    page = Page(document)
    assert "//" not in document
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not [a for a in page.attributes if a[1] in ("src", "href", "xlink:href", "action") or a[1].startswith("on")]
    assert re.findall(r"url\((?!#)", document) == []
    assert "@import" not in document


def test_the_foot_says_what_made_the_page_and_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    r = report()
    made = f"made by <code>cuvil report &lt;a&gt;</code> on 1970-01-02 with cuvil-hw {VERSION} "
    assert made in r.html("cuvil report <a>")
    assert "<footer>made on 1970-01-02 with " in r.html()
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert re.search(r"<footer>made on 2\d{3}-\d\d-\d\d with ", r.html())
    assert report() == r  # it's no part of the report


def test_the_graph_zooms_without_a_script_and_wide_parts_scroll() -> None:
    document = full().html()
    page = Page(document)
    ids = [value for tag, name, value in page.attributes if (tag, name) == ("input", "id")]
    assert len(ids) == 4
    assert [value for tag, name, value in page.attributes if (tag, name) == ("label", "for")] == ids
    drawn = re.search(r'<svg class="cuvil-graph" role="img" width="(\d+)"', document)
    assert drawn is not None
    assert f'style="--w:{drawn[1]}px"' in document
    for number, name in enumerate(ids):
        width = re.search(rf"#{name}:checked~\.graph svg{{width:(.*)}}", document)
        assert width is not None
        assert width[1] == ("min(100%,var(--w))", "calc(.5*var(--w))", "var(--w)", "calc(2*var(--w))")[number]
    assert '<meta name="viewport" content="width=device-width' in document
    for wide in ("<table>", '<svg class="bars"', '<svg class="cuvil-graph"'):
        before = [document[: found.start()] for found in re.finditer(wide, document)]
        assert before
        assert all(re.search(r'<div class="scroll( graph)?" tabindex="0"[^>]*>\Z', text) for text in before)


def test_notebooks_show_the_document_in_a_frame() -> None:
    r = full(model=EVIL)
    (frame,) = [a for a in Page(r._repr_html_()).attributes if a[1] == "srcdoc"]
    assert frame[2] == r.html()
    assert ("iframe", "sandbox", "") in Page(r._repr_html_()).attributes
    assert Report({})._repr_html_() == "<p>no report</p>"


def test_html_escapes_names() -> None:
    r = full(model=EVIL)
    for layer in r["layers"]:
        layer["loc"] = layer["schedule"] = EVIL
    r["layers"][0]["name"] = r["accuracy"][0]["name"] = r["target"]["name"] = EVIL
    r["notes"].append(EVIL)
    r["graph"]["nodes"][0]["label"] = r["graph"]["nodes"][0]["tip"] = EVIL
    document = r.html()
    assert "<script" not in document
    assert "script" not in Page(document).tags
    assert EVIL in "".join(Page(document).text)


def test_html_without_layers_or_limits() -> None:
    r = report()
    r.update(layers=[], totals=[], bottleneck=None, accuracy=[], saturations={}, graph={"nodes": [], "edges": []})
    r["throughput"]["inferences_per_s"] = None
    assert Page(r.html()).open == []
    assert "– inferences/s" in r.text()


def test_save_html_replaces_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text("before", encoding="utf-8")
    report().save_html(path)
    assert path.read_text(encoding="utf-8") == report().html()
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
    with pytest.raises(CuvilError, match=r"could not be written: No such file or directory; choose another place"):
        report().save_html(tmp_path / "no" / "r.html")


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    found = ElementTree.fromstring(svg).iter("rect")
    return [tuple(float(r.attrib[k]) for k in ("x", "y", "width", "height")) for r in found]  # type: ignore[misc]


def test_layout_keeps_boxes_apart_and_edges_downward() -> None:
    names = [f"n{i}" for i in range(60)]
    edges = [Arrow(names[i], names[i + 1]) for i in range(59)] + [
        Arrow(names[i], names[i + 7]) for i in range(0, 50, 3)
    ]
    drawn = to_svg(Drawing(tuple(Box(n, n, ("1x2xi8",)) for n in names), tuple(edges)))
    placed = boxes(drawn)
    assert len(placed) == 60
    tops = [y for _, y, _, _ in placed]
    assert tops == sorted(tops)
    for i, (x, y, w, h) in enumerate(placed):
        for a, b, c, d in placed[i + 1 :]:
            assert x + w <= a or a + c <= x or y + h <= b or b + d <= y


def test_layout_of_odd_graphs() -> None:
    assert "no operations" in to_svg(Drawing())
    lonely = Drawing((Box("a", "a"), Box("b", "b")))
    assert len(boxes(to_svg(lonely))) == 2
    twice = Drawing((Box("a", "a"), Box("b", "b")), (Arrow("a", "b", "i8"), Arrow("a", "b", "i8")))
    assert to_svg(twice).count('class="w"') == 1
    with pytest.raises(ValueError, match="cycle"):
        to_svg(Drawing((Box("a", "a"), Box("b", "b")), (Arrow("a", "b"), Arrow("b", "a"))))


def test_graph_of_a_program() -> None:
    drawn = graphviz.graph_of(program())
    assert [(n.kind, n.label) for n in drawn.nodes] == [
        ("input", "x"), ("group", "reduce_max_0"), ("group", "sub_1"), ("group", "reduce_sum_2"), ("output", "y"),
    ]  # fmt: skip
    ends = {n.id: n.label for n in drawn.nodes}
    assert {(ends[e.source], ends[e.target]) for e in drawn.edges} == {
        ("x", "reduce_max_0"),
        ("x", "sub_1"),
        ("reduce_max_0", "sub_1"),
        ("sub_1", "reduce_sum_2"),
        ("reduce_sum_2", "y"),
    }
    assert Drawing.from_json(drawn.to_json()) == drawn
    assert ElementTree.fromstring(graphviz.to_svg(program())).tag == "{http://www.w3.org/2000/svg}svg"


def test_dot_has_clusters_shapes_tooltips_and_quotes() -> None:
    dot = graphviz.to_dot(program())
    assert dot.count("subgraph cluster_") == 3
    assert dot.count("{") == dot.count("}")
    assert 'label="1x8xf32"' in dot
    assert r'tooltip="model.py:3 \"a<b>\""' in dot
    text = re.sub(r'"(?:\\.|[^"\\])*"', "", dot)  # what is left outside of strings is DOT's own
    assert '"' not in text
    assert "<" not in text
    known = set(re.findall(r"^\s*(\w+) \[label", dot, re.M))
    assert {end for pair in re.findall(r"(\w+) -> (\w+)", dot) for end in pair} <= known


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (words.seconds, {0.0: "0 s", 2.5e-9: "2.5 ns", 1.5e-5: "15 µs", 0.0123: "12.3 ms", 4.0: "4 s"}),
        (words.seconds, {1234.5: "1,234 s"}),
        (words.count, {None: "–", 3.0: "3", 1234.5: "1,234.5", 10**6: "1,000,000"}),
        (words.rate, {None: "–", 0.5: "0.5", 12.345: "12.3", 54321.9: "54,322"}),
        (words.size, {12.0: "12 B", 2048.0: "2.0 KiB", 3 * 2**20: "3.0 MiB", 2**31: "2.0 GiB"}),
    ],
)
def test_numbers_in_words(said: Any, value: dict[float, str]) -> None:
    assert {v: said(v) for v in value} == value


def timed(interval: float, cause: str = "") -> DesignTiming:
    full, empty = WaitTime("a_out", "resize", 350, True), WaitTime("x", "port x", 12, False)
    processes = (
        ProcessTime("read_x", 900, (empty,)),
        ProcessTime("sub_1_epilogue", 900, (full,)),
        ProcessTime("sum_2", 4),
    )
    return DesignTiming(interval, 1500, 900, processes, cause, {"lut": 15.0}, ("no memory is left for more",))


def test_simulated_cycles_stand_before_the_formula() -> None:
    r = report(timing=timed(900))
    assert r["bottleneck"]["processes"] == ["read_x", "sub_1_epilogue"]  # a port and a layer that are equally slow
    assert (r["bottleneck"]["cycles"], r["bottleneck"]["layer"]) == (900, "sub_1")
    assert r["throughput"]["device_inferences_per_s"] == 1e8 / 900
    assert (r["latency"]["cycles"], r["latency"]["origin"]) == (1500, "simulated (timing model)")
    assert [t["used"] for t in r["totals"] if t["axis"] == "lut"] == [80.0]  # 65 and 15 for deeper FIFOs
    text = r.text(200)
    assert "* bottleneck: read_x, sub_1_epilogue" in text
    assert "12 for words of port x (x)" in text
    assert "a sample every 900 cycles; by the layers' estimates every 900" in text
    assert "Who waits for whom" in r.html()
    assert not [n for n in r["notes"] if "simulated" in n]
    assert "warning: no memory is left for more" in r["notes"]


def test_figures_that_differ_say_why() -> None:
    r = report(timing=timed(1250, "a_out"))
    assert r["bottleneck"]["processes"] == ["FIFO a_out"]
    wanted = (
        "warning: simulated 1,250 cycles a sample, 900 by the layers' estimates: sub_1_epilogue waits 350 of them for "
        "room in a_out, which resize reads"
    )
    assert wanted in r["notes"]
    assert r["throughput"]["formula_inferences_per_s"] == 1e8 / 900
    assert r["throughput"]["device_inferences_per_s"] == 80_000
    assert report(timing=timed(917))["notes"] == report(timing=timed(900))["notes"]  # within 2 %

"""Reads reports of Vitis HLS and Vivado: csynth.xml, those of its modules, report_utilization, report_timing_summary.

The forms are those of UG1399 (csynth.xml of Vitis HLS 2020.2 and later; DSP48E is what older ones call DSP) and UG906
(the tables of Vivado). Of several reports of a kind the one of the latest stage counts: routed, placed, synthesized.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from cuvil_hw.adapters.zynq.hwh import short_part
from cuvil_hw.errors import CuvilError
from cuvil_hw.schedule.timing import layer_of

_MOST_BYTES = 64 << 20
_STAGES = ("synthesized", "optimized", "placed", "physopt", "routed")
_AXES = {"LUT": "lut", "FF": "ff", "BRAM_18K": "bram18", "DSP": "dsp", "DSP48E": "dsp", "URAM": "uram"}
# Rows of report_utilization; a block RAM tile is two of 18 Kb.
_ROWS = {
    "Slice LUTs": ("lut", 1), "CLB LUTs": ("lut", 1), "Slice Registers": ("ff", 1), "CLB Registers": ("ff", 1),
    "Registers": ("ff", 1), "Block RAM Tile": ("bram18", 2), "DSPs": ("dsp", 1), "DSP Slices": ("dsp", 1),
    "URAM": ("uram", 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A csynth report: of the whole design, or of one module. `latency`, `interval`: cycles, the most; None where the
    tool says "undef"."""

    file: str
    top: str
    part: str
    target_ns: float
    estimated_ns: float
    latency: int | None
    interval: int | None
    use: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Implemented:
    """A utilisation or a timing report. `slack_ns`: worst negative slack, below 0 where timing isn't met."""

    file: str
    design: str
    part: str
    stage: str
    use: Mapping[str, float] = field(default_factory=dict)
    slack_ns: float | None = None


@dataclass(frozen=True, slots=True)
class VendorReports:
    """All that one folder says. `layers`: by name of the layer, of its processes together."""

    whole: Synthesis | None
    layers: Mapping[str, Mapping[str, float]]
    utilisation: Implemented | None
    timing: Implemented | None


def read_reports(folder: Path, top: str, part: str, layers: Sequence[str]) -> VendorReports:
    """The reports below `folder` for a design whose top function is `top`, on `part`, with these layers.

    Raises CuvilError for a folder without any report, for one that is cut off or another tool's, for reports of another
    design or part, and for several between which nothing decides."""
    if not folder.is_dir():
        raise CuvilError(f"{folder}: no such folder; give the one in which Vitis HLS or Vivado ran")
    files = sorted(p for p in folder.rglob("*") if p.suffix in (".xml", ".rpt", ".txt") and p.is_file())
    modules = [_synthesis(p) for p in files if p.name == "csynth.xml" or p.name.endswith("_csynth.xml")]
    wholes = [m for m in modules if Path(m.file).name == "csynth.xml"]
    tables = [t for p in files if p.suffix != ".xml" for t in _implemented(p)]
    if not modules and not tables:
        wanted = "csynth.xml, report_utilization or report_timing_summary"
        raise CuvilError(f"{folder}: holds no {wanted}; run run_hls.tcl, or shell.tcl after it, and give its folder")
    for m in wholes:
        if m.top != top:
            raise CuvilError(f"{m.file}: is of the design {m.top!r}, the program's is {top!r}; give its own reports")
    every: list[Synthesis | Implemented] = [*modules, *tables]
    for r in every:
        if not short_part(part).startswith(short_part(r.part)):  # timing reports name no speed grade
            raise CuvilError(f"{r.file}: is for part {r.part}, the program for {part}; synthesise for the same part")
    use = [t for t in tables if t.use]
    slack = [t for t in tables if t.slack_ns is not None]
    return VendorReports(_only(wholes, "csynth.xml"), _by_layer(modules, layers), _latest(use), _latest(slack))


def _text(path: Path) -> str:
    data = path.read_bytes()
    if len(data) > _MOST_BYTES:
        raise CuvilError(f"{path}: larger than {_MOST_BYTES} bytes; this is no report")
    return data.decode("utf-8", "replace")


def _synthesis(path: Path) -> Synthesis:
    text = _text(path)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise CuvilError(f"{path}: declares a document type, which no report does; refused")
    again = "run csynth_design again and wait for its end"
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as e:
        raise CuvilError(f"{path}: cut off, or no XML ({e}); {again}") from None

    def get(where: str, missing: str | None = None) -> str:
        found = root.findtext(where, missing)
        if found is None:
            raise CuvilError(f"{path}: has no {where}: no whole synthesis report of Vitis HLS; {again}")
        return found.strip()

    def number(where: str) -> float:
        found = get(where)
        try:
            return float(found)
        except ValueError:
            raise CuvilError(f"{path}: {where} is {found!r}, not a number; {again}") from None

    def cycles(name: str) -> int | None:
        found = get(f"PerformanceEstimates/SummaryOfOverallLatency/{name}", "undef")
        return int(found) if found.isdecimal() else None

    area = root.find("AreaEstimates/Resources")
    known = [e for e in area if e.tag in _AXES] if area is not None else []
    if not known:
        raise CuvilError(f"{path}: has no AreaEstimates/Resources: no whole synthesis report of Vitis HLS; {again}")
    return Synthesis(
        str(path),
        get("UserAssignments/TopModelName"),
        get("UserAssignments/Part"),
        number("UserAssignments/TargetClockPeriod"),
        number("PerformanceEstimates/SummaryOfTimingAnalysis/EstimatedClockPeriod"),
        cycles("Worst-caseLatency"),
        cycles("Interval-max"),
        {_AXES[e.tag]: number(f"AreaEstimates/Resources/{e.tag}") for e in known},
    )


def _implemented(path: Path) -> Iterator[Implemented]:
    """What a text file is of these; nothing when it is another one."""
    text = _text(path)
    is_use, is_timing = "Utilization Design Information" in text, "| Design Timing Summary" in text
    if not is_use and not is_timing:
        return
    facts = dict(re.findall(r"^\| (Design|Device|Design State) +: *(.*?) *$", text, re.MULTILINE))
    state = facts.get("Design State", "").lower()
    stage = next((s for s in reversed(_STAGES) if s in state), "")
    named = str(path), facts.get("Design", ""), facts.get("Device", ""), stage
    if is_use:
        use: dict[str, float] = {}
        for name, used in re.findall(r"^\| ([A-Z][A-Za-z ]*?)\*? +\| +([\d.]+) +\|", text, re.MULTILINE):
            if name in _ROWS:
                axis, factor = _ROWS[name]
                use.setdefault(axis, float(used) * factor)
        if missing := [axis for axis in ("lut", "ff", "bram18", "dsp") if axis not in use]:
            raise CuvilError(f"{path}: its tables lack {', '.join(missing)}: cut off; run report_utilization again")
        yield Implemented(*named, use=use)
    if is_timing:
        found = re.search(r"^ *WNS\(ns\).*\n[ -]*\n *(-?[\d.]+|NA)\b", text, re.MULTILINE)
        if found is None:
            raise CuvilError(f"{path}: has no worst slack below WNS(ns): cut off; run report_timing_summary again")
        if found[1] == "NA":
            raise CuvilError(f"{path}: no path is constrained, so it says nothing of the clock; constrain the clock")
        yield Implemented(*named, slack_ns=float(found[1]))


def _by_layer(modules: Sequence[Synthesis], layers: Sequence[str]) -> dict[str, dict[str, float]]:
    """Use and cycles of each layer: its processes are named after it. A module that a loop became is part of its
    process."""
    found: dict[str, dict[str, float]] = {}
    for module in modules:
        if "_Pipeline_" in module.top or Path(module.file).name == "csynth.xml":
            continue
        layer = layer_of(module.top, layers)
        if not layer:
            continue
        of = found.setdefault(layer, {})
        for axis, used in module.use.items():
            of[axis] = of.get(axis, 0.0) + used
        if module.interval is not None:
            of["cycles"] = max(of.get("cycles", 0.0), module.interval)
    return found


def _only(found: Sequence[Synthesis], what: str) -> Synthesis | None:
    if len(found) > 1:
        raise CuvilError(f"several {what}: {', '.join(f.file for f in found)}; give the folder of one solution")
    return found[0] if found else None


def _latest(found: Sequence[Implemented]) -> Implemented | None:
    if not found:
        return None
    rank = max(_STAGES.index(f.stage) if f.stage else -1 for f in found)
    last = [f for f in found if (_STAGES.index(f.stage) if f.stage else -1) == rank]
    if len(last) > 1:
        listed = ", ".join(f.file for f in last)
        raise CuvilError(f"several reports of stage {last[0].stage or 'unknown'}: {listed}; leave one in the folder")
    return last[0]

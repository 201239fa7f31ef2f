"""What `cuvil report --vendor` shows: a vendor's figures beside those of the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuvil_hw.cli.output import console, show_table
from cuvil_hw.errors import CuvilError
from cuvil_hw.report import words
from cuvil_hw.report.report import Report

if TYPE_CHECKING:
    from cuvil_hw.adapters.zynq.vendor import VendorReports

AXES = ("lut", "ff", "bram18", "uram", "dsp")


def beside(report: Report, info: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The figures of a folder of Vitis HLS's and Vivado's beside the report's own, by layer and in all, as JSON data.
    `info`: of the program's build plan. Raises CuvilError."""
    from cuvil_hw.adapters.zynq import vendor

    target = report["target"]
    if target["adapter"] != "zynq":
        raise CuvilError(f"--vendor reads reports of Vitis HLS and Vivado; this program is for {target['name']}")
    layers = [layer["name"] for layer in report["layers"]]
    return _compared(report, vendor.read_reports(folder, str(info["top"]), target["part"], layers))


def _compared(report: Report, found: VendorReports) -> dict[str, Any]:
    whole, use, timing = found.whole, found.utilisation, found.timing
    totals = [
        {
            "axis": t["axis"],
            "cuvil": t["used"],
            "csynth": whole.use.get(t["axis"]) if whole is not None else None,
            "implemented": use.use.get(t["axis"]) if use is not None else None,
            "limit": t["limit"],
        }
        for t in report["totals"]
        if t["axis"] in AXES
    ]
    layers = [
        {
            "layer": layer["name"],
            "cuvil": {"cycles": layer["cycles"], **layer["use"]},
            "csynth": dict(found.layers[layer["name"]]),
        }
        for layer in report["layers"]
        if layer["name"] in found.layers
    ]
    slowest = report["bottleneck"]
    return {
        "files": [f.file for f in (whole, use, timing) if f is not None],
        "layers": layers,
        "totals": totals,
        "interval_cycles": {
            "cuvil": slowest["cycles"] if slowest else None,
            "csynth": whole.interval if whole is not None else None,
        },
        "clock_ns": {
            "asked": 1e9 / report["clock_hz"],
            "csynth_target": whole.target_ns if whole is not None else None,
            "csynth_estimate": whole.estimated_ns if whole is not None else None,
            "implemented_slack": timing.slack_ns if timing is not None else None,
        },
        "implemented": {"design": use.design, "stage": use.stage} if use is not None else None,
    }


def show(compared: Mapping[str, Any]) -> None:
    """The comparison as tables; a dash where the vendor says nothing."""
    out = console()
    rows = [[t["axis"], *(words.count(t[key]) for key in ("cuvil", "csynth", "implemented", "limit"))]
            for t in compared["totals"]]  # fmt: skip
    interval = compared["interval_cycles"]
    rows.append(["cycles a sample", words.count(interval["cuvil"]), words.count(interval["csynth"]), "–", "–"])
    show_table(["in all", "cuvil", "csynth", "implemented", "limit"], rows, [False, True, True, True, True])
    if compared["layers"]:
        axes = ["cycles", *(t["axis"] for t in compared["totals"])]
        named = [
            [row["layer"], who, *(words.count(row[who].get(axis)) for axis in axes)]
            for row in compared["layers"]
            for who in ("cuvil", "csynth")
        ]
        out.print()
        show_table(["layer", "by", *axes], named, [False, False, *(True for _ in axes)])
    out.print()
    for line in _closing(compared):
        out.print(line, markup=False, soft_wrap=True)


def _closing(compared: Mapping[str, Any]) -> list[str]:
    clock, placed = compared["clock_ns"], compared["implemented"]
    lines = [f"clock: {clock['asked']:g} ns asked for"]
    if clock["csynth_estimate"] is not None:
        lines.append("csynth counts more LUTs and flip-flops than are implemented; DSP blocks are exact")
        lines.append(f"csynth estimates {clock['csynth_estimate']:g} ns for a target of {clock['csynth_target']:g} ns")
    if clock["implemented_slack"] is not None:
        met = "met" if clock["implemented_slack"] >= 0 else "not met; lower clock_mhz in the profile and compile again"
        lines.append(f"implemented: worst slack {clock['implemented_slack']:g} ns, timing is {met}")
    if placed is not None:
        lines.append(f"implemented counts all of {placed['design'] or 'the design'} ({placed['stage'] or 'no stage'}), "
                     "DMA and interconnect included where they are in it")  # fmt: skip
    return [*lines, *(f"vendor ({file})" for file in compared["files"])]

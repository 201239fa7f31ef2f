"""Reports of Vitis HLS and Vivado. The samples are written by hand after the documented forms (UG1399, UG906); no tool
made them, so their figures are no statement about any design."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import cuvil
from cuvil_hw.adapters.zynq.vendor import read_reports
from cuvil_hw.cli.main import main
from cuvil_hw.errors import CuvilError

PART = "xc7z020clg400-1"
USE = {"BRAM_18K": 12, "DSP": 30, "FF": 4000, "LUT": 5000, "URAM": 0}


def csynth(top: str, use: Mapping[str, int], part: str = "xc7z020-clg400-1", interval: str = "1024") -> str:
    area = "".join(f"<{k}>{v}</{k}><AVAIL_{k}>0</AVAIL_{k}>" for k, v in use.items())
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<profile>
  <ReportVersion><Version>2022.2</Version></ReportVersion>
  <UserAssignments><unit>ns</unit><Part>{part}</Part><TopModelName>{top}</TopModelName>
    <TargetClockPeriod>10.00</TargetClockPeriod></UserAssignments>
  <PerformanceEstimates><PipelineType>dataflow</PipelineType>
    <SummaryOfTimingAnalysis><unit>ns</unit><EstimatedClockPeriod>7.300</EstimatedClockPeriod></SummaryOfTimingAnalysis>
    <SummaryOfOverallLatency><unit>clock cycles</unit><Worst-caseLatency>2050</Worst-caseLatency>
      <Interval-min>1000</Interval-min><Interval-max>{interval}</Interval-max></SummaryOfOverallLatency>
  </PerformanceEstimates>
  <AreaEstimates><Resources>{area}</Resources></AreaEstimates>
</profile>
"""


def utilisation(state: str = "Fully Placed", luts: str = "CLB LUTs*") -> str:
    return f"""Utilization Design Information
| Tool Version : Vivado v.2022.2
| Design       : shell_wrapper
| Device       : {PART}
| Design State : {state}

1. Slice Logic
+----------------------------+------+-------+------------+-----------+-------+
|          Site Type         | Used | Fixed | Prohibited | Available | Util% |
+----------------------------+------+-------+------------+-----------+-------+
| {luts:26} | 3100 |     0 |          0 |     53200 |  5.83 |
|   LUT as Logic             | 2900 |     0 |          0 |     53200 |  5.45 |
| Slice Registers            | 3900 |     0 |          0 |    106400 |  3.67 |
| Block RAM Tile    | 6.5 |     0 |          0 |       140 |  4.64 |
|   RAMB36/FIFO*    |   6 |     0 |          0 |       140 |  4.29 |
| DSPs           |   31 |     0 |          0 |       220 | 14.09 |
"""


def timing(slack: str = "0.412") -> str:
    return f"""| Tool Version      : Vivado v.2022.2
| Design            : shell_wrapper
| Device            : 7z020-clg400
| Design State      : Routed
| Design Timing Summary
| ---------------------

    WNS(ns)      TNS(ns)  TNS Failing Endpoints  TNS Total Endpoints      WHS(ns)      THS(ns)
    -------      -------  ---------------------  -------------------      -------      -------
      {slack}        0.000                      0                 9100        0.031        0.000
"""


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_all_reports_of_a_folder(tmp_path: Path) -> None:
    half = {k: v // 2 for k, v in USE.items()}
    write(
        tmp_path, csynth__xml=csynth("top", USE), top_csynth__xml=csynth("top", USE),
        conv_1_csynth__xml=csynth("conv_1", half, interval="900"),
        conv_1_window_csynth__xml=csynth("conv_1_window", half),
        conv_1_Pipeline_L_csynth__xml=csynth("conv_1_Pipeline_L", USE), conv_10_csynth__xml=csynth("conv_10", half),
        placed__rpt=utilisation(), synth__rpt=utilisation("Synthesized", "Slice LUTs"), timing__txt=timing(),
        notes__txt="WNS(ns) is what matters",
    )  # fmt: skip
    found = read_reports(tmp_path, "top", PART, ["conv_1", "conv_10"])
    assert found.whole is not None
    assert (found.whole.interval, found.whole.estimated_ns, found.whole.use["bram18"]) == (1024, 7.3, 12)
    assert found.layers["conv_1"] == {"bram18": 12, "dsp": 30, "ff": 4000, "lut": 5000, "uram": 0, "cycles": 1024}
    assert found.layers["conv_10"]["lut"] == 2500
    assert found.utilisation is not None
    assert found.utilisation.stage == "placed"
    assert found.utilisation.use == {"lut": 3100, "ff": 3900, "bram18": 13, "dsp": 31}
    assert found.timing is not None
    assert found.timing.slack_ns == 0.412


def test_older_tools_and_open_intervals(tmp_path: Path) -> None:
    """DSP48E is what Vivado HLS and the first Vitis HLS wrote; "undef" where a loop has no known length."""
    use = {"BRAM_18K": 1, "DSP48E": 2, "FF": 3, "LUT": 4}
    found = read_reports(write(tmp_path, csynth__xml=csynth("top", use, interval="undef")), "top", PART, [])
    assert found.whole is not None
    assert (found.whole.use["dsp"], found.whole.interval, found.timing) == (2, None, None)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "holds no csynth.xml, report_utilization or report_timing_summary"),
        ({"csynth__xml": csynth("top", USE)[:700]}, "csynth.xml: cut off, or no XML .*run csynth_design again"),
        ({"csynth__xml": "<profile/>"}, "has no AreaEstimates/Resources: no whole synthesis report"),
        ({"csynth__xml": "<!DOCTYPE a>" + csynth("top", USE)}, "declares a document type"),
        (
            {"csynth__xml": csynth("top", USE).replace("<TopModelName>top</TopModelName>", "")},
            "has no UserA.*TopModelName",
        ),
        ({"csynth__xml": csynth("top", USE).replace("10.00", "fast")}, "TargetClockPeriod is 'fast', not a number"),
        ({"csynth__xml": csynth("other", USE)}, "is of the design 'other', the program's is 'top'"),
        (
            {"csynth__xml": csynth("top", USE, "xczu7ev-ffvc1156-2-e")},
            "is for part xczu7ev-.*, the program for xc7z020",
        ),
        ({"u__rpt": utilisation().split("| DSPs")[0]}, "its tables lack .*dsp: cut off; run report_utilization again"),
        ({"t__rpt": timing()[:320]}, "has no worst slack below WNS.*run report_timing_summary again"),
        ({"t__rpt": timing("NA   ")}, "no path is constrained"),
        ({"a__rpt": utilisation(), "b__rpt": utilisation()}, "several reports of stage placed: .*a.rpt, .*b.rpt"),
    ],
)
def test_reports_that_cannot_be_used(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(CuvilError, match=said):
        read_reports(write(tmp_path, **files), "top", PART, ["conv_1"])


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CuvilError, match="no such folder; give the one in which Vitis HLS or Vivado ran"):
        read_reports(tmp_path / "nowhere", "top", PART, [])


@pytest.mark.needs("torch", "ortools")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    x = np.linspace(-1, 1, 32, dtype="f4").reshape(8, 4)
    made = cuvil.compile(torch.nn.Linear(4, 2), "pynq-z2", x[:1], x, precision="int8", interface="null")
    made.save(tmp_path / "p.cuvil")
    top, layer = made.artifact.manifest.info["top"], made.report["layers"][0]["name"]
    folder = tmp_path / "hls"
    folder.mkdir()
    modules = {f"{layer}_csynth__xml": csynth(layer, USE)}
    write(folder, csynth__xml=csynth(top, USE), u__rpt=utilisation(), t__rpt=timing("-0.100"), **modules)
    assert main(["report", str(tmp_path / "p.cuvil"), "--vendor", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "5,000" in shown
    assert "3,100" in shown
    assert "worst slack -0.1 ns, timing is not met; lower clock_mhz" in shown
    assert main(["report", str(tmp_path / "p.cuvil"), "--vendor", str(folder), "--json"]) == 0
    vendor = json.loads(capsys.readouterr().out)["vendor"]
    assert vendor["layers"][0]["csynth"]["dsp"] == 30
    assert {t["axis"]: t["implemented"] for t in vendor["totals"]}["bram18"] == 13
    assert vendor["interval_cycles"]["csynth"] == 1024
    assert main(["report", str(tmp_path / "p.cuvil"), "--vendor", str(tmp_path / "none")]) == 1
    assert "no such folder" in capsys.readouterr().err

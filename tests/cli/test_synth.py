"""`cuvil synth`: Yosys counts the layers of a design; what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cuvil
from cuvil_hw.adapters.streaming.synthesis.yosys import Flow, synthesise
from cuvil_hw.adapters.streaming.verilated.build import library_files
from cuvil_hw.adapters.zynq.synthesis import CELLS
from cuvil_hw.cli.main import main
from cuvil_hw.contract import programs
from cuvil_hw.errors import BuildFailed

torch = pytest.importorskip("torch")
XC7 = Flow("synth_xilinx -family xc7 -noiopad -noclkbuf -flatten", CELLS)


ORIGINS = {"pynq-z2": "synth_xilinx -family xc7 -noiopad -noclkbuf -flatten", "ulx3s-85f": "synth_ecp5"}


def compiled(target: str | Path, folder: Path) -> Path:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    path = folder / "small.cuvil"
    cuvil.compile(model, target, torch.tensor(x[:1]), calibration=x, precision="int8", name="small").save(path)
    return path


@pytest.fixture(scope="module")
def design(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("pynq-z2", tmp_path_factory.mktemp("synth"))


@pytest.mark.needs("yosys", "ortools")
@pytest.mark.must_run
@pytest.mark.parametrize("target", ORIGINS)
def test_every_layer_is_counted(target: str, design: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if target != "pynq-z2":
        later = tmp_path / "later.yaml"
        later.write_text(f"schema: cuvil-profile/1\nname: later\nextends: {target}\nsettings: {{bitstream: later}}\n")
        design = compiled(later, tmp_path)
    kept, page = tmp_path / "counted.cuvil", tmp_path / "small.html"
    assert main(["synth", str(design), "--json", "--html", str(page), "-o", str(kept)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["report", str(kept), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["synthesis"] == found
    assert found["origin"].startswith("yosys 0.")
    assert found["origin"].endswith(f" {ORIGINS[target]}")
    assert found["unknown_cells"] == {}
    layers = {row["layer"]: row["yosys"] for row in found["layers"]}
    lut = found["axes"][0]
    report = cuvil.load(design, interface="null").report
    assert set(layers) == {layer["name"] for layer in report["layers"]} | {"ports, forks, converters"}
    for name, use in layers.items():
        assert use[lut] > 0, name
        assert use["ff"] > 0, name
    for axis, used in found["total"]["yosys"].items():
        assert used == sum(use.get(axis, 0) for use in layers.values())
    assert found["total"]["analytic"][lut] > 0
    assert "Synthesis" in page.read_text(encoding="utf-8")


def test_without_yosys(design: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(programs, "find", lambda name: None)
    assert main(["synth", str(design)]) == 1
    error = capsys.readouterr().err
    assert "yosys" in error
    assert "apt-get install yosys" in error


# What each kind of memory and FIFO becomes: (module, parameters, cells that must be there).
BECOMES = [
    ("cuvil_fifo", {"WIDTH": 8, "DEPTH": 2}, {"FDRE"}),
    ("cuvil_fifo", {"WIDTH": 8, "DEPTH": 16, "KIND": '"srl"'}, {"SRL16E"}),
    ("cuvil_fifo", {"WIDTH": 8, "DEPTH": 32, "KIND": '"lutram"'}, {"RAM32M"}),
    ("cuvil_fifo", {"WIDTH": 18, "DEPTH": 1000, "KIND": '"bram"'}, {"RAMB18E1"}),
    ("cuvil_ram", {"WIDTH": 18, "DEPTH": 1024, "KIND": '"bram"'}, {"RAMB18E1"}),
    ("cuvil_ram", {"WIDTH": 8, "DEPTH": 32, "KIND": '"lutram"'}, {"RAM32M"}),
    ("cuvil_rom", {"WIDTH": 8, "DEPTH": 64, "KIND": '"bram"', "FILE": '"64.hex"'}, {"RAMB18E1"}),
    ("cuvil_rom", {"WIDTH": 8, "DEPTH": 512, "KIND": '"lutram"', "FILE": '"512.hex"'}, {"LUT6"}),
]
ECP5 = [
    ("cuvil_fifo", {"WIDTH": 8, "DEPTH": 32, "KIND": '"lutram"'}, {"TRELLIS_DPR16X4"}),
    ("cuvil_fifo", {"WIDTH": 18, "DEPTH": 1000, "KIND": '"bram"'}, {"DP16KD"}),
    ("cuvil_gearbox", {"BITS": 8, "A": 5, "B": 8, "COUNT": 40}, {"TRELLIS_FF"}),
]


def _tops(cases: list[tuple[str, dict[str, object], set[str]]]) -> bytes:
    """One instance of each, with all its ports at those of a top module."""
    parts, ports = [], ["input logic clk", "input logic rst"]
    for n, (module, parameters, _) in enumerate(cases):
        given = ", ".join(f".{k}({v})" for k, v in parameters.items())
        wires = [".clk(clk)"]
        for name, bits, way in _PORTS[module](parameters):
            ports.append(f"{way} logic [{bits - 1}:0] {name}{n}")
            wires.append(f".{name}({name}{n})")
        if module not in ("cuvil_ram", "cuvil_rom"):
            wires.append(".rst(rst)")
        parts.append(f"    {module} #({given}) dut{n} ({', '.join(wires)});\n")
    return f"module tops ({', '.join(ports)});\n{''.join(parts)}endmodule\n".encode()


def _stream(p: dict[str, object], into: int, out: int) -> list[tuple[str, int, str]]:
    return [("in_data", into, "input"), ("in_valid", 1, "input"), ("in_ready", 1, "output"),
            ("out_data", out, "output"), ("out_valid", 1, "output"), ("out_ready", 1, "input")]  # fmt: skip


_PORTS = {
    "cuvil_fifo": lambda p: _stream(p, p["WIDTH"], p["WIDTH"]),
    "cuvil_gearbox": lambda p: _stream(p, p["A"] * p["BITS"], p["B"] * p["BITS"]),
    "cuvil_ram": lambda p: [
        ("wen", 1, "input"), ("waddr", (p["DEPTH"] - 1).bit_length(), "input"), ("wdata", p["WIDTH"], "input"),
        ("ren", 1, "input"), ("raddr", (p["DEPTH"] - 1).bit_length(), "input"), ("rdata", p["WIDTH"], "output"),
    ],
    "cuvil_rom": lambda p: [
        ("en", 1, "input"), ("addr", (p["DEPTH"] - 1).bit_length(), "input"), ("data", p["WIDTH"], "output"),
    ],
}  # fmt: skip


@pytest.mark.needs("yosys")
@pytest.mark.must_run
@pytest.mark.parametrize(("command", "cases"), [(XC7.command, BECOMES), ("synth_ecp5", ECP5)])
def test_memories_become_what_was_asked_for(command: str, cases: list[tuple[str, dict[str, object], set[str]]]) -> None:
    every = {cell: {cell: 1.0} for _, _, cells in cases for cell in cells}
    words = {f"{n}.hex": "".join(f"{k * 151 % 256:x}\n" for k in range(n)).encode() for n in (64, 512)}
    found = synthesise({**library_files(), **words, "tops.sv": _tops(cases)}, "tops", Flow(command, every))
    for n, (module, parameters, cells) in enumerate(cases):
        use = found.instances[f"dut{n}"]
        assert cells <= set(use), (module, parameters, use)
        if "RAM" in "".join(cells) or "DP" in "".join(cells):
            assert sum(use[c] for c in cells) <= 4


@pytest.mark.needs("yosys")
def test_a_fault_in_a_source_is_shown() -> None:
    with pytest.raises(BuildFailed, match="nothing"):
        synthesise({"t.sv": b"module t(input logic clk); nothing u(.clk(clk)); endmodule\n"}, "t", XC7)


PRODUCTS = """
module logic_product(input clk, input signed [7:0] a, input signed [7:0] b, output logic signed [15:0] y);
  always_ff @(posedge clk) y <= a * (* use_dsp = "no" *) b;
endmodule
module block_product(input clk, input signed [7:0] a, input signed [7:0] b, output logic signed [15:0] y);
  always_ff @(posedge clk) y <= a * b;
endmodule
module both(input clk, input signed [7:0] a, input signed [7:0] b, output [15:0] y, output [15:0] z);
  logic_product p (.clk(clk), .a(a), .b(b), .y(y));
  block_product q (.clk(clk), .a(a), .b(b), .y(z));
endmodule
"""


@pytest.mark.needs("yosys")
@pytest.mark.must_run
def test_products_in_logic_take_no_multiplier_blocks() -> None:
    found = synthesise({"both.sv": PRODUCTS.encode()}, "both", XC7).instances
    assert found["p"].get("dsp", 0) == 0
    assert found["p"]["lut"] > 50
    assert found["q"]["dsp"] == 1

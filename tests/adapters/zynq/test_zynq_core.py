"""The profile's `flow: rtl`: a design's SystemVerilog as an IP core, its registers, its scripts, what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw import data
from cuvil_hw.adapters.streaming.analysis.streamed import packed_for, room_for, take_words, unpacked, words_of
from cuvil_hw.adapters.streaming.verilated.build import Module, Wires, build
from cuvil_hw.adapters.streaming.verilated.device import RtlSimulator
from cuvil_hw.adapters.streaming.verilated.model import Model
from cuvil_hw.adapters.streaming.verilated.record import FOLDER, read
from cuvil_hw.adapters.target_check import check_file
from cuvil_hw.adapters.zynq import hwh, shell
from cuvil_hw.adapters.zynq.ports import stream_ports
from cuvil_hw.adapters.zynq.simulator import Simulator
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.errors import DeviceError, ProfileError, Unsupported
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.artifact import Artifact

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.must_run
PROFILE = "schema: cuvil-profile/1\nname: core\nextends: pynq-z2\nsettings: {{flow: rtl{}}}\n"
CTRL, CYCLES, BATCHES = 0x00, 0x10, 0x14

# The core with the reset and the channels of the bench: 64 bits of data with tlast above.
_HARNESS = """
module harness (
    input logic clk, input logic rst,
    input logic [64:0] x_data, input logic x_valid, output logic x_ready,
    output logic [64:0] y_data, output logic y_valid, input logic y_ready,
    input logic [4:0] aw_data, input logic aw_valid, output logic aw_ready,
    input logic [35:0] w_data, input logic w_valid, output logic w_ready,
    input logic [4:0] ar_data, input logic ar_valid, output logic ar_ready,
    output logic [1:0] b_data, output logic b_valid, input logic b_ready,
    output logic [33:0] r_data, output logic r_valid, input logic r_ready
);
    %s core (
        .ap_clk(clk), .ap_rst_n(!rst),
        .s_axi_control_awaddr(aw_data), .s_axi_control_awvalid(aw_valid), .s_axi_control_awready(aw_ready),
        .s_axi_control_wdata(w_data[31:0]), .s_axi_control_wstrb(w_data[35:32]),
        .s_axi_control_wvalid(w_valid), .s_axi_control_wready(w_ready),
        .s_axi_control_bresp(b_data), .s_axi_control_bvalid(b_valid), .s_axi_control_bready(b_ready),
        .s_axi_control_araddr(ar_data), .s_axi_control_arvalid(ar_valid), .s_axi_control_arready(ar_ready),
        .s_axi_control_rdata(r_data[31:0]), .s_axi_control_rresp(r_data[33:32]),
        .s_axi_control_rvalid(r_valid), .s_axi_control_rready(r_ready),
        .%s_tdata(x_data[63:0]), .%s_tlast(x_data[64]), .%s_tkeep('1), .%s_tvalid(x_valid), .%s_tready(x_ready),
        .%s_tdata(y_data[63:0]), .%s_tlast(y_data[64]), .%s_tkeep(), .%s_tvalid(y_valid), .%s_tready(y_ready)
    );
endmodule
"""


def profile(folder: Path, more: str = "") -> Path:
    path = folder / "core.yaml"
    path.write_text(PROFILE.format(more))
    return path


@pytest.fixture(scope="module")
def design(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """(artifact, inputs, results by the simulator of its C++)."""
    folder = tmp_path_factory.mktemp("core")
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(12, 9)).astype(np.float32)
    model = torch.nn.Sequential(torch.nn.Linear(9, 6), torch.nn.ReLU(), torch.nn.Linear(6, 11)).eval()
    made = cuvil.compile(model, profile(folder), torch.tensor(x[:1]), x, "int8", name="small")
    made.save(folder / "small.cuvil")
    with made:
        return folder / "small.cuvil", x, made(x)


@pytest.mark.needs("torch", "ortools", "g++")
def test_the_project_is_a_core_and_no_hls(design: tuple[Path, Any, Any]) -> None:
    artifact = container.read(design[0])
    files = {n.removeprefix("sources/") for n in artifact.files if n.startswith("sources/")}
    assert {"ip.tcl", "shell.tcl", "design.tcl", "rtl/small_top_core.v", "rtl/cuvil_control.sv", "driver.py"} <= files
    assert not {"run_hls.tcl", "hls_config.cfg", "build.py"} & files
    assert artifact.manifest.info["flow"] == "rtl"
    assert "its core is SystemVerilog (settings.flow: rtl)" in artifact.files[container.REPORT].decode()


@pytest.fixture(scope="module")
def core(design: tuple[Path, Any, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, DeviceProgram]:
    """The whole core in Verilator, and the program that it is of."""
    folder = tmp_path_factory.mktemp("files")
    artifact: Artifact = container.read(design[0])
    container.extract(artifact, folder)
    manifest = artifact.manifest
    program = DeviceProgram("small", folder, manifest.device_inputs, manifest.device_outputs, manifest.info)
    _, module = read(program)
    (x,), (y,) = program.inputs, program.outputs
    top = (folder / FOLDER / "small_top_core.v").read_bytes()
    harness = _HARNESS % ("small_top_core", *[x.name] * 5, *[y.name] * 5)
    files = {**module.files, "core.v": top, "harness.sv": harness.encode()}
    ins = tuple(Wires.plain(name, bits) for name, bits in (("x", 65), ("aw", 5), ("w", 36), ("ar", 5)))
    outs = tuple(Wires.plain(name, bits) for name, bits in (("y", 65), ("b", 2), ("r", 34)))
    return Model(build(Module(files, "harness", ins, outs, {})), "small", folder / FOLDER), program


def _words(values: Sequence[int], size: int) -> np.ndarray:
    raw = b"".join(v.to_bytes(size, "little") for v in values)
    return np.frombuffer(raw, np.uint8).reshape(1, len(values), size)


class Bus:
    """Words in and out of the core's channels, after those before."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def move(self, x: Sequence[int] = (), aw: Sequence[int] = (), w: Sequence[int] = (), ar: Sequence[int] = (),
             y: int = 0, b: int = 0, r: int = 0, patience: int = 2000) -> tuple[list[list[int]], int]:  # fmt: skip
        ins = [_words(v, s) for v, s in ((x, 9), (aw, 1), (w, 5), (ar, 1))]
        outs = [np.zeros((1, n, s), np.uint8) for n, s in ((y, 9), (b, 1), (r, 5))]
        cycles = self.model.run(ins, outs, 1, True, patience)
        return [[int.from_bytes(row.tobytes(), "little") for row in a[0]] for a in outs], cycles

    def write(self, address: int, value: int, strobes: int = 15) -> None:
        self.move(aw=[address], w=[value | strobes << 32], b=1)

    def read(self, *addresses: int) -> list[int]:
        return self.move(ar=addresses, r=len(addresses))[0][2]


@pytest.mark.needs("torch", "ortools", "verilator", "g++", "make")
def test_the_core_gives_the_bits_of_the_design_and_counts_its_batches(core: tuple[Model, DeviceProgram]) -> None:
    model, program = core
    (port,) = program.inputs
    x = np.random.default_rng(1).integers(-128, 128, (7, *port.shape)).astype(np.int8)
    (wanted,), (same,) = (
        run_on(d, program, x) for d in (Simulator("pynq-z2", counting=False), RtlSimulator("pynq-z2", 1e8))
    )
    np.testing.assert_array_equal(same, wanted, "the adapter's two simulators")
    packed, results = packed_for(program, [x])
    given, taken = words_of(packed[0], 8), room_for(results[0], 8)
    stream = [int.from_bytes(w.tobytes(), "little") for w in given.reshape(-1, 8)]
    stream[-1] |= 1 << 64
    count = taken.shape[0] * taken.shape[1]
    bus = Bus(model)
    for seed, percent in ((0, 0), (1, 40), (2, 80)):
        model.restart(seed, percent)
        assert bus.read(CTRL, BATCHES) == [0x85, 0]
        (got, _, _), cycles = bus.move(x=stream, y=count)
        assert [w >> 64 for w in got] == [0] * (count - 1) + [1], "one packet"
        assert bus.read(CTRL, BATCHES, 0x08) == [0x85, 1, 0]
        if not percent:
            assert cycles - 3 <= bus.read(CYCLES)[0] <= cycles
        for row, word in zip(taken.reshape(-1, 8), got, strict=True):
            row[:] = np.frombuffer((word & (1 << 64) - 1).to_bytes(8, "little"), np.uint8)
        take_words(taken, results[0])
        np.testing.assert_array_equal(unpacked(program, results)[0], wanted)


def run_on(device: Any, program: DeviceProgram, x: np.ndarray) -> list[np.ndarray]:
    loaded = device.load(program)
    try:
        return list(loaded.run([x])[0])
    finally:
        loaded.close()


@pytest.mark.needs("torch", "ortools")
def test_wrapper_scripts_driver_and_handoff_have_one_map_of_channels(design: tuple[Path, Any, Any]) -> None:
    artifact = container.read(design[0])
    files = {n.removeprefix(container.SOURCES): d for n, d in artifact.files.items()}
    info, part = artifact.manifest.info, str(artifact.manifest.profile["part"])
    ports = stream_ports(info)
    wiring = hwh.wire(hwh.read(shell.standard_hwh(*ports, part, 1e8)), *ports, part)
    channels = {c.port.name: (c.port.direction, c.dma, c.base) for c in (*wiring.inputs, *wiring.outputs)}
    rows = re.findall(r"^    \{(\w+) (\w+) (\w+) (0x\w+)\}$", files["design.tcl"].decode(), re.MULTILINE)
    assert {name: (way, dma, int(base, 16)) for name, way, dma, base in rows} == channels
    driver = json.loads(files["ports.json"])["ports"]
    assert {p["name"]: (p["direction"], p["dma"]) for p in driver} == {n: c[:2] for n, c in channels.items()}
    core = files[f"{FOLDER}/small_top_core.v"].decode()
    found = {n: "in" if w == "input" else "out" for w, n in re.findall(r"(input|output) +wire +(\w+)_tvalid", core)}
    assert found == {n: c[0] for n, c in channels.items()}
    assert {p["name"]: p["row"] for p in driver} == {p.name: p.sample_bytes for side in ports for p in side}


@pytest.mark.needs("torch", "ortools", "verilator", "g++", "make")
def test_a_core_that_is_stopped_takes_no_words(core: tuple[Model, DeviceProgram]) -> None:
    model, program = core
    words = -(-program.inputs[0].shape[0] // 8) if len(program.inputs[0].shape) == 1 else 2
    bus = Bus(model)
    model.restart()
    bus.write(CTRL, 0, strobes=14)
    assert bus.read(CTRL) == [0x85], "a byte without its strobe stays"
    bus.write(CTRL, 0)
    assert bus.read(CTRL) == [0x04]
    with pytest.raises(DeviceError, match="stuck"):
        bus.move(x=[0] * words, patience=100)
    model.restart()
    bus.write(CTRL, 0)
    bus.write(CTRL, 0x81)
    bus.move(x=[0] * words)
    assert bus.read(CTRL) == [0x81], "a batch is inside"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (", style: temporal", "4: settings.flow: the temporal style's engine is C++ for Vitis HLS and has no System"),
        (", flows: hls", "4: settings.flows: "),
    ],
)
def test_what_a_profile_cannot_ask(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(said)):
        check_file(profile(tmp_path, more))
    assert check_file(profile(tmp_path)).settings["flow"] == "rtl"


@pytest.mark.needs("torch", "ortools")
def test_floats_on_the_fabric_are_refused(tmp_path: Path) -> None:
    x = torch.ones((1, 4))
    with pytest.raises(
        Unsupported, match=r"works on floats, and the SystemVerilog of core \(settings.flow: rtl\) computes in"
    ):
        cuvil.compile(torch.nn.Linear(4, 4), profile(tmp_path), x, precision="float32", interface="null")


@pytest.mark.needs("_tkinter")
def test_the_packaging_script_takes_every_source(tmp_path: Path) -> None:
    """Vivado's commands, in order, with the words that a real Tcl gives them."""
    tkinter = pytest.importorskip("tkinter")
    (tmp_path / "rtl").mkdir()
    for name in ("net_top.sv", "net_top_core.v", "table.hex", "design.json"):
        (tmp_path / "rtl" / name).write_text("")
    (tmp_path / "design.tcl").write_text("set project net\nset top net_top\nset part xc7z020clg400-1\n")
    calls: list[list[str]] = []
    tcl = tkinter.Tcl()

    def unknown(*words: Any) -> str:
        calls.append([str(w) for w in words])
        return "rtl/table.hex" if calls[-1] == ["get_files", "-quiet", "*.hex"] else str(words[-1])

    tcl.createcommand("unknown", unknown)
    tcl.eval(f"proc exit {{args}} {{}}; cd {{{tmp_path}}}")
    tcl.eval((data.folder("rtl") / "zynq" / "ip.tcl").read_text())
    (added,) = [words for words in calls if words[0] == "add_files"]
    assert set(added[1].split()) == {"rtl/net_top.sv", "rtl/net_top_core.v", "rtl/table.hex"}
    said = [" ".join(words) for words in calls]
    assert "set_property file_type Memory File rtl/table.hex" in said
    assert any(line.startswith("set_property top net_top_core ") for line in said)
    assert any(line.startswith("ipx::package_project -root_dir ip -vendor cuvil -library rtl ") for line in said)
    assert said.index("ipx::save_core ipx::current_core") > said.index("set_property name net_top ipx::current_core")

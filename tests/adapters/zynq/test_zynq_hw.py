"""What a board needs besides pynq: how arrays cross ports, .hwh files and their checks, and the shell's script. The
registries of bitstreams are tested beside, the driver itself in tests/pynq."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from string import Template

import numpy as np
import pytest

from cuvil_hw import data
from cuvil_hw.adapters.zynq import hwh, shell
from cuvil_hw.adapters.zynq.device import open_device
from cuvil_hw.adapters.zynq.hw import decoded
from cuvil_hw.adapters.zynq.ports import StreamPort, design_digest, stream_ports
from cuvil_hw.adapters.zynq.project import stream_words
from cuvil_hw.adapters.zynq.record import heading
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.errors import ArtifactError, CuvilError, DeviceError, ToolNotFound

PART = "xc7z020clg400-1"
DESIGN = hashlib.sha256(b"design").hexdigest()
INPUT = StreamPort("input", "in", (1, 3, 5, 5), "i8", (0, 2, 3, 1), 64)
SCORES = StreamPort("scores", "out", (1, 12), "i16", (0, 1), 64)
PORTS = ((INPUT,), (SCORES,))


def generated(**options: bool) -> bytes:
    return shell.standard_hwh(*PORTS, PART, 1e8, **options)


def wired(text: bytes, part: str = PART) -> hwh.Wiring:
    return hwh.wire(hwh.read(text), *PORTS, part)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("shape", "dtype"), [((1, 3, 5, 7), "i8"), ((1, 5), "i16"), ((1, 4, 3), "u4"), ((), "i32")])
def test_packing_is_what_the_golden_vectors_are(bits: int, shape: tuple[int, ...], dtype: str) -> None:
    order = tuple(range(len(shape))) if len(shape) < 3 else (0, *range(2, len(shape)), 1)
    port = StreamPort("p", "in", shape, dtype, order, bits)
    container = {"i8": np.int8, "i16": np.int16, "u4": np.uint8, "i32": np.int32}[dtype]
    samples = np.random.default_rng(1).integers(0, 15, (4, *shape)).astype(container)
    rows = np.zeros((6, port.sample_bytes + 3), np.uint8)
    port.pack(samples, rows)
    for sample, row in zip(samples, rows, strict=False):
        words = row[: port.sample_bytes].view(f"<u{bits // 8}").astype(np.uint64)
        assert np.array_equal(words, stream_words(sample, dtype, bits, port.order))
    assert np.array_equal(port.unpack(rows[:4]), samples)
    assert port.words == len(words)


def test_the_design_digest_is_of_what_decides_the_hardware() -> None:
    info = {"top": "top", "axis_bits": 64, "inputs": [], "outputs": [], "layers": ["a"]}
    files = {"src/a.cpp": b"1", "README.md": b"2", "tb/golden.txt": b"3"}
    digest = design_digest(files, info)
    assert digest == design_digest({**files, "README.md": b"x", "tb/golden.txt": b"y"}, info)
    assert digest != design_digest({**files, "src/a.cpp": b"x"}, info)
    assert digest == design_digest({**files, "src/a.cpp": heading("0" * 64).encode() + b"1"}, info)
    assert digest != design_digest(files, {**info, "axis_bits": 32})
    with pytest.raises(ArtifactError, match="record for the device is wrong: inputs is missing"):
        stream_ports({"axis_bits": 64})


def test_the_generated_hwh_is_wired() -> None:
    wiring = wired(generated())
    (source,), (sink,) = wiring.inputs, wiring.outputs
    assert (source.dma, source.base, source.reach, source.align) == ("dma_input", 0x40400000, (0, 0x1FFFFFFF), 8)
    assert (sink.dma, sink.base, sink.most_bytes) == ("dma_scores", 0x40410000, (1 << 26) - 1)
    assert not wiring.started_by_register
    assert wired(generated(started_by_register=True)).started_by_register


# What is changed in the generated file (a pattern and its replacement), and what is said of it.
FAULTS = [
    ("0x4041FFFF", "0x4040FFFF", "dma_scores: its address range 0x40410000–0x4040ffff (of"),
    ('"0x40410000"', '"0x40408000"', "dma_input at 0x40400000–0x4040ffff overlaps dma_scores at"),
    ('include_mm2s" VALUE="1"', 'include_mm2s" VALUE="0"', "dma_input: has no MM2S channel"),
    ('c_include_s2mm" VALUE="1"', 'other" VALUE="1"', "dma_scores: has no S2MM channel"),
    ('mm2s_tdata_width" VALUE="64"', 'mm2s_tdata_width" VALUE="32"', "dma_input: its MM2S stream is 32 bits wide"),
    ('NUM_BYTES" VALUE="8"', 'NUM_BYTES" VALUE="4"', "accel: input is 32 bits wide, the design's streams have 64"),
    ("7z020clg400", "7z010clg400", f"processing_system7_0: is on part 7z010clg4001, the design is for {PART}"),
    ('include_sg" VALUE="0"', 'include_sg" VALUE="1"', "dma_input: has c_include_sg set"),
    (
        'length_width" VALUE="26"',
        'length_width" VALUE="4"',
        "dma_input: moves at most 15 bytes, a sample of input has 80",
    ),
    ('length_width" VALUE="26"', 'length_width" VALUE="x"', "dma_input: parameter c_sg_length_width is 'x', not a"),
    ('BUSNAME="accel_scores" NAME="S_AXIS', 'BUSNAME="loose" NAME="S_AXIS', "accel: scores leads to nothing"),
    ('BUSNAME="accel_scores"', 'BUSNAME="accel_input"', "accel: input leads to nothing, not to an AXI DMA"),
    (
        '"processing_system7"',
        '"microblaze"',
        "one processor (processing_system7 or zynq_ultra_ps_e) is needed, there are 0",
    ),
    ('NAME="scores"', 'NAME="score"', "must have the stream ports input, scores of the design; there is none"),
    ('<MEMRANGE[^>]*INSTANCE="dma_scores"[^>]*>', "", "dma_scores: has no address"),
    ("<MEMRANGE[^>]*M_AXI_S2MM[^>]*>", "", "dma_scores: M_AXI_S2MM reaches no memory"),
]


@pytest.mark.parametrize(("old", "new", "said"), FAULTS)
def test_faults_in_a_hwh_name_the_instance(old: str, new: str, said: str) -> None:
    changed, times = re.subn(old, new, generated().decode())
    assert times
    with pytest.raises(DeviceError, match=re.escape(said)):
        wired(changed.encode())


def test_every_fault_is_listed_at_once() -> None:
    text = (
        generated().decode().replace("0x4041FFFF", "0x4040FFFF").replace('micro_dma" VALUE="0"', 'micro_dma" VALUE="1"')
    )
    with pytest.raises(DeviceError) as caught:
        wired(text.encode(), "xc7z010clg400-1")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()[1:]] == [
        "  - processing_system7_0", "  - dma_scores", "  - dma_input", "  - dma_scores",
    ]  # fmt: skip


def test_reserved_names_and_capitals_of_other_tools() -> None:
    text = generated().decode().replace('NAME="input"', 'NAME="input_r"').replace('NAME="scores"', 'NAME="SCORES"')
    assert wired(text.encode()).inputs[0].dma == "dma_input"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<a/>",
        b"<EDKSYSTEM/>",
        b"<!DOCTYPE a []><EDKSYSTEM/>",
        generated()[:-9],
        generated().replace(b"0x404", b"zz"),
    ],
)
def test_what_is_no_hwh_is_refused(text: bytes) -> None:
    with pytest.raises(DeviceError, match=r"not a hardware handoff file|document type; refused"):
        hwh.read(text)


def test_pynq_gets_what_it_misses() -> None:
    text = generated().decode()
    bare = re.sub(r"<PARAMETER NAME=\"PSU__\w+\" VALUE=\"\w+\" />", "", text).replace('"c_', '"C_')
    bare = bare.replace(
        '<PARAMETER NAME="PCW_FPGA_FCLK0',
        '<PARAMETER NAME="PCW_ACT_FPGA0_PERIPHERAL_FREQMHZ" VALUE="142.8"/><PARAMETER NAME="PCW_FPGA_FCLK0',
    )
    amended = hwh.read(hwh.for_pynq(bare.encode(), 1e8))
    processor = amended.instances["processing_system7_0"].parameters
    assert [processor[f"PSU__CRL_APB__PL{n}_REF_CTRL__ACT_FREQMHZ"] for n in range(4)] == ["142.8", "100", "100", "100"]
    assert "c_include_mm2s" in amended.instances["dma_input"].parameters
    assert hwh.wire(amended, *PORTS, PART) == wired(text.encode())


def test_ultrascale_has_a_shell_and_versal_has_none() -> None:
    text = shell.standard_hwh(*PORTS, "xck26-sfvc784-2LV-c", 2.5e8)
    wiring = hwh.wire(hwh.read(text), *PORTS, "xck26-sfvc784-2LV-c")
    assert (wiring.inputs[0].base, wiring.inputs[0].reach) == (0xA0000000, (0, 0x7FFFFFFF))
    with pytest.raises(CuvilError, match="xcvm1802-vsva2197-2MP-e-S has no standard shell"):
        shell.standard_hwh(*PORTS, "xcvm1802-vsva2197-2MP-e-S", 2.5e8)


def _vivado(folder: Path, part: str, flow: str = "hls") -> list[list[str]]:
    """Every Vivado command of shell.tcl, in order, with the words that Tcl gives it; run by a real Tcl."""
    templates = data.folder("hls") / "project"
    values = {"project": "net", "top": "top", "part": part, "bits": "64", "clock_mhz": "100"}
    values |= shell.tcl_values(*PORTS, part, "tul.com.tw:pynq-z2:part0:1.0", DESIGN, flow)
    (folder / "design.tcl").write_text(Template((templates / "design.tcl").read_text()).substitute(values))
    (folder / "build").mkdir()
    tkinter = pytest.importorskip("tkinter")
    calls: list[list[str]] = []
    tcl = tkinter.Tcl()
    answers = {"get_property": "100%", "get_board_parts": "known", "glob": "shell.hwh"}

    def unknown(*words: str) -> str:
        calls.append([str(w) for w in words])
        if words[0] == "get_property":
            return "0.1" if words[1] == "STATS.WNS" else "100%"
        if words[0] in ("get_bd_pins", "get_bd_intf_pins", "get_bd_addr_segs"):
            return "" if words[-1] == "accel/input" else str(words[-1])
        return str(words[-1]) if words[0] == "create_bd_cell" else answers.get(str(words[0]), "")

    tcl.createcommand("unknown", unknown)
    tcl.eval("proc exit {args} {}; proc file {args} {return [lindex $args end]}; proc glob {args} {return shell.hwh}")
    tcl.eval(f"cd {{{folder}}}")
    tcl.eval((templates / "shell.tcl").read_text())
    return calls


@pytest.mark.needs("_tkinter")
def test_the_vivado_script_builds_what_the_hwh_says(tmp_path: Path) -> None:
    calls = _vivado(tmp_path, PART)
    made = {words[-1] for words in calls if words[0] == "create_bd_cell"}
    instances = hwh.read(generated()).instances
    assert set(instances) <= made
    joined = [set(words[1:]) for words in calls if words[0] == "connect_bd_intf_net"]
    for one, other in (
        ("dma_input/M_AXIS_MM2S", "accel/input_r"),  # the plain name is taken by Verilog
        ("accel/scores", "dma_scores/S_AXIS_S2MM"),
        ("registers/M00_AXI", "dma_input/S_AXI_LITE"),
        ("registers/M01_AXI", "dma_scores/S_AXI_LITE"),
        ("dma_input/M_AXI_MM2S", "ddr/S00_AXI"),
        ("dma_scores/M_AXI_S2MM", "ddr/S01_AXI"),
        ("processing_system7_0/M_AXI_GP0", "registers/S00_AXI"),
        ("ddr/M00_AXI", "processing_system7_0/S_AXI_HP0"),
    ):
        assert {one, other} in joined
    placed = {w[-1].partition("/")[0]: int(w[2], 16) for w in calls if w[0] == "assign_bd_address" and len(w) > 1}
    wiring = wired(generated())
    assert placed == {c.dma: c.base for c in (*wiring.inputs, *wiring.outputs)}
    settings = {w[-1]: dict(zip(w[2].split()[::2], w[2].split()[1::2], strict=True))
                for w in calls if w[:2] == ["set_property", "-dict"]}  # fmt: skip
    assert settings["dma_input"]["CONFIG.c_include_mm2s"] == "1"
    assert settings["dma_input"]["CONFIG.c_include_s2mm"] == "0"
    assert settings["dma_scores"]["CONFIG.c_m_axi_s2mm_data_width"] == "64"
    nets = {w[-1] for w in calls if w[0] == "connect_bd_net"}
    assert {"accel/ap_start", "accel/ap_clk", "accel/ap_rst_n", "dma_input/m_axi_mm2s_aclk",
            "dma_scores/m_axi_s2mm_aclk", "dma_scores/axi_resetn", "registers/aclk", "ddr/aresetn",
            "processing_system7_0/S_AXI_HP0_ACLK"} <= nets  # fmt: skip
    assert (tmp_path / "build" / "user_id.xdc").read_text() == (
        f"set_property BITSTREAM.CONFIG.USERID 32'h{DESIGN[:8]} [current_design]\n"
    )


@pytest.mark.needs("_tkinter")
def test_the_vivado_script_takes_a_core_of_systemverilog(tmp_path: Path) -> None:
    calls = _vivado(tmp_path, PART, "rtl")
    cores = [w for w in calls if w[0] == "create_bd_cell" and w[-1] == "accel"]
    assert cores == [["create_bd_cell", "-type", "ip", "-vlnv", "cuvil:rtl:top", "accel"]]
    assert not [w for w in calls if "accel/ap_start" in w]
    joined = [set(words[1:]) for words in calls if words[0] == "connect_bd_intf_net"]
    assert {"registers/M02_AXI", "accel/s_axi_control"} in joined
    placed = {w[-1]: int(w[2], 16) for w in calls if w[0] == "assign_bd_address" and len(w) > 1}
    core = shell.addresses([*PORTS[0], *PORTS[1]], shell.ZYNQ_7000)[shell.CORE]
    assert placed["accel/s_axi_control/*"] == core
    assert ["set_property", "-dict", "CONFIG.NUM_SI 1 CONFIG.NUM_MI 3", "registers"] in calls


@pytest.mark.needs("_tkinter")
def test_the_vivado_script_refuses_other_families(tmp_path: Path) -> None:
    tkinter = pytest.importorskip("tkinter")
    with pytest.raises(tkinter.TclError, match="this script knows Zynq-7000 and Zynq UltraScale"):
        _vivado(tmp_path, "xcvm1802-vsva2197-2MP-e-S")


def test_without_pynq(tmp_path: Path) -> None:
    device = open_device({"name": "pynq-z2", "part": PART, "clock_hz": 1e8}, "hw")
    assert device.interface == "hw"
    assert "Python package pynq not found" in str(device.usable())
    with pytest.raises(ToolNotFound, match=r"drive pynq-z2 \(board\); on the board: pip install 'pynq>=3.1.2,<5'"):
        device.load(DeviceProgram("net", tmp_path, (), (), {}))


def test_status_registers_in_words() -> None:
    assert decoded(0x0) == "0x00000000 (busy)"
    assert decoded(0x1002) == "0x00001002 (idle, an earlier transfer completed)"
    assert decoded(0x11) == "0x00000011 (halted, internal error (a packet longer than its buffer, or length 0))"

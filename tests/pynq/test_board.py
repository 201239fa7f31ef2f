"""The board driver, unchanged, over a simulated board: the real pynq package, our .hwh, our AXI DMA model, and the
emitted HLS C++ behind it."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pynq
import pynqmetadata
import pytest
from pynq.lib.dma import DMA

import cuvil
from cuvil_hw.adapters.zynq import bitstreams, hwh, shell
from cuvil_hw.adapters.zynq.hw import Board
from cuvil_hw.adapters.zynq.ports import StreamPort
from cuvil_hw.contract.record import seal
from cuvil_hw.runtime import artifact as container
from sim.pynq.board import SimulatedBoard, bit_file
from sim.pynq.setting import active, design_of, register
from tests.pynq.conftest import Case, case


def results(executable: cuvil.Executable, inputs: list[np.ndarray]) -> list[np.ndarray]:
    return list(executable.run(*inputs).outputs)


def same(got: list[np.ndarray], want: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(("name", "arch"), [("two_ports-pynq-z2", "armv7l"), ("two_ports-kv260", "aarch64")])
def test_overlay_loads_from_our_hwh(artifacts: Path, tmp_path: Path, name: str, arch: str) -> None:
    artifact = case(artifacts, name).artifact
    digest, design = design_of(artifact)
    bit = bit_file(b"0123", design.part, "shell_wrapper", int(digest[:8], 16))
    path = tmp_path / "design.bit"
    path.write_bytes(bit)
    clock_hz = float(artifact.manifest.profile["clock_hz"])
    path.with_suffix(".hwh").write_bytes(shell.standard_hwh(design.inputs, design.outputs, design.part, clock_hz))
    with active(SimulatedBoard(arch)) as board:
        board.designs[hashlib.sha256(bit).hexdigest()] = design
        overlay = pynq.Overlay(str(path))
        assert overlay.is_loaded()
        for port in (*design.inputs, *design.outputs):
            dma = getattr(overlay, shell.dma_name(port))
            assert isinstance(dma, DMA)
            channels = (dma.sendchannel, dma.recvchannel)
            assert [c is not None for c in channels] == [port.direction == "in", port.direction == "out"]
        assert pynq.Clocks.fclk0_mhz == pytest.approx(clock_hz / 1e6, rel=0.01)
        # pynq's own driver of the DMA moves a sample, without ours.
        stock = [(getattr(overlay, shell.dma_name(p)), pynq.allocate((p.sample_bytes,), np.uint8), p)
                 for p in (*design.inputs, *design.outputs)]  # fmt: skip
        for dma, buffer, port in stock:
            (dma.sendchannel if port.direction == "in" else dma.recvchannel).transfer(buffer)
        for dma, _, port in stock:
            (dma.sendchannel if port.direction == "in" else dma.recvchannel).wait()
            assert port.direction == "in" or dma.recvchannel.transferred == port.payload_bytes


@pytest.mark.parametrize("started_by_register", [False, True])
def test_kws_batch_of_64_through_dma(board: SimulatedBoard, kws: Case, started_by_register: bool) -> None:
    register(board, kws.artifact, started_by_register=started_by_register)
    with cuvil.load(kws.path, "hw") as executable:
        run = executable.run(*kws.inputs)
        assert run.samples == 64
        assert run.device_seconds > 0
        assert same(list(run.outputs), kws.expected)
    assert board.transfers == 2  # one a port for the whole batch
    assert len({tuple(row) for row in kws.expected[0]}) > 32  # inputs that tell designs apart


def test_a_wrong_bit_on_the_wire_is_seen(board: SimulatedBoard, kws: Case) -> None:
    register(board, kws.artifact)
    board.faults.corrupt["v1"] = 1
    with cuvil.load(kws.path, "hw") as executable:
        got = results(executable, kws.inputs)
    assert not np.array_equal(got[0][0], kws.expected[0][0])
    assert np.array_equal(got[0][1:], kws.expected[0][1:])


def test_batches_larger_than_the_buffers_and_reuse(
    board: SimulatedBoard, kws: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuvil_hw.adapters.zynq.hw._CHUNK_SAMPLES", 24)
    register(board, kws.artifact)
    with cuvil.load(kws.path, "hw") as executable:
        assert same(results(executable, kws.inputs), kws.expected)
        used = board._free
        assert same(results(executable, [a[:5] for a in kws.inputs]), [a[:5] for a in kws.expected])
        assert same(results(executable, [a[:1] for a in kws.inputs]), [a[:1] for a in kws.expected])
        assert results(executable, [a[:0] for a in kws.inputs])[0].shape == (0, 12)
        assert same(results(executable, kws.inputs), kws.expected)
        assert board._free == used


def test_several_inputs_and_outputs(board: SimulatedBoard, two_ports: Case) -> None:
    register(board, two_ports.artifact)
    with cuvil.load(two_ports.path, "hw") as executable:
        assert same(results(executable, two_ports.inputs), two_ports.expected)


def test_threads_take_turns(board: SimulatedBoard, kws: Case) -> None:
    register(board, kws.artifact)
    with cuvil.load(kws.path, "hw") as executable:
        right: dict[int, bool] = {}

        def work(n: int) -> None:
            part = slice(8 * n, 8 * n + 8)
            given, want = ([a[part] for a in arrays] for arrays in (kws.inputs, kws.expected))
            right[n] = all(same(results(executable, given), want) for _ in range(3))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert right == dict.fromkeys(range(4), True)


def test_two_designs_share_the_fabric(board: SimulatedBoard, kws: Case, two_ports: Case) -> None:
    first = register(board, kws.artifact, content=b"aaaa")
    second = register(board, two_ports.artifact, content=b"bbbb")
    with cuvil.load(kws.path, "hw") as a, cuvil.load(two_ports.path, "hw") as b:
        assert same(results(a, kws.inputs), kws.expected)
        assert same(results(b, two_ports.inputs), two_ports.expected)
        assert same(results(a, kws.inputs), kws.expected)
    assert board.programmed == [first.bit, second.bit, first.bit, second.bit, first.bit]


def test_a_bitstream_overwritten_at_its_path_is_noticed(board: SimulatedBoard, home: Path, kws: Case) -> None:
    entry = register(board, kws.artifact)
    path = home / "files" / f"{entry.bit}.bit"
    good = path.read_bytes()
    other = bit_file(b"4567", "xc7z020clg400-1", "shell_wrapper")
    board.designs[hashlib.sha256(other).hexdigest()] = board.designs[entry.bit]
    with cuvil.load(kws.path, "hw") as executable:
        path.write_bytes(other)
        # What runs is on the fabric already; before anything is programmed again the file is read again.
        assert same(results(executable, kws.inputs), kws.expected)
        board.timestamp = "somebody else's"
        with pytest.raises(cuvil.DeviceError, match=re.escape(f"{path}: was changed after it was registered")):
            results(executable, kws.inputs)
        assert board.programmed == [entry.bit]
        path.write_bytes(good)
        assert same(results(executable, kws.inputs), kws.expected)
    hardware = home / "files" / f"{entry.hwh}.hwh"
    hardware.write_bytes(hardware.read_bytes().replace(b"0x40400000", b"0x40500000"))
    with pytest.raises(cuvil.DeviceError, match=re.escape(f"{hardware}: was changed")):
        cuvil.load(kws.path, "hw")


def test_a_new_build_of_a_design_replaces_the_old_one(board: SimulatedBoard, kws: Case) -> None:
    old = register(board, kws.artifact, content=b"old.")
    with cuvil.load(kws.path, "hw") as executable:
        assert same(results(executable, kws.inputs), kws.expected)
    new = register(board, kws.artifact, content=b"new.")
    with cuvil.load(kws.path, "hw") as executable:
        assert same(results(executable, kws.inputs), kws.expected)
    assert old.key == new.key
    assert board.programmed == [old.bit, new.bit]
    assert bitstreams.registered() == (new,)


INPUT = "input v0 (channel MM2S of dma_v0 at 0x40400000): "
OUTPUT = "output v1 (channel S2MM of dma_v1 at 0x40410000): "
BUSY = "not done, status 0x00000000 (busy)"


@pytest.mark.parametrize(
    ("port", "words", "alone"),
    [
        ("v0", 62 * 3 + 5, "passes after programming again"),
        ("v0", 0, f", after programming again: stalled for 1 s: {INPUT}62 words (1 × 62) {BUSY}; the design doesn't"),
        ("v1", 4, "passes after programming again"),
        ("v1", 0, f", after programming again: stalled for 1 s: {OUTPUT}2 words (1 × 2) {BUSY}; the design took"),
    ],
)
def test_a_stalled_channel_is_named_in_time(
    board: SimulatedBoard, kws: Case, port: str, words: int, alone: str
) -> None:
    register(board, kws.artifact)
    board.faults.stop_words[port] = words
    with cuvil.load(kws.path, "hw") as executable:
        start = time.monotonic()
        with pytest.raises(cuvil.DeviceError) as caught:
            results(executable, kws.inputs)
        assert time.monotonic() - start < 4
        said = str(caught.value)
        assert re.search(r"in samples 0 to 63 of 64: stalled for 1[.\d]* s: input v0 \(channel MM2S of dma_v0 at", said)
        assert f"{INPUT}3968 words (64 × 62) {BUSY}; the design doesn't take the words" in said
        assert f"{OUTPUT}128 words (64 × 2) {BUSY}" in said
        assert f"The first of them alone{alone if alone.startswith(',') else ' ' + alone}" in said
        # The fabric is programmed afresh, so the next run works once the fault is gone.
        board.faults.stop_words.clear()
        assert same(results(executable, kws.inputs), kws.expected)
    assert len(board.programmed) == 3


def test_of_two_outputs_the_stalled_one_is_named(board: SimulatedBoard, two_ports: Case) -> None:
    entry = register(board, two_ports.artifact)
    first, second = (p.name for p in board.designs[entry.bit].outputs)
    board.faults.stop_words[second] = 0
    with cuvil.load(two_ports.path, "hw") as executable, pytest.raises(cuvil.DeviceError) as caught:
        results(executable, two_ports.inputs)
    _, _, alone = str(caught.value).partition("The first of them alone")
    head, _, rest = alone.partition("\n")
    assert f"output {second} (channel S2MM of dma_{second}" in head
    assert f"output {first}" not in head
    assert f"output {first} (channel S2MM of dma_{first}" in rest


def test_buffers_beyond_the_reach_of_a_dma_are_refused(home: Path, kws: Case) -> None:
    with active(SimulatedBoard(memory_at=0x1_0000_0000)) as board:
        register(board, kws.artifact)
        said = "dma_v0: its buffer was placed at 0x100000000, but it reaches 0x0 to"
        with pytest.raises(cuvil.DeviceError, match=said):
            cuvil.load(kws.path, "hw")


def test_an_error_of_the_dma_is_decoded(board: SimulatedBoard, kws: Case) -> None:
    register(board, kws.artifact)
    with cuvil.load(kws.path, "hw") as executable:
        board.memory.base += 1 << 24  # the buffers are gone: no memory answers at their address
        said = r"dma_v1 at 0x40410000\) failed in a batch of 64; .* \(halted, decode error"
        with pytest.raises(cuvil.DeviceError, match=said):
            results(executable, kws.inputs)


@pytest.mark.parametrize(
    ("packet_bytes", "said"),
    [
        (8, "ended after 8 bytes where a batch of 64 has 1024: the bitstream sets `last` early"),
        (16, "ended after 16 bytes where a batch of 64 has 1024: the bitstream sets `last` early"),
        (1032, "failed in a batch of 64; 128 words (64 × 2) not done, status 0x00000011 (halted, internal error ("),
    ],
)
def test_packets_that_are_no_sample(board: SimulatedBoard, kws: Case, packet_bytes: int, said: str) -> None:
    register(board, kws.artifact)
    board.faults.packet_bytes["v1"] = packet_bytes
    with cuvil.load(kws.path, "hw") as executable:
        with pytest.raises(
            cuvil.DeviceError, match=re.escape(f"output v1 (channel S2MM of dma_v1 at 0x40410000) {said}")
        ):
            results(executable, kws.inputs)
        board.faults.packet_bytes.clear()
        assert same(results(executable, kws.inputs), kws.expected)


def test_designs_that_end_every_sample_go_one_by_one(board: SimulatedBoard, kws: Case, tmp_path: Path) -> None:
    """A record needn't say that a packet may carry many samples."""
    manifest = kws.artifact.manifest
    info = {key: value for key, value in manifest.info.items() if key not in ("packets", "cycles")}
    ends = (manifest.device_inputs, manifest.device_outputs)
    before, after = seal(manifest.info, *ends).encode(), seal(info, *ends).encode()
    files = {name: bytes(content).replace(before, after) for name, content in kws.artifact.files.items()}
    old = replace(kws.artifact, manifest=replace(manifest, info=info), files=files)
    container.write(tmp_path / "old.cuvil", old)
    register(board, old)
    with cuvil.load(tmp_path / "old.cuvil", "hw") as executable:
        assert same(results(executable, [a[:5] for a in kws.inputs]), [a[:5] for a in kws.expected])
    assert board.transfers == 2 * 5
    # A bitstream that ends every sample, for a program that expects packets: noticed.
    register(board, kws.artifact)
    for design in board.designs.values():
        design.packets = False
    with cuvil.load(kws.path, "hw") as executable, pytest.raises(cuvil.DeviceError, match="sets `last` early"):
        results(executable, kws.inputs)


def test_the_fabric_runs_at_the_clock_that_it_was_built_for(board: SimulatedBoard, kws: Case) -> None:
    register(board, kws.artifact)
    board._plain.update(dict.fromkeys((4160749824, 4160749828, 4160749832), 30 << 12))  # PLLs of 1500 MHz
    with cuvil.load(kws.path, "hw") as executable:
        assert pynq.Clocks.fclk0_mhz == pytest.approx(100, rel=0.01)
        assert same(results(executable, kws.inputs), kws.expected)


def test_another_clock_than_the_profiles_is_said(
    board: SimulatedBoard, kws: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(board, kws.artifact, clock_hz=50e6)
    said = "runs at 50 MHz where the profile says 100: expect 0.50 times the report's throughput"
    with pytest.warns(UserWarning, match=said), cuvil.load(kws.path, "hw") as executable:
        assert same(results(executable, kws.inputs), kws.expected)
    stuck = type("Stuck", (), {"fclk0_mhz": property(lambda _: 150.0, lambda _, value: None)})()
    monkeypatch.setattr(pynq, "Clocks", stuck)
    said = r"fabric clock 0 runs at 150 MHz and can't be set to the 50 MHz that the bitstream was built for"
    with pytest.raises(cuvil.DeviceError, match=said):
        cuvil.load(kws.path, "hw")


def test_a_slow_process_is_no_stall(board: SimulatedBoard, kws: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    register(board, kws.artifact)
    board.faults.looks = 1
    ahead = iter(range(0, 10_000, 5))  # every look at the clock is five seconds after the one before
    monkeypatch.setattr("cuvil_hw.adapters.zynq.on_fabric.monotonic", lambda: float(next(ahead)))
    with cuvil.load(kws.path, "hw") as executable:
        assert same(results(executable, kws.inputs), kws.expected)


def test_without_a_registered_bitstream(board: SimulatedBoard, kws: Case) -> None:
    said = r"no bitstream is registered for its design \w{12}… on xc7z020clg400-1"
    with pytest.raises(cuvil.DeviceError, match=said):
        cuvil.load(kws.path, "hw")
    assert board.programmed == []


def test_a_bitstream_that_the_board_refuses(board: SimulatedBoard, kws: Case) -> None:
    entry = register(board, kws.artifact)
    board.designs.clear()
    with pytest.raises(cuvil.DeviceError, match=f"refused the bitstream {entry.bit[:12]}….*configuration logic"):
        cuvil.load(kws.path, "hw")


def test_stale_metadata_of_pynq_is_noticed(board: SimulatedBoard, kws: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = register(board, kws.artifact)
    design = board.designs[entry.bit]
    stale = shell.standard_hwh(design.inputs, design.outputs, design.part, 1e8).replace(b"0x4040", b"0x4050")
    parse = board.get_bitfile_metadata

    def cached(name: str, partial: bool = False) -> object:
        Path(name).with_suffix(".hwh").write_bytes(stale)
        return parse(name, partial)

    monkeypatch.setattr(board, "get_bitfile_metadata", cached)
    with pytest.raises(cuvil.DeviceError, match=r"dma_v0: pynq has it at 0x40500000, the \.hwh at 0x40400000"):
        cuvil.load(kws.path, "hw")


def test_usable_says_whether_there_is_a_board(board: SimulatedBoard, kws: Case) -> None:
    found = Board(kws.artifact.manifest.profile)
    assert "finds no board" in str(found.usable())


def real_hwh(name: str) -> bytes:
    """A .hwh that Vivado wrote, as pynqmetadata carries it."""
    return (Path(pynqmetadata.__file__).parent / "tests" / "hwhs" / name).read_bytes()


def test_a_hwh_of_vivado_is_read_through_its_converters() -> None:
    hardware = hwh.read(real_hwh("resizer.hwh"))
    assert (hardware.name, hardware.part, hardware.tool) == ("resizer", "7z020clg4001", "Vivado 2019.2")
    ports = [StreamPort(n, way, (4,), "u8", (0,), 24) for n, way in (("src", "in"), ("dst", "out"))]
    # The core's 24 bits are converted to the DMA's 32 on the way: found, and refused for that only.
    with pytest.raises(cuvil.DeviceError) as caught:
        hwh.wire(hardware, ports[:1], ports[1:], "xc7z020clg400-1")
    assert str(caught.value).splitlines()[1:] == [
        "  - axi_dma_0: its MM2S stream is 32 bits wide, src has 24",
        "  - axi_dma_0: its S2MM stream is 32 bits wide, dst has 24",
    ]
    assert "resize_accel_0" in hardware.instances
    large = real_hwh("rfsoc_sam.hwh")
    assert len(hwh.read(large).instances) == large.count(b"<MODULE ")


def test_a_hwh_of_vivado_loads_with_what_pynq_misses_filled_in(
    board: SimulatedBoard, kws: Case, tmp_path: Path
) -> None:
    entry = register(board, kws.artifact)
    metadata = hwh.for_pynq(real_hwh("resizer.hwh"), 1e8)
    path = tmp_path / "resizer.hwh"
    for content, works in ((real_hwh("resizer.hwh"), False), (metadata, True)):
        path.write_bytes(content)
        clocks = board.get_bitfile_metadata(str(path)).clock_dict
        assert (clocks[0]["frequency"] is not None) == works
    assert clocks[0]["frequency"] == 100.0
    assert entry.part == "xc7z020clg400-1"


def test_simulator_and_null_device_on_this_numpy(kws: Case) -> None:
    with cuvil.load(kws.path, "sim") as executable:
        assert same(results(executable, kws.inputs), kws.expected)
    with cuvil.load(kws.path, "null") as executable:
        assert results(executable, kws.inputs)[0].shape == (64, 12)
    again = container.from_bytes(container.to_bytes(kws.artifact))
    assert again.files == kws.artifact.files

"""The modules of rtl/ in Verilator, with words held back at random at every port."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.rtl_bench import Instance, RtlBench, packed, together, words

pytestmark = [pytest.mark.needs("verilator", "g++", "make"), pytest.mark.must_run]

FIFOS = [
    (depth, kind)
    for depth, kinds in ((1, [""]), (2, ["", "lutram"]), (3, ["registers", "srl", "lutram", "bram"]), (16, ["srl"]),
                         (33, ["", "srl", "bram", "lutram"]), (300, ["", "bram"]))
    for kind in kinds
]  # fmt: skip
WIDTH = 40


@pytest.fixture(scope="module")
def fifos() -> Iterator[RtlBench]:
    made = [
        Instance("cuvil_fifo", {"WIDTH": WIDTH, "DEPTH": d, "KIND": k}, {"in": WIDTH}, {"out": WIDTH}) for d, k in FIFOS
    ]
    bench = RtlBench(together(made))
    yield bench
    bench.model.close()


@pytest.mark.parametrize("percent", [0, 10, 50, 90])
def test_a_fifo_keeps_all_words_in_order(fifos: RtlBench, percent: int) -> None:
    rng = random.Random(percent)
    given = [words(rng, WIDTH, 500) for _ in FIFOS]
    for seed in range(5):
        got, _ = fifos.run(given, [500] * len(FIFOS), seed, percent)
        assert got == given


def test_a_fifo_moves_a_word_a_cycle(fifos: RtlBench) -> None:
    given = [[0] * (250 if depth == 1 else 500) for depth, _ in FIFOS]  # one register: every other cycle
    _, cycles = fifos.run(given, [len(g) for g in given])
    assert cycles <= 500 + 3


def test_a_fifo_holds_as_many_words_as_it_says(fifos: RtlBench) -> None:
    """Words beyond those that come out fit where no one takes them, and one more does not."""
    for n, (depth, _) in enumerate(FIFOS):
        counts = [1] * len(FIFOS)
        counts[n] += depth
        fifos.run([[1] * c for c in counts], [1] * len(FIFOS))
        counts[n] += 1
        with pytest.raises(Exception, match="stuck"):
            fifos.run([[1] * c for c in counts], [1] * len(FIFOS))


# Lanes in, lanes out, elements of a tensor.
GEARS = [
    (8, 1, 16), (8, 1, 13), (1, 8, 16), (1, 8, 9), (8, 3, 24), (8, 3, 25), (3, 8, 24), (3, 8, 7),
    (4, 4, 12), (4, 4, 10),
    (8, 12, 48), (12, 8, 49), (2, 8, 9), (1, 1, 5), (8, 5, 3), (5, 8, 3), (16, 1, 1), (4, 6, 7),
]  # fmt: skip
BITS = 5


@pytest.fixture(scope="module")
def gears() -> Iterator[RtlBench]:
    made = [
        Instance("cuvil_gearbox", {"BITS": BITS, "A": a, "B": b, "COUNT": c}, {"in": a * BITS}, {"out": b * BITS},
                 ".in_final(), .out_final()")
        for a, b, c in GEARS
    ]  # fmt: skip
    bench = RtlBench(together(made))
    yield bench
    bench.model.close()


@pytest.mark.parametrize("percent", [0, 30, 80])
def test_a_gearbox_gives_the_elements_in_order(gears: RtlBench, percent: int) -> None:
    rng = random.Random(percent)
    for seed in range(4):
        given, wanted = [], []
        for a, b, count in GEARS:
            elements = words(rng, BITS, 6 * count)
            noise = [w | _spare(rng, a, count, n) for n, w in enumerate(packed(elements, BITS, a, count))]
            given.append(noise)
            wanted.append(packed(elements, BITS, b, count))
        got, _ = gears.run(given, [len(w) for w in wanted], seed, percent)
        assert got == wanted


def _spare(rng: random.Random, lanes: int, count: int, word: int) -> int:
    """Random bits in the lanes of a tensor's last word that have no element."""
    each = -(-count // lanes)
    used = (count - (each - 1) * lanes) * BITS if word % each == each - 1 else lanes * BITS
    return rng.getrandbits(lanes * BITS) >> used << used


@pytest.mark.parametrize("n", range(len(GEARS)))
def test_the_side_with_more_words_moves_one_a_cycle(gears: RtlBench, n: int) -> None:
    a, b, count = GEARS[n]
    tensors = [0] * len(GEARS)
    tensors[n] = 50
    given = [[0] * (t * -(-c // x)) for t, (x, _, c) in zip(tensors, GEARS, strict=True)]
    taken = [t * -(-c // y) for t, (_, y, c) in zip(tensors, GEARS, strict=True)]
    _, cycles = gears.run(given, taken)
    ins, outs = -(-count // a), -(-count // b)
    # As hls/cuvil_hls.h counts its steps: one more where what is left behind the last whole word leaves by itself.
    rest = b > a and ins * a // b < outs and (ins - 1) * a % b + a >= b
    assert cycles <= 50 * (max(ins, outs) + rest) + 2


# Bits of an element, its container, lanes, elements, whether it has a sign; buses of 64 bits, the last of 32.
ELEMENTS = [
    (8, 8, 4, 10, 1, 64), (5, 8, 3, 17, 1, 64), (5, 8, 16, 40, 0, 64), (1, 8, 10, 10, 0, 64), (12, 16, 1, 7, 1, 64),
    (20, 32, 2, 6, 1, 64), (33, 64, 1, 3, 1, 64), (8, 8, 32, 32, 0, 64), (12, 16, 1, 5, 1, 32),
]  # fmt: skip


@pytest.fixture(scope="module")
def ports() -> Iterator[RtlBench]:
    made = []
    for bits, container, lanes, count, signed, bus in ELEMENTS:
        same = {"AXIS": bus, "BITS": bits, "CONTAINER": container, "LANES": lanes, "COUNT": count, "ENDS": 1}
        ends = ", ".join(f".ends_{s}(ends{{n}}_{s})" for s in ("data", "valid", "ready"))
        into = (
            f".s_axis_tdata(in{{n}}_data[{bus - 1}:0]), .s_axis_tlast(in{{n}}_data[{bus}]), .s_axis_tkeep('1), "
            ".s_axis_tvalid(in{n}_valid), .s_axis_tready(in{n}_ready), "
            ".out_data(out{n}_data), .out_valid(out{n}_valid), .out_ready(out{n}_ready), "
        )
        made.append(
            Instance("cuvil_axis_in", same, {"in": bus + 1}, {"out": lanes * bits, "ends": 1}, into + ends, False)
        )
        out = (
            f".m_axis_tdata(out{{n}}_data[{bus - 1}:0]), .m_axis_tlast(out{{n}}_data[{bus}]), "
            f".m_axis_tkeep(out{{n}}_data[{bus + bus // 8}:{bus + 1}]), "
            ".m_axis_tvalid(out{n}_valid), .m_axis_tready(out{n}_ready), "
            ".in_data(in{n}_data), .in_valid(in{n}_valid), .in_ready(in{n}_ready), "
        )
        signs = {**same, "SIGNED": signed}
        into_lanes = {"in": lanes * bits, "ends": 1}
        made.append(Instance("cuvil_axis_out", signs, into_lanes, {"out": bus + 1 + bus // 8}, out + ends, False))
    bench = RtlBench(together(made))
    yield bench
    bench.model.close()


@pytest.mark.parametrize("percent", [0, 40, 85])
def test_ports_lay_elements_out_as_their_numpy_bytes(ports: RtlBench, percent: int) -> None:
    rng = random.Random(percent)
    tensors = 6
    given, wanted = [], []
    for bits, container, lanes, count, signed, bus in ELEMENTS:
        elements = words(rng, bits, tensors * count)
        flags = words(rng, 1, tensors)
        stream = packed(elements, bits, lanes, count)
        per, size = bus // container, bus // 8
        each = -(-count // per)
        raw = packed([rng.getrandbits(container - bits) << bits | e for e in elements], container, per, count)
        given.append([w | flags[n // each] << bus for n, w in enumerate(raw)])
        wanted += [stream, flags]
        kind = f"{'i' if signed else 'u'}{container // 8}"
        signs = [e - (1 << bits) if signed and e >> (bits - 1) else e for e in elements]
        given += [stream, flags]
        out = []
        for t in range(tensors):
            image = np.array(signs[t * count : (t + 1) * count], f"<{kind}").tobytes()
            for at in range(0, each * size, size):
                part = image[at : at + size]
                last = at == (each - 1) * size and flags[t]
                keep = (1 << len(part)) - 1 if last else (1 << size) - 1
                out.append(int.from_bytes(part, "little") | last << bus | keep << (bus + 1))
        wanted.append(out)
    for seed in range(4):
        got, _ = ports.run(given, [len(w) for w in wanted], seed, percent)
        assert got == wanted


MEMORIES = ("bram", "uram", "lutram", "registers", "")
PLACES, MEMORY_BITS = 21, 9
# One request a word, in the order of its bits: write, place, word, read, place; a read is answered.
_MEMORY = """
module memory #(parameter KIND = "") (
    input logic clk, input logic rst,
    input logic [21:0] in_data, input logic in_valid, output logic in_ready,
    output logic [8:0] out_data, output logic out_valid, input logic out_ready
);
    wire go = in_valid & in_ready;
    assign in_ready = !out_valid | out_ready;
    always_ff @(posedge clk) out_valid <= !rst & (go ? in_data[16] : out_valid & !out_ready);
    cuvil_ram #(.WIDTH(9), .DEPTH(21), .KIND(KIND)) ram (
        .clk(clk), .wen(go & in_data[0]), .waddr(in_data[5:1]), .wdata(in_data[14:6]),
        .ren(go & in_data[16]), .raddr(in_data[21:17]), .rdata(out_data));
endmodule
module constants #(parameter DEPTH = 1, parameter FILE = "", parameter KIND = "") (
    input logic clk, input logic rst,
    input logic [7:0] in_data, input logic in_valid, output logic in_ready,
    output logic [8:0] out_data, output logic out_valid, input logic out_ready
);
    assign in_ready = !out_valid | out_ready;
    always_ff @(posedge clk) out_valid <= !rst & (in_valid | out_valid & !out_ready);
    cuvil_rom #(.WIDTH(9), .DEPTH(DEPTH), .FILE(FILE), .KIND(KIND)) rom (
        .clk(clk), .en(in_valid & in_ready), .addr(in_data[(DEPTH > 1 ? $clog2(DEPTH) : 1)-1:0]), .data(out_data));
endmodule
"""
ROMS = ((1, ""), (2, "lutram"), (200, "bram"))


@pytest.fixture(scope="module")
def memories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RtlBench]:
    folder = tmp_path_factory.mktemp("roms")
    for depth, _ in ROMS:
        (folder / f"t{depth}.hex").write_text("".join(f"{_constant(depth, n):x}\n" for n in range(depth)))
    made = [Instance("memory", {"KIND": k}, {"in": 22}, {"out": MEMORY_BITS}) for k in MEMORIES]
    made += [
        Instance("constants", {"DEPTH": d, "FILE": f"t{d}.hex", "KIND": k}, {"in": 8}, {"out": 9}) for d, k in ROMS
    ]
    bench = RtlBench(together(made, {"memory.sv": _MEMORY}), folder)
    yield bench
    bench.model.close()


def _constant(depth: int, n: int) -> int:
    return (n * 37 + depth) % 512


@pytest.mark.parametrize("percent", [0, 50])
def test_memories_answer_with_what_lay_there_before(memories: RtlBench, percent: int) -> None:
    rng = random.Random(percent)
    held = [rng.getrandbits(9) for _ in range(PLACES)]
    requests = [1 | n << 1 | w << 6 for n, w in enumerate(held)]
    answers = []
    for _ in range(400):
        write, to, word, read, place = (rng.randrange(n) for n in (2, PLACES, 512, 2, PLACES))
        place = to if rng.random() < 0.3 else place  # at one edge
        requests.append(write | to << 1 | word << 6 | read << 16 | place << 17)
        if read:
            answers.append(held[place])
        if write:
            held[to] = word
    asked = [[rng.randrange(d) for _ in range(100)] for d, _ in ROMS]
    found = [[_constant(d, n) for n in a] for (d, _), a in zip(ROMS, asked, strict=True)]
    got, _ = memories.run(
        [requests] * len(MEMORIES) + asked, [len(answers)] * len(MEMORIES) + [100] * len(ROMS), 1, percent
    )
    assert got == [answers] * len(MEMORIES) + found

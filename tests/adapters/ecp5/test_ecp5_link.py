"""The serial line of ECP5 boards in Verilator: both ends, with bytes lost and changed on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cuvil_hw import data
from cuvil_hw.adapters.ecp5.link import SerialLink
from cuvil_hw.adapters.ecp5.simulated import SimulatedLine, line_module
from cuvil_hw.adapters.streaming.verilated.build import build, library_files
from cuvil_hw.adapters.streaming.verilated.model import Model
from cuvil_hw.errors import DeviceError

pytestmark = [pytest.mark.needs("verilator", "g++", "make"), pytest.mark.must_run]

# Two inputs of 32 bits go to two outputs, crossed; the second through a FIFO that takes 5 words.
BOARD = """
module crossed #(parameter CLOCKS_PER_BIT = 50, parameter SILENCE = 1000) (
    input logic clk, input logic rst, input logic rx, output logic tx);
    logic [7:0] rx_data, tx_data;
    logic rx_valid, tx_valid, tx_ready, design_rst;
    logic [63:0] s_tdata, m_tdata;
    logic [1:0] s_tvalid, s_tready, m_tvalid, m_tready;
    cuvil_uart_rx #(.CLOCKS(CLOCKS_PER_BIT)) receiver (
        .clk(clk), .rst(rst), .line(rx), .data(rx_data), .valid(rx_valid));
    cuvil_uart_tx #(.CLOCKS(CLOCKS_PER_BIT)) sender (
        .clk(clk), .rst(rst), .data(tx_data), .valid(tx_valid), .ready(tx_ready), .line(tx));
    cuvil_serial #(.INPUTS(2), .OUTPUTS(2), .AXIS(32), .SILENCE(SILENCE), .ID(64'h0123456789abcdef)) serial (.*);
    cuvil_fifo #(.WIDTH(32), .DEPTH(2)) a (.clk(clk), .rst(design_rst),
        .in_data(s_tdata[31:0]), .in_valid(s_tvalid[0]), .in_ready(s_tready[0]),
        .out_data(m_tdata[63:32]), .out_valid(m_tvalid[1]), .out_ready(m_tready[1]));
    cuvil_fifo #(.WIDTH(32), .DEPTH(5)) b (.clk(clk), .rst(design_rst),
        .in_data(s_tdata[63:32]), .in_valid(s_tvalid[1]), .in_ready(s_tready[1]),
        .out_data(m_tdata[31:0]), .out_valid(m_tvalid[0]), .out_ready(m_tready[0]));
endmodule
"""


class Disturbed:
    """A line that loses or changes a byte now and then."""

    def __init__(self, line: SimulatedLine, seed: int, rate: float) -> None:
        self._line, self._rng, self._rate = line, random.Random(seed), rate

    def _bytes(self, given: bytes) -> bytes:
        kept = bytearray()
        for value in given:
            chance = self._rng.random()
            if chance > self._rate:
                kept.append(value)
            elif chance > self._rate / 2:
                kept.append(value ^ 1 << self._rng.randrange(8))
        return bytes(kept)

    def write(self, data: bytes, /) -> None:
        self._line.write(self._bytes(data))

    def read(self, size: int, /) -> bytes:
        return self._bytes(self._line.read(size))

    def reset_input_buffer(self) -> None:
        self._line.reset_input_buffer()


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    line = (data.folder("sim") / "rtl" / "cuvil_line.sv").read_bytes()
    files = {**library_files(), "cuvil_line.sv": line, "crossed.sv": BOARD.encode()}
    made = Model(build(line_module(files, "crossed")), "crossed")
    yield made
    made.close()


def sent(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(4 * rng.choice([0, 1, 63, 64, 700])) for _ in range(2)]


@pytest.mark.parametrize("seed", range(6))
def test_all_bytes_arrive_in_order(model: Model, seed: int) -> None:
    link = SerialLink(SimulatedLine(model), "board")
    assert link.reset() == bytes.fromhex("0123456789abcdef")
    given = sent(seed)
    assert link.transfer(given, [len(given[1]), len(given[0])]) == given[::-1]
    assert link.retries == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_bad_line_costs_time_only(model: Model, seed: int) -> None:
    link = SerialLink(Disturbed(SimulatedLine(model), seed, 1 / 500), "board")
    assert link.reset() == bytes.fromhex("0123456789abcdef")
    given = sent(seed)
    assert link.transfer(given, [len(given[1]), len(given[0])]) == given[::-1]
    assert link.retries > 0 or sum(map(len, given)) < 600


def test_what_a_run_left_behind_is_gone_after_a_reset(model: Model) -> None:
    link = SerialLink(SimulatedLine(model), "board")
    link.reset()
    link.transfer([bytes(range(40)), b""], [0, 8])
    link.reset()
    assert link.transfer([b"abcd", b""], [0, 4]) == [b"", b"abcd"]


def test_a_design_that_gives_nothing_is_an_error(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuvil_hw.adapters.ecp5.link.PATIENCE", 20)
    link = SerialLink(SimulatedLine(model), "board")
    link.reset()
    with pytest.raises(DeviceError, match=r"stuck.*output 0: 0 of 4 bytes"):
        link.transfer([b"abcd", b""], [4, 4])


def test_a_port_that_is_not_there_is_an_error(model: Model) -> None:
    link = SerialLink(SimulatedLine(model), "board")
    link.reset()
    with pytest.raises(DeviceError, match="no input 2"):
        link.transfer([b"", b"", b"abcd"], [0])


def test_a_line_without_a_board_is_an_error() -> None:
    class Silent:
        def write(self, data: bytes, /) -> None: ...

        def read(self, size: int, /) -> bytes:
            return b""

        def reset_input_buffer(self) -> None: ...

    with pytest.raises(DeviceError, match="no answer to 20 requests"):
        SerialLink(Silent(), "board").reset()

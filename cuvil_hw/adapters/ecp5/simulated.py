"""A serial line to a board that Verilator simulates."""

from __future__ import annotations

import numpy as np

from cuvil_hw.adapters.streaming.verilated.build import Module, Wires
from cuvil_hw.adapters.streaming.verilated.model import Model
from cuvil_hw.errors import DeviceError

CLOCKS = 4  # clock cycles a bit: as few as the receivers take
SILENCE = 40 * 10 * CLOCKS  # cycles after which the board drops a request that stopped
PATIENCE = 2 * SILENCE


def line_module(files: dict[str, bytes], board: str) -> Module:
    """A board with the host's end of its line. `files`: its SystemVerilog; `board`: a module with clk, rst, rx and tx
    and the parameters CLOCKS_PER_BIT and SILENCE."""
    text = (
        "module cuvil_line_bench (input logic clk, input logic rst,\n"
        "    input logic [7:0] host_data, input logic host_valid, output logic host_ready,\n"
        "    output logic [7:0] board_data, output logic board_valid, input logic board_ready);\n"
        "    logic to_board, from_board;\n"
        f"    cuvil_line #(.CLOCKS({CLOCKS})) line (.*);\n"
        f"    {board} #(.CLOCKS_PER_BIT({CLOCKS}), .SILENCE({SILENCE})) board (\n"
        "        .clk(clk), .rst(rst), .rx(to_board), .tx(from_board));\n"
        "endmodule\n"
    )
    made = {**files, "cuvil_line_bench.sv": text.encode()}
    return Module(made, "cuvil_line_bench", (Wires.plain("host", 8),), (Wires.plain("board", 8),), {})


class SimulatedLine:
    """Bytes to and from the model of `line_module`; time passes only while bytes are written or waited for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        model.restart()

    @property
    def clock(self) -> int:
        """Cycles since the start."""
        return self._model.clock

    def write(self, data: bytes, /) -> None:
        self._run(data, 0)

    def read(self, size: int, /) -> bytes:
        found = b""
        while len(found) < size:
            try:
                found += self._run(b"", 1)
            except DeviceError:
                break
        return found

    def reset_input_buffer(self) -> None:
        while self.read(1):
            pass

    def _run(self, data: bytes, size: int) -> bytes:
        given = np.frombuffer(data, np.uint8).reshape(1, len(data), 1)
        taken = np.zeros((1, size, 1), np.uint8)
        self._model.run([np.ascontiguousarray(given)], [taken], 1, False, PATIENCE)
        return taken.tobytes()

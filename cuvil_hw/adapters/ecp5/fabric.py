"""ECP5 as the shared cost model sees it (data sheet FPGA-DS-02012, memory guide FPGA-TN-02204).

A block RAM has 18 Kb; sixteen bits by four of distributed memory take four LUTs of a slice and two for its write port.
LUTs have four inputs: a LUT of six does the work of 1.6 of them, the vendors' own ratio of logic cells. No LUT is a
shift register. Analytic: `cuvil synth` counts what Yosys makes, and place and route what it places.
"""

from __future__ import annotations

from collections.abc import Mapping

from cuvil_hw.adapters.streaming.analysis.fabric import Fabric

LUT4_PER_LUT6 = 1.6

ECP5 = Fabric(
    dsp_a=18,
    dsp_b=18,
    ram_shapes=((16384, 1), (8192, 2), (4096, 4), (2048, 9), (1024, 18), (512, 36)),
    lutram_bits=16,
    floats={},  # refused
    lutram_width=4,
    lutram_luts=6 / LUT4_PER_LUT6,
    shift_registers=False,
    cell=LUT4_PER_LUT6,
    lut="lut4",
    dsp="dsp18",
)

# What the serial line takes beside the design: counted by Yosys 0.23, synth_ecp5 of rtl/cuvil_serial.sv and
# cuvil_uart.sv with one port each way (a carry cell is two LUTs).
SHELL: Mapping[str, float] = {"lut4": 760, "ff": 380, "bram18": 4}

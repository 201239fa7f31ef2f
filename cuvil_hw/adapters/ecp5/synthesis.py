"""How Yosys maps designs to ECP5, and what its cells cost on the axes of its profiles (FPGA-TN-02200, -02204).

A carry cell is two LUTs. Sixteen words of four bits of distributed memory take the four LUTs of two slices, and a third
slice's two for the write port. Wider functions join LUTs by multiplexers of the slices.
"""

from __future__ import annotations

from collections.abc import Mapping

from cuvil_hw.adapters.streaming.synthesis.yosys import Flow, Use

CELLS: Mapping[str, Use] = {
    **{name: {} for name in ("PFUMX", "L6MUX21", "VCC", "GND")},
    "LUT4": {"lut4": 1},
    "CCU2C": {"lut4": 2},
    "TRELLIS_DPR16X4": {"lut4": 6},
    "TRELLIS_FF": {"ff": 1},
    "DP16KD": {"bram18": 1},
    "MULT18X18D": {"dsp18": 1},
}
FLOW = Flow("synth_ecp5", CELLS)

"""How Yosys maps designs to the families of this adapter, and what its cells cost on their axes.

A LUT6 that holds two small functions is counted as two, as Yosys maps them; packing would join some. Wide multiplexers
and carry chains are parts of slices without a LUT of their own (UG474, UG574).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuvil_hw.adapters.streaming.synthesis.yosys import Flow, Use
from cuvil_hw.adapters.zynq.parts import part_family
from cuvil_hw.errors import CuvilError

_FREE = ("MUXF7", "MUXF8", "MUXF9", "CARRY4", "CARRY8", "BUFG", "IBUF", "OBUF", "VCC", "GND")
# Distributed memories, in LUTs (UG474, table of RAM configurations).
_MEMORIES = {
    "RAM32X1S": 1, "RAM64X1S": 1, "RAM128X1S": 2, "RAM256X1S": 4, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4,
    "RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8, "RAM256X1D": 8, "RAM512X1S": 8,
}  # fmt: skip
CELLS: Mapping[str, Use] = {
    **{name: {} for name in _FREE},
    **{f"LUT{n}": {"lut": 1} for n in range(1, 7)},
    "INV": {"lut": 1}, "SRL16E": {"lut": 1}, "SRLC16E": {"lut": 1}, "SRLC32E": {"lut": 1},
    **{name: {"lut": n} for name, n in _MEMORIES.items()},
    **{name: {"ff": 1} for name in ("FDRE", "FDSE", "FDCE", "FDPE", "LDCE", "LDPE")},
    "RAMB18E1": {"bram18": 1}, "RAMB36E1": {"bram18": 2}, "RAMB18E2": {"bram18": 1}, "RAMB36E2": {"bram18": 2},
    "DSP48E1": {"dsp": 1}, "DSP48E2": {"dsp": 1}, "URAM288": {"uram": 1},
}  # fmt: skip
_FAMILIES = {"dsp48e1": "xc7", "dsp48e2": "xcup"}


def flow(profile: Mapping[str, Any]) -> Flow:
    """Of a profile as data. Raises CuvilError for a family that Yosys doesn't map."""
    part = str(profile.get("part", ""))
    found = part_family(part)
    kind = profile.get("settings", {}).get("dsp", found[0].dsp if found is not None else "dsp48e1")
    if kind not in _FAMILIES:
        raise CuvilError(f"{part}: yosys maps no fabric with {kind}; take the vendor's tools and cuvil report --vendor")
    return Flow(f"synth_xilinx -family {_FAMILIES[kind]} -noiopad -noclkbuf -flatten", CELLS)

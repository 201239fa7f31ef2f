"""What differs between the FPGA families of this adapter: multiplier widths, memory shapes, float operators.

Float operators are those of the Floating-Point Operator core (PG060) as Vitis HLS instantiates them. Its names say how
many stages they have: fadd_…_5_full_dsp, fmul_…_4_max_dsp, fdiv_…_16, fsqrt_…_16, fexp_…_10_full_dsp, fcmp_…_2,
sitofp_…_6 on 7 series at 100 MHz, fadd_…_7_full_dsp on UltraScale+ at 200 MHz and more; a DSP58 adds or multiplies
floats by itself (DSPFP32, AM004). DSP blocks are exact, LUTs and flip-flops what its reports give, rounded: they plan a
design, and a synthesis report replaces them.
"""

from __future__ import annotations

from cuvil_hw.adapters.streaming.analysis.fabric import Fabric
from cuvil_hw.adapters.streaming.analysis.floats import FloatCore
from cuvil_hw.adapters.zynq.parts import part_family
from cuvil_hw.errors import ProfileError
from cuvil_hw.target.profile import Profile

# An 18 Kb block RAM as simple dual port memory (UG573, UG473); a SLICEM LUT holds 64 bits (UG474).
_RAMB18 = ((16384, 1), (8192, 2), (4096, 4), (2048, 9), (1024, 18), (512, 36))

_SERIES7 = {
    "add": FloatCore(2, 220, 205, 5), "mul": FloatCore(3, 90, 143, 4), "div": FloatCore(0, 800, 761, 16),
    "sqrt": FloatCore(0, 460, 405, 16), "exp": FloatCore(7, 650, 277, 10), "log": FloatCore(5, 700, 500, 13),
    "compare": FloatCore(0, 70, 66, 2), "round": FloatCore(0, 200, 100, 3), "to_float": FloatCore(0, 400, 340, 6),
    "to_int": FloatCore(0, 250, 150, 4),
}  # fmt: skip
_ULTRASCALE = {**_SERIES7, "add": FloatCore(2, 220, 330, 7)}
_VERSAL = {**_SERIES7, "add": FloatCore(1, 0, 32, 4), "mul": FloatCore(1, 0, 32, 4)}

# Signed operand widths: DSP48E1 25×18 (UG479), DSP48E2 27×18 (UG579), DSP58 27×24 (AM004).
FABRICS = {
    "dsp48e1": Fabric(25, 18, _RAMB18, 64, _SERIES7, pairs=True, adders=True),
    "dsp48e2": Fabric(27, 18, _RAMB18, 64, _ULTRASCALE, pairs=True, adders=True),
    "dsp58": Fabric(27, 24, _RAMB18, 64, _VERSAL, pairs=True, adders=True),
}


# Widths of an AXI DMA's stream side (PG021).
STREAM_BITS = (8, 16, 32, 64, 128, 256, 512, 1024)


def stream_bits(profile: Profile) -> int:
    """Width of the streams in and out, the setting `axi_stream_bits`. Raises ProfileError for one that no DMA has."""
    bits = profile.setting("axi_stream_bits", 64)
    if bits not in STREAM_BITS:
        listed = ", ".join(map(str, STREAM_BITS))
        raise ProfileError(profile.source, None, "settings.axi_stream_bits", f"{bits} is not one of {listed}")
    return bits


def fabric(profile: Profile) -> Fabric:
    """The family of a profile, by its setting `dsp`, else its part, else the 7 series. Raises ProfileError for an
    unknown setting."""
    found = part_family(profile.part)
    kind = profile.setting("dsp", found[0].dsp if found is not None else "dsp48e1")
    if kind not in FABRICS:
        raise ProfileError(profile.source, None, "settings.dsp", f"{kind!r} is not one of {', '.join(FABRICS)}")
    return FABRICS[kind]

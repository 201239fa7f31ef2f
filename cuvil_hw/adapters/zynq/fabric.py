"""What differs between the FPGA families of this adapter: multiplier widths and memory shapes."""

from __future__ import annotations

from cuvil_hw.adapters.fpga.cost import Fabric
from cuvil_hw.errors import ProfileError
from cuvil_hw.profile import Profile

# An 18 Kb block RAM as simple dual port memory (UG573, UG473); a SLICEM LUT holds 64 bits (UG474).
_RAMB18 = ((16384, 1), (8192, 2), (4096, 4), (2048, 9), (1024, 18), (512, 36))

# Signed operand widths: DSP48E1 25×18 (UG479), DSP48E2 27×18 (UG579), DSP58 27×24 (AM004).
FABRICS = {
    "dsp48e1": Fabric(25, 18, _RAMB18, 64),
    "dsp48e2": Fabric(27, 18, _RAMB18, 64),
    "dsp58": Fabric(27, 24, _RAMB18, 64),
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
    """The family of a profile, by its setting `dsp`. Raises ProfileError for an unknown one."""
    kind = profile.setting("dsp", "dsp48e1")
    if kind not in FABRICS:
        raise ProfileError(profile.source, None, "settings.dsp", f"{kind!r} is not one of {', '.join(FABRICS)}")
    return FABRICS[kind]

"""Part families of AMD's FPGAs: what a profile can't ask of a part, with the data sheets that say so.

Clock limits are those of a global clock buffer (F_MAX of BUFG), by speed grade: nothing on the fabric is faster.
What a design reaches is lower, and its timing report says it. Multiplier blocks: UG479 (DSP48E1), UG579 (DSP48E2),
AM004 (DSP58). Widths of the processor's memory ports: UG585 (AXI_HP, 64 bits), UG1085 (S_AXI_HP, 128 bits).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cuvil_hw.adapters.zynq.record import STREAM_BITS
from cuvil_hw.target.profile import Profile


@dataclass(frozen=True, slots=True)
class PartFamily:
    """`pattern`: of the vendor's part names, lower case; its group `grade` is a speed grade, a key of `clock_mhz`.
    `port_bits`: of the widest memory port of its processor, 0 without a processor; `host`: that processor's kind."""

    name: str
    example: str
    pattern: str
    dsp: str
    clock_mhz: Mapping[str, float]
    source: str
    port_bits: int = 0
    host: str = ""


WIDEST_WORD = max(STREAM_BITS)
_PLAIN = r"-(?P<grade>[123])(?:l|li|i|q|m)?"
_PLUS = r"-[a-z]+\d+-(?P<grade>[12]lv|[123])(?:l|li)?-[a-z]+"
_VERSAL = r"-[a-z]+\d+-(?P<grade>[123][hml])[a-z]*-[a-z]+-[a-z]"
_SMALL_7 = {"3": 628, "2": 628, "1": 464}
_LARGE_7 = {"3": 741, "2": 710, "1": 625}
_MHZ_PLUS = {"3": 891, "2": 775, "1": 667, "2lv": 725, "1lv": 667}
_MHZ_VERSAL = {"3h": 1150, "2h": 1150, "2m": 1070, "1m": 984, "2l": 800, "1l": 680}

FAMILIES = (
    PartFamily(
        "Zynq-7000 (Z-7007S to Z-7020)", "xc7z020clg400-1", r"x[ca]7z0(07s|10|12s|14s|15|20)i?[a-z]{3}\d+" + _PLAIN,
        "dsp48e1", _SMALL_7, "DS187", 64, "arm",
    ),
    PartFamily(
        "Zynq-7000 (Z-7030 to Z-7100)", "xc7z045ffg900-2", r"x[cqa]7z(030|035|045|100)i?[a-z]{3}\d+" + _PLAIN,
        "dsp48e1", _LARGE_7, "DS191", 64, "arm",
    ),
    PartFamily("Artix-7, Spartan-7", "xc7a100tcsg324-1", r"x[cqa]7[as]\d+t?i?[a-z]{3}\d+" + _PLAIN, "dsp48e1", _SMALL_7,
               "DS181, DS189"),
    PartFamily("Kintex-7, Virtex-7", "xc7k325tffg900-2", r"x[cqa]7(k\d+t|vx?h?\d+t)i?[a-z]{3}\d+" + _PLAIN, "dsp48e1",
               _LARGE_7, "DS182, DS183"),
    PartFamily("Zynq UltraScale+ MPSoC, Kria", "xczu7ev-ffvc1156-2-e", r"x[cqa](zu\d+[a-z]{2}|k\d+)" + _PLUS, "dsp48e2",
               _MHZ_PLUS, "DS925, DS987", 128, "aarch64"),
    PartFamily("Kintex, Virtex, Artix UltraScale+, Alveo", "xcvu13p-flga2577-2-e",
               r"x[cqa]((au|ku|vu)\d+p|vu\d+[a-z]{0,2}p?|u\d+[a-z]?)" + _PLUS, "dsp48e2", _MHZ_PLUS,
               "DS922, DS923, DS931"),
    PartFamily("Versal", "xcvm1802-vsva2197-2MP-e-S", r"x[cqa]v[cmpeh]\d+" + _VERSAL, "dsp58", _MHZ_VERSAL,
               "DS956, DS957", 0, "aarch64"),
)  # fmt: skip


def part_family(part: str) -> tuple[PartFamily, str] | None:
    """(family, speed grade) of a part by the vendor's name; None for a name of no family here."""
    for family in FAMILIES:
        found = re.fullmatch(family.pattern, part, re.IGNORECASE)
        if found:
            return family, found["grade"].lower()
    return None


def contradictions(profile: Profile) -> Iterator[tuple[str, str]]:
    """(key, problem) for what a profile asks of its part that the part can't be or do. Nothing without a part."""
    if not profile.part:
        return
    found = part_family(profile.part)
    if found is None:
        known = "; ".join(f"{f.name}: {f.example}" for f in FAMILIES)
        yield "part", f"{profile.part!r} isn't a whole part name of a known family ({known})"
        return
    family, grade = found
    most = family.clock_mhz[grade]
    if profile.clock_hz > most * 1e6:
        problem = f"{profile.clock_hz / 1e6:g} MHz is more than a clock buffer of {profile.part} passes on"
        yield "clock_mhz", f"{problem}: {most:g} MHz at speed grade -{grade.upper()} ({family.source}); write less"
    dsp = profile.settings.get("dsp", family.dsp)
    if dsp != family.dsp:
        problem = f"{profile.part} ({family.name}) has {family.dsp}, not {dsp}"
        yield "settings.dsp", f"{problem}; write {family.dsp}, or leave it out"
    bits = profile.settings.get("axi_stream_bits", 0)
    if family.port_bits and isinstance(bits, int) and bits > family.port_bits:
        problem = f"a memory port of {family.name} is {family.port_bits} bits wide, so no DMA fills streams of {bits}"
        yield "settings.axi_stream_bits", f"{problem}; write {min(family.port_bits, WIDEST_WORD)} or less"
    elif isinstance(bits, int) and bits > WIDEST_WORD:
        problem = f"testbench, simulator and driver carry words of at most {WIDEST_WORD} bits, not {bits}"
        yield "settings.axi_stream_bits", f"{problem}; write {WIDEST_WORD} or less"
    host = profile.settings.get("host", family.host)
    if family.host and host != family.host:
        yield "settings.host", f"the processor of {profile.part} ({family.name}) is {family.host}, not {host}"

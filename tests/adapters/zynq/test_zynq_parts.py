"""What a profile can't ask of its part: by `cuvil targets check` and by `cuvil.compile` alike."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import cuvil
from cuvil_hw.adapters.target_check import check_file
from cuvil_hw.adapters.zynq.fabric import FABRICS, fabric
from cuvil_hw.adapters.zynq.parts import FAMILIES, part_family
from cuvil_hw.errors import ProfileError
from cuvil_hw.target.profile import builtin_profiles, load_profile

EXTENDS = "schema: cuvil-profile/1\nname: mine\nextends: {}\n{}\n"


@pytest.mark.parametrize(
    ("base", "lines", "said"),
    [
        ("pynq-z2", "clock_mhz: 1000", "4: clock_mhz: 1000 MHz is more than a clock buffer of xc7z020clg400-1"),
        ("pynq-z2", "clock_mhz: 465", "464 MHz at speed grade -1 (DS187)"),
        ("kv260", "clock_mhz: 726", "725 MHz at speed grade -2LV (DS925, DS987)"),
        ("pynq-z2", "part: hello", "4: part: 'hello' isn't a whole part name of a known family (Zynq-7000"),
        ("pynq-z2", "part: xc7z020", "4: part: 'xc7z020' isn't a whole part name"),
        ("pynq-z2", "settings: {dsp: dsp58}", "4: settings.dsp: xc7z020clg400-1 (Zynq-7000 (Z-7007S to Z-7020)) ha"),
        ("pynq-z2", "part: xczu7ev-ffvc1156-2-e", "3: settings.dsp: xczu7ev-ffvc1156-2-e (Zynq UltraScale+ MPSoC"),
        ("pynq-z2", "settings: {axi_stream_bits: 128}", "4: settings.axi_stream_bits: a memory port of Zynq-7000"),
        ("zcu104", "settings: {axi_stream_bits: 256}", "is 128 bits wide, so no DMA fills streams of 256; write 128"),
        ("u250", "settings: {axi_stream_bits: 1024}", "carry words of at most 512 bits, not 1024; write 512 or less"),
        ("kv260", "settings: {host: arm}", "4: settings.host: the processor of xck26-sfvc784-2LV-c"),
    ],
)  # fmt: skip
@pytest.mark.needs("torch", "ortools")
def test_what_a_part_cannot_do(tmp_path: Path, base: str, lines: str, said: str) -> None:
    import torch

    path = tmp_path / "mine.yaml"
    path.write_text(EXTENDS.format(base, lines))
    with pytest.raises(ProfileError, match=re.escape(said)):
        check_file(path)
    with pytest.raises(ProfileError, match=re.escape(said)):
        cuvil.compile(torch.nn.Linear(2, 2), path, torch.zeros(1, 2), precision="int8", interface="null")


@pytest.mark.parametrize(
    ("base", "lines"),
    [("pynq-z2", "clock_mhz: 464"), ("zcu104", "settings: {axi_stream_bits: 128}"), ("vmk180", "clock_mhz: 1070")],
)
def test_the_limits_themselves_are_allowed(tmp_path: Path, base: str, lines: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(EXTENDS.format(base, lines))
    assert check_file(path).name == "mine"


@pytest.mark.parametrize(
    ("part", "name", "grade"),
    [
        ("xc7z010clg400-1", "Zynq-7000 (Z-7007S to Z-7020)", "1"),
        ("XC7Z007SCLG225-2", "Zynq-7000 (Z-7007S to Z-7020)", "2"),
        ("xc7z045ffg900-2", "Zynq-7000 (Z-7030 to Z-7100)", "2"),
        ("xc7a35tcpg236-1", "Artix-7, Spartan-7", "1"),
        ("xc7vx690tffg1761-3", "Kintex-7, Virtex-7", "3"),
        ("xczu3eg-sbva484-1-e", "Zynq UltraScale+ MPSoC, Kria", "1"),
        ("xck26-sfvc784-2LV-c", "Zynq UltraScale+ MPSoC, Kria", "2lv"),
        ("xcvu13p-flga2577-2-e", "Kintex, Virtex, Artix UltraScale+, Alveo", "2"),
        ("xcu250-figd2104-2L-e", "Kintex, Virtex, Artix UltraScale+, Alveo", "2"),
        ("xcvc1902-vsva2197-2MP-e-S", "Versal", "2m"),
    ],
)
def test_part_names(part: str, name: str, grade: str) -> None:
    found = part_family(part)
    assert found is not None
    assert (found[0].name, found[1]) == (name, grade)


def test_every_family_knows_its_example_and_multiplier() -> None:
    for family in FAMILIES:
        found = part_family(family.example)
        assert found is not None
        assert found[0] is family
        assert family.dsp in FABRICS
    assert all(part_family(p.part) for p in builtin_profiles() if p.adapter == "zynq")


def test_a_part_says_what_its_multipliers_are() -> None:
    known = load_profile("zcu104")
    plain = replace(known, settings={k: v for k, v in known.settings.items() if k != "dsp"})
    assert fabric(plain) is FABRICS["dsp48e2"]

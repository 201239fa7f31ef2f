"""What an adapter demands of a profile and of an interface, checked before anything is compiled."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import cuvil
from cuvil_hw import data
from cuvil_hw.adapters.target_check import adapter_for, check_file
from cuvil_hw.errors import CuvilError, ProfileError
from cuvil_hw.target.profile import builtin_profiles, load_profile
from tests.support.device_runner import opened

GOOD = """\
schema: cuvil-profile/1
name: mine
adapter: zynq
clock_mhz: 100
resources:
  lut: {limit: 1000}
"""


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def problems_of(path: Path) -> str:
    with pytest.raises(ProfileError) as caught:
        check_file(path)
    return str(caught.value)


EXTENDS = "schema: cuvil-profile/1\nname: mine\nextends: {}\nsettings:\n  {}\n"


@pytest.mark.parametrize(
    ("base", "setting", "said"),
    [
        (
            "pynq-z2",
            "dps: dsp48e1",
            "settings.dps: adapter zynq has no such setting; did you mean dsp? (known: axi_stream",
        ),
        ("pynq-z2", "dsp: dsp48", "settings.dsp: 'dsp48' is not one of dsp48e1, dsp48e2, dsp58"),
        ("pynq-z2", "host: aarch46", "settings.host: 'aarch46' is not one of arm, aarch64"),
        ("pynq-z2", "axi_stream_bits: true", "settings.axi_stream_bits: True is not one of 8, 16"),
        ("pynq-z2", "precision: 8", "settings.precision: 8 is not text"),
        ("pynq-z2", "opt_level: 4", "settings.opt_level: 4 is not one of 0, 1, 2, 3"),
        ("agilex", "stall_s: 0", "settings.stall_s: must be above 0, found 0"),
        (
            "agilex",
            "dsp: dsp58",
            "settings.dsp: adapter agilex has no such setting (known: opt_level, precision, stall_s)",
        ),
        ("h100", "sms: 1.5", "settings.sms: 1.5 is not a whole number"),
        ("h100", "bandwidth_gb_s: [1, 2]", "settings.bandwidth_gb_s: (1, 2) is not a number"),
        ("mlu270", "cnrt: 5", "settings.cnrt: 5 is not one of 4, 6"),
        ("mlu370", "clusters: -8", "settings.clusters: must be above 0, found -8"),
        ("aarch64-linux-gnu", "march: 8", "settings.march: 8 is not text"),
    ],
)
@pytest.mark.needs("torch", "ortools")
def test_settings_that_the_adapter_does_not_know(tmp_path: Path, base: str, setting: str, said: str) -> None:
    """By `cuvil targets check`, and by `cuvil.compile` before it does anything."""
    import torch

    path = write(tmp_path, EXTENDS.format(base, setting))
    assert problems_of(path).startswith(f"{path}:5: {said}")
    with pytest.raises(ProfileError, match=re.escape(f"{path}:5: {said}")):
        cuvil.compile(torch.nn.Linear(2, 2), path, torch.zeros(1, 2), precision="int8", interface="null")


def test_a_setting_of_a_profile_that_is_no_file_is_checked_too() -> None:
    profile = replace(load_profile("h100"), settings={"smz": 3})
    with pytest.raises(ProfileError, match=r"h100: settings\.smz: .*did you mean sms\?"):
        adapter_for(profile, None)


def test_a_setting_that_is_inherited_wrong_cites_where_it_comes_from(tmp_path: Path) -> None:
    write(tmp_path, EXTENDS.format("pynq-z2", "dps: dsp58"), "base.yaml")
    path = write(tmp_path, "schema: cuvil-profile/1\nname: x\nextends: base.yaml\n")
    assert problems_of(path).startswith(f"{path}:3: settings.dps: ")


def test_check_lists_problems_of_every_kind_at_once(tmp_path: Path) -> None:
    """Of the file, of the axes and of what the adapter wants."""
    text = (
        GOOD + "  nram: {limit: 5}\n  ff: {limit: -1}\ncolour: red\nsettings: {dsp: dsp9, precision: int99, ports: 2}\n"
    )
    path = write(tmp_path, text)
    said = problems_of(path)
    for part in (
        f"{path}:6: resources.bram18: adapter zynq needs a limit for bram18, dsp; the profile has ff, lut, nram",
        f"{path}:7: resources.nram.rule: missing: nram is not a well-known axis",
        f"{path}:8: resources.ff.limit: must be 0 or more",
        f"{path}:9: colour: unknown key",
        f"{path}:10: settings.dsp: 'dsp9' is not one of",
        f"{path}:10: settings.precision: unknown precision 'int99'",
        f"{path}:10: settings.ports: adapter zynq has no such setting",
    ):
        assert part in said
    assert "6 more problem(s)" in said


def test_a_wrong_value_is_not_also_missing(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("adapter: zynq\nclock_mhz: 100", "extends: zynq\nclock_mhz: fast"))
    assert "more problem" not in problems_of(path)
    path = write(tmp_path, GOOD.replace("adapter: zynq\nclock_mhz: 100", "extends: nowhere"))
    assert "more problem" not in problems_of(path)


def test_every_built_in_profile_is_valid() -> None:
    assert [check_file(f).name for f in sorted(data.folder("targets").glob("*.yaml"))] == [
        p.name for p in builtin_profiles()
    ]


@pytest.mark.parametrize("target", ["cpu", "pynq-z2", "agilex", "h100", "mlu270", "mlu370"])
@pytest.mark.needs("torch", "ortools")
def test_an_interface_that_there_is_not_fails_before_compiling(target: str) -> None:
    import torch

    def started(what: str, at: int, of: int) -> None:
        raise AssertionError(what)

    with pytest.raises(CuvilError, match=r"has no interface 'nope'; it has .*null"):
        cuvil.compile(torch.nn.Linear(2, 2), target, torch.zeros(1, 2), interface="nope", progress=started)


@pytest.mark.parametrize(("name", "said"), [("x" * 5000, "5,000 characters"), ("", "0 characters"), (7, "an int")])
@pytest.mark.needs("torch", "ortools")
def test_a_name_that_no_file_can_have(name: str, said: str) -> None:
    import torch

    for call in (cuvil.compile, cuvil.compile_all):
        with pytest.raises(CuvilError, match=f"name is {said}; a program's name has 1 to 200 characters"):
            call(torch.nn.Linear(2, 2), "cpu" if call is cuvil.compile else ["cpu"], torch.zeros(1, 2), name=name)


def test_declared_interfaces_are_those_that_open() -> None:
    """What `open` doesn't have, it says; what it lacks tools for, it says otherwise."""
    for target in ("cpu", "pynq-z2", "agilex", "h100", "mlu270"):
        profile = load_profile(target)
        adapter = adapter_for(profile, None)
        assert adapter.interface in adapter.interfaces
        for interface in adapter.interfaces:
            said = ""
            try:
                opened(profile, interface)
            except CuvilError as e:
                said = str(e)
            assert "no interface" not in said
        with pytest.raises(CuvilError, match="no interface 'nope'"):
            opened(profile, "nope")

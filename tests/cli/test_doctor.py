"""`cuvil doctor`: what is usable here, and why not."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from cuvil_hw.cli import doctor
from cuvil_hw.contract import registry
from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.errors import CuvilError, pip_install
from tests.cli.test_cli import FAILED, cuvil


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)  # it runs nothing
    monkeypatch.setattr(BuildPlan, "execute", None)
    code, out, err = cuvil(capsys, "doctor", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    found = {f"{f['kind']} {f['name']}": f for f in result["findings"]}
    assert found["device cpu hw"]["usable"]
    assert found["device zynq null"]["usable"]
    assert not found["device zynq hw"]["usable"]
    assert found["extra compiler"]["detail"].startswith("xdsl 0.")
    assert "unknown" not in found["extra compiler"]["detail"]
    assert "device ecp5 sim" not in found  # it has none
    for f in result["findings"]:
        assert f["usable"] or (f["detail"] and f["remedy"])
    text = cuvil(capsys, "doctor")[1]
    assert all(f["name"] in text for f in result["findings"])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("not_there.adapter:Adapter", "No module named 'not_there'"),
        ("json:NoSuchAdapter", "has no attribute 'NoSuchAdapter'"),
        ("json:loads", "TypeError"),
    ],
)
def test_doctor_tells_of_a_plug_in_that_does_not_load(
    value: str, why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its devices may be ready; what compiles for them isn't."""
    groups = {registry.ADAPTERS: value, registry.DEVICES: "cuvil_hw.adapters.cpu.device:open_device"}

    def entries(group: str) -> list[EntryPoint]:
        made = [EntryPoint("other", groups[group], group)] if group in groups else []
        for entry in made:
            vars(entry).update(dist=SimpleNamespace(name="other-package"))
        return made

    monkeypatch.setattr(registry, "entry_points", entries)
    code, out, _ = cuvil(capsys, "doctor", "--json")
    assert code == 0
    (found,) = [f for f in json.loads(out)["findings"] if (f["kind"], f["name"]) == ("adapter", "other")]
    assert not found["usable"]
    assert why in found["detail"]
    assert found["remedy"]
    assert "other" in cuvil(capsys, "doctor")[1]


def test_doctor_where_nothing_is_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise CuvilError("the driver is missing; install it")

    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.programs, "find", lambda name: None)
    monkeypatch.setattr("cuvil_hw.contract.registry.open_device", refuse)
    code, out, _ = cuvil(capsys, "doctor", "--json")
    assert code == FAILED
    findings = json.loads(out)["findings"]
    assert not any(f["usable"] for f in findings if f["kind"] != "adapter")
    assert {f["remedy"] for f in findings if f["kind"] == "device"} == {"install it"}
    assert pip_install("torch") in {f["remedy"] for f in findings}

"""`cuvil bitstreams`, from an artifact to a registered bitstream."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import cuvil
from cuvil_hw.adapters.zynq import shell
from cuvil_hw.adapters.zynq.ports import stream_ports
from cuvil_hw.cli.main import main
from cuvil_hw.runtime import artifact


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    data = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    example = (torch.zeros(1, 6),)
    executable = cuvil.compile(torch.nn.Linear(6, 3).eval(), "pynq-z2", example, data, "int8", name="small")
    path = tmp_path_factory.mktemp("program") / "small.cuvil"
    executable.save(path)
    return path


@pytest.fixture
def built(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What Vivado would leave: shell.bit and shell.hwh. The registry is this test's own."""
    monkeypatch.setenv("CUVIL_HOME", str(tmp_path / "home"))
    info = artifact.read(program).manifest.info
    hardware = shell.standard_hwh(*stream_ports(info), "xc7z020clg400-1", 1e8)
    head = struct.pack(">H", 9) + bytes(9) + struct.pack(">H", 1)
    path = tmp_path / "shell.bit"
    path.write_bytes(head + b"e" + struct.pack(">I", 4) + b"data")
    path.with_suffix(".hwh").write_bytes(hardware)
    return path


def test_from_project_to_registered(
    program: Path, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "project"
    assert main(["bitstreams", "project", str(program), "-o", str(folder)]) == 0
    assert "vivado -mode batch -source shell.tcl" in capsys.readouterr().out
    assert main(["bitstreams", "design", str(program)]) == 0
    design = capsys.readouterr().out.strip()
    assert f"set user_id {design[:8]}\n" in (folder / "design.tcl").read_text()
    made = {"run_hls.tcl", "shell.tcl", "driver.py", "demo.ipynb", "ports.json", "src", "tb"}
    assert made <= {p.name for p in folder.iterdir()}
    assert main(["bitstreams", "project", str(program), "-o", str(folder)]) == 1
    assert "name a folder that doesn't exist yet" in capsys.readouterr().err

    assert main(["bitstreams", "add", str(program), str(built), "--json"]) == 0
    added = json.loads(capsys.readouterr().out)["added"]
    assert (added["design"], added["part"], added["shell"]) == (design, "xc7z020clg400-1", shell.SHELL)
    assert main(["bitstreams", "list"]) == 0
    assert design[:12] in capsys.readouterr().out
    assert main(["bitstreams", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["bitstreams"]
    assert listed == {**added, "home": str(tmp_path / "home" / "bitstreams")}
    assert main(["bitstreams", "verify"]) == 0
    assert "sound" in capsys.readouterr().out


def test_verify_finds_a_damaged_file(program: Path, built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bitstreams", "add", str(program), str(built)]) == 0
    (damaged,) = built.parent.glob("home/bitstreams/files/*.bit")
    damaged.write_bytes(b"other")
    capsys.readouterr()
    assert main(["bitstreams", "verify", "--json"]) == 1
    (entry,) = json.loads(capsys.readouterr().out)["bitstreams"]
    assert "was changed after it was registered" in entry["problem"]


def test_what_does_not_fit_is_an_error(program: Path, built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hardware = built.with_suffix(".hwh")
    hardware.write_bytes(hardware.read_bytes().replace(b"7z020", b"7z010"))
    assert main(["bitstreams", "add", str(program), str(built)]) == 1
    assert "processing_system7_0: is on part 7z010clg4001" in capsys.readouterr().err
    assert main(["bitstreams", "add", str(program), str(built.with_name("none.bit"))]) == 1
    assert "none.bit: could not be read" in capsys.readouterr().err


def test_other_targets_have_no_bitstreams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    executable = cuvil.compile(torch.nn.Linear(2, 2).eval(), "x86_64-linux-gnu", (torch.zeros(1, 2),))
    executable.save(tmp_path / "cpu.cuvil")
    assert main(["bitstreams", "design", str(tmp_path / "cpu.cuvil")]) == 1
    assert "is for cpu; only Zynq targets have bitstreams" in capsys.readouterr().err

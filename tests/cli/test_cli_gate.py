"""`cuvil test`, the gate for continuous integration."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import cuvil
from cuvil_hw.cli.main import FAILED, USAGE, main
from cuvil_hw.contract import files
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.vectors import in_artifact


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose scores are its inputs, for the FPGA; labels of which three of four are right."""
    place = tmp_path_factory.mktemp("gate")
    model = torch.nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.copy_(torch.eye(4))
        model.bias.zero_()
    x = np.eye(4, dtype=np.float32)[np.arange(40) % 4]
    program = cuvil.compile(model.eval(), "pynq-z2", x[:1], x, "int8", name="small")
    program.save(place / "p.cuvil")
    np.save(place / "x.npy", x)
    labels = np.arange(40) % 4
    labels[labels == 3] = 0
    np.save(place / "y.npy", labels)
    np.save(place / "out.npy", program(x))
    return place


def run(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    given = [str(folder / a) if (folder / a).is_file() else a for a in arguments]
    code = main(["test", str(folder / "p.cuvil"), *given])
    return code, *capsys.readouterr()


ACCURACY = ("--input", "x.npy", "--labels", "y.npy", "--min-accuracy")


def test_what_holds_and_what_does_not(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(
        folder, capsys, *ACCURACY, "0.75", "--expect", "out.npy", "--max-use", "lut=70%", "--min-throughput", "1000",
        "--junit", str(tmp_path / "ok.xml"), "--json",
    )  # fmt: skip
    assert code == 0, err
    said = json.loads(out)
    assert said["passed"] is True
    assert [c["name"] for c in said["checks"]][:3] == ["use of lut", "throughput", "accuracy"]
    (suite,) = ElementTree.parse(tmp_path / "ok.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("name")) == ("4", "0", "small")

    wrong = np.load(folder / "out.npy")
    wrong[3, 1] += 1
    np.save(folder / "wrong.npy", wrong)
    code, out, _ = run(
        folder, capsys, *ACCURACY, "0.76", "--expect", "wrong.npy", "--max-use", "lut=0.0001", "--min-throughput",
        "1e12", "--junit", str(tmp_path / "bad.xml"),
    )  # fmt: skip
    assert code == FAILED
    assert out.count("FAILED") == 4
    failures = {c.get("name"): c[0].get("message") for c in ElementTree.parse(tmp_path / "bad.xml").getroot()[0]}
    assert failures["accuracy"] == "0.7500, asked: at least 0.76"
    assert [m for n, m in failures.items() if str(n).startswith("output")] == ["1 of 160 differ, asked: 0"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--no-golden"], USAGE, "nothing to test"),
        (["--max-latency", "5"], USAGE, "a time and its unit"),
        (["--max-latency", "nans"], USAGE, "a time and its unit"),
        (["--min-accuracy", "0.5"], USAGE, "--labels and --min-accuracy go together"),
        (["--labels", "y.npy", "--min-accuracy", "0.5"], USAGE, "for an --input"),
        (["--max-use", "lut"], USAGE, "expected a resource and a share of it"),
        (["--max-use", "lut=1.5"], USAGE, "expected a resource and a share of it"),
        (["--max-use", "lut=0", "--max-use", "lut=1"], USAGE, "names lut twice"),
        (["--max-use", "cores=0.5"], FAILED, "the target has no such resource; it has lut, ff, "),
        (["--input", "x.npy", "--expect", "out.npy", "--expect", "out.npy"], FAILED, "has 1 outputs"),
        (["--max-use", "lut=0.5", "--junit", "p.cuvil"], USAGE, "would be overwritten"),
    ],
)
def test_wrong_usage(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    got, _, err = run(folder, capsys, *arguments)
    assert got == code
    assert said in " ".join(err.replace("│", " ").split())


def test_golden_vectors_of_the_artifact_and_of_the_ir(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = run(folder, capsys, "--json")
    assert code == 0, err
    (check,) = json.loads(out)["checks"]
    assert check["wanted"] == "2 computed from the IR: the artifact has none"

    model = torch.nn.Linear(4, 4).eval()
    kept = cuvil.compile(model, "cpu", torch.zeros(1, 4), name="kept", golden=3)
    kept.save(tmp_path / "kept.cuvil")
    with cuvil.load(tmp_path / "kept.cuvil") as loaded:
        vectors = in_artifact(loaded.artifact)
    assert vectors is not None
    with torch.no_grad():  # PyTorch is the oracle of what the artifact keeps
        want = model(torch.from_numpy(vectors.inputs[0].copy())).numpy()
    np.testing.assert_allclose(vectors.outputs[0], want, rtol=1e-5, atol=1e-6)
    assert main(["test", str(tmp_path / "kept.cuvil"), "--golden", "--max-latency", "10s", "--json"]) == 0
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["golden vectors"]["wanted"] == "3 in the artifact"
    assert "measured: 99th percentile of" in checks["latency"]["got"]

    with torch.no_grad():
        model.weight[1, 2] += 1
    other = cuvil.compile(model, "cpu", torch.zeros(1, 4), name="kept")
    files = {**other.artifact.files, **vectors.files()}  # another program with the first one's vectors
    container.write(tmp_path / "bad.cuvil", replace(other.artifact, files=files))
    code = main(["test", str(tmp_path / "bad.cuvil"), "--junit", str(tmp_path / "bad.xml")])
    assert code == FAILED
    failure = ElementTree.parse(tmp_path / "bad.xml").getroot().find(".//failure")
    assert failure is not None
    assert "vector 0: output 0: 1 of 4 elements differ, first at (0, 1)" in failure.attrib["message"]


def test_latency_of_a_simulated_target_is_the_reports(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(folder, capsys, "--max-latency", "0.001us", "--json")
    assert code == FAILED
    (check,) = json.loads(out)["checks"]
    assert "simulated (timing model)" in check["got"]


def test_a_junit_file_appears_whole_or_stays(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "out.xml"
    kept.write_text("before")

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "write", full)
    code, _, err = run(folder, capsys, "--max-use", "lut=1", "--junit", str(kept))
    assert code == FAILED
    assert "could not be written" in " ".join(err.split())
    assert kept.read_text() == "before"
    assert list(tmp_path.iterdir()) == [kept]

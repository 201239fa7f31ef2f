"""Locks name every drift; what is said about an artifact fits the official schemas; artifacts are built again equal."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from onnx import TensorProto, helper, numpy_helper

from cuvil_hw.cli.main import main
from cuvil_hw.entry import lock, provenance

ROOT = Path(__file__).resolve().parents[2]


def model(folder: Path, scale: float = 1.0, *, external: bool = False) -> Path:
    weights = numpy_helper.from_array((np.eye(4) * scale).astype(np.float32), "w")
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", kinds[:1], kinds[1:], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = {"location": "net.bin", "size_threshold": 0} if external else {}
    onnx.save(made, folder / "net.onnx", save_as_external_data=external, **options)
    return folder / "net.onnx"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, data for it and a lock, in the folder in which commands run."""
    monkeypatch.chdir(tmp_path)
    model(tmp_path)
    np.save("c.npy", np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32))
    assert main(["lock", "net.onnx", "-t", "cpu", "--calibration", "c.npy", "--precision", "int8", "-q"]) == 0
    return tmp_path


def other_model(folder: Path) -> None:
    model(folder, 2.0)


def other_data(folder: Path) -> None:
    np.save("c.npy", np.ones((8, 4), np.float32))


def other_package(folder: Path) -> None:
    made = json.loads((folder / "cuvil.lock").read_text())
    made["tools"]["numpy"] = "1.0.0"
    (folder / "cuvil.lock").write_text(json.dumps(made))


def other_options(folder: Path) -> None:
    made = json.loads((folder / "cuvil.lock").read_text())
    made["options"] |= {"precision": "int4"}
    (folder / "cuvil.lock").write_text(json.dumps(made))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (other_model, ["model.sha256"]),
        (other_data, ["data.calibration"]),
        (other_package, ["tools.numpy"]),
        (other_options, ["options.precision"]),
    ],
)
def test_a_drift_is_refused_by_its_name(
    change: Callable[[Path], None], named: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lock", "--strict", "-q"]) == 0
    change(here)
    capsys.readouterr()
    assert main(["lock", "--strict", "--json"]) == 1
    assert [d["name"] for d in json.loads(capsys.readouterr().out)["error"]["drift"]] == named
    line = ["compile", "net.onnx", "-t", "cpu", "--calibration", "c.npy", "--precision", "int8"]
    assert main([*line, "--locked", "cuvil.lock"]) == 1
    assert f"  - {named[0]}: locked " in capsys.readouterr().err
    assert not (here / "net.cuvil").exists()


def test_another_command_line_is_a_drift(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.onnx", "-t", "h100", "--calibration", "c.npy", "--locked", "cuvil.lock"]) == 1
    named = re.findall(r"- ([\w.-]+): locked", capsys.readouterr().err)
    assert named == ["options.precision", "target.name", "target.sha256", "tools.cc"]


def test_weights_beside_the_file_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model(tmp_path, external=True)
    assert main(["lock", "net.onnx", "-t", "h100", "-q"]) == 0
    assert main(["lock", "--strict", "-q"]) == 0
    weights = bytearray((tmp_path / "net.bin").read_bytes())
    weights[0] ^= 1
    (tmp_path / "net.bin").write_bytes(weights)
    assert main(["lock", "--strict", "-q"]) == 1


@pytest.mark.needs("torch")
def test_weights_of_a_torch_model_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("import torch\ntorch.manual_seed(1)\nnet = torch.nn.Linear(4, 2)\n")
    np.save("x.npy", np.zeros((1, 4), np.float32))
    line = ["lock", "net.py:net", "-t", "h100", "-e", "x.npy", "-q"]
    assert main(line) == 0
    found = lock.read(tmp_path / "cuvil.lock")
    assert main([*line, "--strict"]) == 0
    (tmp_path / "net.py").write_text("import torch\ntorch.manual_seed(2)\nnet = torch.nn.Linear(4, 2)\n")
    assert main(line) == 0
    names = {c.name for c in lock.changes(found, lock.read(tmp_path / "cuvil.lock"))}
    assert names == {"model.sha256", "model.weights"}
    assert "torch" in found["tools"]


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "cuvil-lock/1"}', "[1]"])
def test_what_is_no_lock(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cuvil.lock").write_text(text)
    assert main(["lock", "--strict", "--file", str(tmp_path / "cuvil.lock")]) == 1
    assert "cuvil lock` writes it" in capsys.readouterr().err


def test_what_is_said_fits_the_schemas(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In-toto's and SLSA's own protobuf types, and CycloneDX's own JSON schema in its strict form."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    line = ["compile", "net.onnx", "-t", "cpu", "--calibration", "c.npy", "--precision", "int8"]
    said = ["--locked", "cuvil.lock", "--provenance", "p.json", "--sbom", "s.json", "--builder", "https://ci.example/1"]
    assert main([*line, *said, "-q"]) == 0
    digest = hashlib.sha256((here / "net.cuvil").read_bytes()).hexdigest()

    made: dict[str, Any] = json.loads((here / "p.json").read_text())
    parsed = json_format.Parse((here / "p.json").read_text(), statement_pb2.Statement())
    Statement.copy_from_pb(parsed).validate()
    predicate = json_format.ParseDict(made["predicate"], provenance_pb2.Provenance())
    assert predicate.run_details.builder.id == "https://ci.example/1"
    assert predicate.run_details.metadata.finished_on.seconds == 1700000000
    assert (parsed.subject[0].name, dict(parsed.subject[0].digest)) == ("net.cuvil", {"sha256": digest})
    found = {d.name: d for d in predicate.build_definition.resolved_dependencies}
    for name in ("net.onnx", "calibration", "cuvil-hw"):
        assert len(found[name].digest["sha256"]) == 64
    assert found["numpy"].uri == f"pkg:pypi/numpy@{np.__version__}"
    with pytest.raises(json_format.ParseError):  # the check can fail
        json_format.ParseDict({**made["predicate"], "other": 1}, provenance_pb2.Provenance())

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    text = (here / "s.json").read_text()
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"machine-learning-model"', '"mind"')) is not None
    bill = json.loads(text)
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert {c["name"] for c in bill["components"]} >= {"net.onnx", "calibration", "numpy", "xdsl", "cc"}


def test_a_builder_is_a_uri(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(lock.CuvilError, match="expected a URI"):
        provenance.statement(lock.read(here / "cuvil.lock"), "n", b"", builder="me")


AGAIN = """
import sys, time
later = time.time() + 400 * 86400
time.time = lambda: later
from cuvil_hw.cli.main import main
sys.exit(main("compile net.onnx -t TARGET --calibration c.npy --precision int8 -q".split()))
"""


@pytest.mark.parametrize("target", ["cpu", "pynq-z2"])
def test_built_again_elsewhere_it_is_the_same_file(
    target: str, here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Another folder, cache, home, user's name, language, zone and hash seed; a year later."""
    line = ["compile", "net.onnx", "-t", target, "--calibration", "c.npy", "--precision", "int8", "-q"]
    assert main(line) == 0
    there = tmp_path_factory.mktemp("elsewhere") / "a b"
    there.mkdir()
    for name in ("net.onnx", "c.npy"):
        (there / name).write_bytes((here / name).read_bytes())
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "7",
        "CUVIL_CACHE": str(there / "cache"),
        "HOME": str(there),
        "TMPDIR": str(there),
        "USER": "somebody",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
    }
    script = AGAIN.replace("TARGET", target)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=there, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (there / "net.cuvil").read_bytes() == (here / "net.cuvil").read_bytes()

"""pytest --cuvil-target: models and programs as tests, and the fixture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.needs("gcc")


def model(path: Path, op: str = "MatMul") -> Path:
    weights = numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(4, 4), "w")
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x", "w"], ["y"])], "net", kinds[:1], kinds[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_models_and_the_fixture_run_on_each_target(tmp_path: Path) -> None:
    model(tmp_path / "net.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    (tmp_path / "test_own.py").write_text("def test_own(cuvil_target):\n    assert cuvil_target == 'cpu'\n")
    plugin = ("-p", "cuvil_hw.rig.pytest_plugin", "-p", "no:cacheprovider", "--cuvil-target", "cpu, pynq-z2")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "--rootdir", str(tmp_path), f"--junit-xml={tmp_path}/out.xml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    cases = {
        (c.attrib["classname"], c.attrib["name"]): c for c in ElementTree.parse(tmp_path / "out.xml").iter("testcase")
    }
    failed = {key for key, c in cases.items() if c.find("failure") is not None}
    assert len(cases) == 6, done.stdout
    assert failed == {("broken.onnx", "cpu"), ("broken.onnx", "pynq-z2"), ("test_own", "test_own[pynq-z2]"),
                      ("net.onnx", "pynq-z2")}, done.stdout  # fmt: skip
    assert "give calibration" in done.stdout or "calibration" in done.stdout  # why a float model isn't for this FPGA
    vectors = {p.attrib["name"]: p.attrib["value"] for p in cases["net.onnx", "cpu"].iter("property")}
    assert vectors == {"vectors": "2 computed from the IR: the artifact has none", "interface": "hw"}

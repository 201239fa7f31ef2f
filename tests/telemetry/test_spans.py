"""Spans of a compilation and of calls, collected by OpenTelemetry's own SDK; JSON logs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuvil_hw.errors import CuvilError
from cuvil_hw.target.profile import load_profile
from cuvil_hw.telemetry import logs

ROOT = Path(__file__).resolve().parents[2]
# In a process of its own: a tracer provider is set once.
COLLECT = """
import json, sys
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from cuvil_hw import api

weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", kinds[:1], kinds[1:], [weights])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
without = api.compile(model, "cpu").run(np.ones((2, 4), np.float32))
assert not any(name.startswith("opentelemetry") for name in sys.modules)

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
with api.compile(model, "cpu", golden=0) as program:
    program.run(np.ones((2, 4), np.float32))
    try:
        program.run(np.ones((2, 5), np.float32))
    except Exception:
        pass
spans = kept.get_finished_spans()
name_of = {s.context.span_id: s.name for s in spans}
print(json.dumps([
    [s.name, name_of.get(s.parent.span_id) if s.parent else None, dict(s.attributes), s.end_time - s.start_time]
    for s in spans
]))
"""


@pytest.mark.needs("gcc")
def test_a_compilation_and_a_call_are_spans(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUVIL_CACHE": str(tmp_path / "cache")}
    (tmp_path / "cache").mkdir(mode=0o700)
    done = subprocess.run([sys.executable, "-c", COLLECT], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spans = json.loads(done.stdout)
    parents = {(name, parent) for name, parent, _, _ in spans}
    assert {("import the model", "cuvil.compile"), ("choose schedules", "cuvil.compile"), ("build", "cuvil.compile"),
            ("cuvil.compile", None), ("cuvil.call", None), ("cuvil.device", "cuvil.call"),
            ("cuvil.host.before", "cuvil.call"), ("cuvil.host.after", "cuvil.call")} <= parents  # fmt: skip
    assert ("cuvil.pass", "simplify") in parents
    (compiled,) = [s for s in spans if s[0] == "cuvil.compile"]
    assert compiled[2]["cuvil.target"] == load_profile("cpu").name
    steps = sum(s[3] for s in spans if s[1] == "cuvil.compile")
    assert steps <= compiled[3]  # steps follow one another
    (call,) = [s for s in spans if s[0] == "cuvil.call"]
    assert call[2]["cuvil.samples"] == 2


def test_logs_are_json_lines_with_their_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUVIL_LOG_FORMAT", "json")
    log = logging.getLogger("cuvil.test")
    with logs.shown(logging.INFO):
        log.info("step %s\n", "fuse", extra={logs.FIELDS: {"step": "fuse"}})
        log.debug("not shown")
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["step"], first["level"], first["logger"]) == (
        "step fuse\n",
        "fuse",
        "info",
        "cuvil.test",
    )
    assert "ValueError: why" in second["error"]
    monkeypatch.setenv("CUVIL_LOG_FORMAT", "xml")
    with pytest.raises(CuvilError, match="expected text or json"), logs.shown(logging.INFO):
        pass

"""`cuvil export --triton`: the configuration is one of Triton's own messages, and model.py answers as its backend is
called. A stand-in takes the place of Triton's module: no Triton runs here."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from cuvil_hw.cli.main import FAILED, main
from cuvil_hw.errors import CuvilError

from .conftest import x

pytestmark = pytest.mark.needs("gcc")


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, array

    def as_numpy(self) -> Any:
        return self.array


class Response:
    def __init__(self, output_tensors: Any, error: Any = None) -> None:
        self.tensors, self.error = {t.name: t.array for t in output_tensors}, error


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loads a model.py as Triton does."""
    module: Any = types.ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceResponse, module.TritonError = Tensor, Response, str
    module.get_input_tensor_by_name = lambda request, name: request[name]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def load(folder: Path, config: Any) -> Any:
        spec = importlib.util.spec_from_file_location("model", folder / "1" / "model.py")
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        found = made.TritonPythonModel()
        text = json.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True))
        found.initialize({"model_repository": str(folder), "model_version": "1", "model_config": text})
        return found

    return load


def test_a_repository_that_triton_reads(
    programs: Path, tmp_path: Path, model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(programs / "two.cuvil"), "--triton", str(tmp_path), "--name", "scale", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["triton"]) == 3
    text = (tmp_path / "scale" / "config.pbtxt").read_text()
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("scale", "python", 32)
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [("x", model_config_pb2.TYPE_FP32, [4])]
    served = model(tmp_path / "scale", config)
    requests = [{"x": Tensor("x", x(n))} for n in (1, 3, 2)]
    for n, response in zip((1, 3, 2), served.execute(requests), strict=True):
        np.testing.assert_array_equal(response.tensors["y"], 2 * x(n))
    wrong = served.execute([{"x": Tensor("x", x(2))}, {"x": Tensor("x", np.zeros((1, 5), np.float32))}])
    np.testing.assert_array_equal(wrong[0].tensors["y"], 2 * x(2))
    assert "has shape (1, 5)" in wrong[1].error
    served.finalize()
    shutil.copy(programs / "bad.cuvil", tmp_path / "scale" / "1" / "model.cuvil")
    with pytest.raises(CuvilError, match="its golden vectors fail"):
        model(tmp_path / "scale", config)
    assert main(["export", str(programs / "two.cuvil"), "--triton", str(tmp_path), "--name", "../up"]) == FAILED

"""The official Triton clients against `cuvil serve`: health, metadata, inference in JSON and binary, errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from .conftest import Served, x

pytestmark = pytest.mark.needs("gcc")
Client = Any


@pytest.fixture(scope="module")
def served(programs: Path, start: Callable[..., Served], tmp_path_factory: pytest.TempPathFactory) -> Served:
    """one: a file, version 1; scale: versions 1 and 2 in folders."""
    models = tmp_path_factory.mktemp("models")
    shutil.copy(programs / "one.cuvil", models / "one.cuvil")
    for version, name in ((1, "one"), (2, "two")):
        (models / "scale" / str(version)).mkdir(parents=True)
        shutil.copy(programs / f"{name}.cuvil", models / "scale" / str(version) / "model.cuvil")
    return start(models)


@pytest.fixture(params=["http", "grpc"])
def client(served: Served, request: pytest.FixtureRequest) -> Any:
    module, url = {"http": (http, served.url), "grpc": (rpc, served.rpc)}[request.param]
    with module.InferenceServerClient(url) as made:
        made.module = module
        yield made


def infer(client: Client, model: str, array: Any, version: str = "", **options: Any) -> Any:
    given = client.module.InferInput("input", list(array.shape), "FP32")
    given.set_data_from_numpy(array, **options)
    return client.infer(model, [given], model_version=version, request_id="7")


def names(client: Client) -> tuple[str, str]:
    about = client.get_model_metadata("one", **({"as_json": True} if client.module is rpc else {}))
    return about["inputs"][0]["name"], about["outputs"][0]["name"]


def test_health_and_metadata(client: Client) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("one")
    assert client.is_model_ready("scale", "2")
    as_json = {"as_json": True} if client.module is rpc else {}
    assert client.get_server_metadata(**as_json)["name"] == "cuvil"
    about = client.get_model_metadata("scale", **as_json)
    assert about["versions"] == ["1", "2"]
    assert about["inputs"][0]["datatype"] == "FP32"
    assert [int(n) for n in about["inputs"][0]["shape"]] == [-1, 4]
    index = client.get_model_repository_index(**as_json)
    rows = index["models"] if client.module is rpc else index
    assert {(r["name"], r["version"], r["state"]) for r in rows} == {
        ("one", "1", "READY"), ("scale", "1", "READY"), ("scale", "2", "READY"),
    }  # fmt: skip


def test_inference_of_models_and_versions(client: Client) -> None:
    given, made = names(client)
    for samples in (1, 5):
        array = x(samples)
        for version, factor in (("", 2), ("1", 1), ("2", 2)):
            tensor = client.module.InferInput(given, list(array.shape), "FP32")
            tensor.set_data_from_numpy(array)
            result = client.infer("scale", [tensor], model_version=version, request_id="7")
            np.testing.assert_array_equal(result.as_numpy(made), factor * array)
            response = result.get_response()
            assert (response["id"] if client.module is http else response.id) == "7"


def test_json_and_binary_tensors_over_http(served: Served) -> None:
    with http.InferenceServerClient(served.url) as client:
        client.module = http
        given, made = names(client)
        for binary_in in (False, True):
            for binary_out in (False, True):
                tensor = http.InferInput(given, [3, 4], "FP32")
                tensor.set_data_from_numpy(x(3), binary_data=binary_in)
                wanted = [http.InferRequestedOutput(made, binary_data=binary_out)]
                result = client.infer("one", [tensor], outputs=wanted)
                np.testing.assert_array_equal(result.as_numpy(made), x(3))
                assert ("data" in result.get_output(made)) is not binary_out


def test_errors_say_what_is_wrong(client: Client) -> None:
    given, _ = names(client)

    def refused(name: str, shape: list[int], kind: str, model: str = "one", version: str = "") -> str:
        tensor = client.module.InferInput(name, shape, kind)
        dtype = {"FP32": np.float32, "INT64": np.int64}[kind]
        tensor.set_data_from_numpy(np.zeros(shape, dtype))
        with pytest.raises(InferenceServerException) as e:
            client.infer(model, [tensor], model_version=version)
        return f"{e.value.status()}: {e.value.message()}"

    assert "has shape [1, 5], the model takes [-1, 4]" in refused(given, [1, 5], "FP32")
    assert "is INT64, the model takes FP32" in refused(given, [1, 4], "INT64")
    assert "inputs given: other; the model takes each of" in refused("other", [1, 4], "FP32")
    missing = refused(given, [1, 4], "FP32", "none")
    assert "there is none of this name" in missing
    assert missing.startswith(("404", "StatusCode.NOT_FOUND"))
    assert "version '9' isn't ready; ready are: 1, 2" in refused(given, [1, 4], "FP32", "scale", "9")
    assert not client.is_model_ready("none")

"""Operation: reload without a lost or mixed answer, workers that are killed, clients that misbehave, who may call."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvil_hw.cli.main import main

from .conftest import Served, x

pytestmark = pytest.mark.needs("gcc")
Start = Callable[..., Served]


@pytest.fixture(scope="module")
def models(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(programs / "one.cuvil", folder / "scale.cuvil")
    return folder


@pytest.fixture(scope="module")
def served(models: Path, start: Start) -> Served:
    """The model scale; each test leaves it with the factor 1."""
    return start(models, "--max-request", "1", "--timeout", "2s")


def call(served: Served, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON and headers of an answer."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{served.url}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.loads(e.read()), dict(e.headers)


def infer(served: Served, array: np.ndarray[Any, Any], **headers: str) -> np.ndarray[Any, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(array.shape), "data": array.tolist()}
    status, answer, _ = call(served, "/v2/models/scale/infer", {"inputs": [tensor]}, **headers)
    assert status == 200, answer
    return np.array(answer["outputs"][0]["data"], np.float32).reshape(answer["outputs"][0]["shape"])


def replace(models: Path, source: Path) -> None:
    shutil.copy(source, models / "next")
    os.replace(models / "next", models / "scale.cuvil")


def test_reload_loses_and_mixes_nothing_and_a_bad_version_changes_nothing(
    programs: Path, models: Path, served: Served
) -> None:
    stop, answers, faults = threading.Event(), [0, 0, 0], []

    def client(seed: int) -> None:
        while not stop.is_set():
            array = x(seed)
            try:
                made = infer(served, array)
            except (AssertionError, OSError) as e:
                faults.append(repr(e))
                return
            whole = [factor for factor in (1, 2) if np.array_equal(made, factor * array)]
            answers[whole[0] if whole else 0] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        for source, status in (("two", 200), ("bad", 400), ("one", 200)):
            replace(models, programs / f"{source}.cuvil")
            got, said, _ = call(served, "/v2/repository/models/scale/load", {})
            assert got == status, said
            if status == 400:
                assert "its golden vectors fail" in said["error"]
                assert "the one that was loaded before goes on" in said["error"]
                rows = call(served, "/v2/repository/index", {})[1]
                assert [(r["state"], "golden" in r["reason"]) for r in rows] == [("READY", True)]
                np.testing.assert_array_equal(infer(served, x()), 2 * x())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert faults == []
    assert answers[0] == 0
    assert min(answers[1:]) > 0
    np.testing.assert_array_equal(infer(served, x()), x())
    deadline = time.monotonic() + 20
    while len(served.children()) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(served.children()) == 1  # the workers of old versions have ended


def test_metrics_are_prometheus(served: Served) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    def scrape() -> dict[tuple[str, str], float]:
        with urllib.request.urlopen(f"http://{served.url}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        rows = [s for f in families for s in f.samples if s.labels.get("model", "scale") == "scale"]
        return {(s.name, s.labels.get("outcome") or s.labels.get("le", "")): s.value for s in rows}

    before = scrape()
    infer(served, x(3))
    call(served, "/v2/models/scale/infer", {"inputs": []})  # refused before it reaches a queue
    after = scrape()
    changed = {key: after[key] - before[key] for key in after if after[key] != before[key]}
    seconds = changed.pop(("cuvil_request_seconds_sum", ""))
    assert seconds > 0
    assert {k: v for k, v in changed.items() if not k[0].endswith("_bucket")} == {
        ("cuvil_requests_total", "ok"): 1,
        ("cuvil_samples_total", ""): 3,
        ("cuvil_calls_total", ""): 1,
        ("cuvil_request_seconds_count", ""): 1,
    }
    assert changed["cuvil_request_seconds_bucket", "+Inf"] == 1


def test_a_killed_worker_is_replaced(served: Served) -> None:
    (worker,) = served.children()
    os.kill(worker, signal.SIGKILL)
    np.testing.assert_array_equal(infer(served, x(3)), x(3))
    assert served.children() not in ([worker], [])


def test_clients_that_misbehave_change_nothing_for_others(served: Served) -> None:
    slow = socket.create_connection(("127.0.0.1", served.http))
    slow.sendall(b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
    large = socket.create_connection(("127.0.0.1", served.http))
    large.sendall(b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2147483648\r\n\r\n")
    assert large.recv(64).startswith(b"HTTP/1.1 413")
    chunked = socket.create_connection(("127.0.0.1", served.http))
    chunked.sendall(b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    with contextlib.suppress(OSError):  # refused, and closed
        for _ in range(40):
            chunked.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
    np.testing.assert_array_equal(infer(served, x(3)), x(3))
    slow.settimeout(20)
    assert slow.recv(64).startswith(b"HTTP/1.1 408")
    for connection in (slow, large, chunked):
        connection.close()


GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_malformed_requests_are_refused(served: Served, transport: str) -> None:
    """A bounded fuzz, of a fixed seed: bytes of a good request that are changed, cut and repeated."""
    import grpc

    from cuvil_hw.serve.messages import SERVICE, message

    draw = random.Random(0)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    wire = message("ModelInferRequest")(model_name="scale", inputs=[tensor], raw_input_contents=[bytes(16)])
    good = json.dumps(GOOD).encode() if transport == "http" else wire.SerializeToString()
    codes = set()
    with grpc.insecure_channel(served.rpc) as channel:
        send = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        for _ in range(300):
            data = bytearray(good)
            for _ in range(draw.randint(1, 6)):
                at = draw.randrange(len(data) + 1)
                kind = draw.randrange(3)
                if kind == 0 and at < len(data):
                    data[at] = draw.randrange(256)
                elif kind == 1:
                    del data[at : at + draw.randint(1, 8)]
                else:
                    data[at:at] = data[at : at + 8] or draw.randbytes(4)
            if transport == "http":
                code: Any = call(served, "/v2/models/scale/infer", bytes(data))[0]
            else:
                try:
                    code = send(bytes(data), timeout=20) and "OK"
                except grpc.RpcError as e:
                    code = e.code().name  # type: ignore[attr-defined]
            codes.add(code)
    assert codes <= ({200, 400} if transport == "http" else {"OK", "INVALID_ARGUMENT", "NOT_FOUND"})
    assert codes & {400, "INVALID_ARGUMENT"}
    np.testing.assert_array_equal(infer(served, x(3)), x(3))
    assert len(served.children()) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * 100_000, "RecursionError"),
        ({"inputs": 3}, "isn't a request"),
        ({"inputs": [{**GOOD["inputs"][0], "data": [1, 2, 3, "4"]}]}, "its data aren't FP32 [1, 4]"),
        ({"inputs": [{**GOOD["inputs"][0], "data": [1, 2, 3]}]}, "its data aren't FP32 [1, 4]"),
        ({"inputs": [{**GOOD["inputs"][0], "shape": [1 << 40, 4]}]}, "no list of at most 16 extents"),
        ({"inputs": [{**GOOD["inputs"][0], "shape": [0, 4], "data": []}]}, "one at least"),
        ({"inputs": [*GOOD["inputs"], *GOOD["inputs"]]}, "takes each of x once"),
        ({**GOOD, "outputs": [{"name": "z"}]}, "the model has y"),
        ({**GOOD, "parameters": {"shared_memory_region": "a"}}, "isn't supported"),
        ({"inputs": [{**GOOD["inputs"][0], "parameters": {"binary_data_size": 16}}]}, "0 bytes are left"),
    ],
)
def test_wrong_requests_say_why(body: Any, said: str) -> None:
    from cuvil_hw.contract.device import Port
    from cuvil_hw.serve.faults import RequestError
    from cuvil_hw.serve.http_front import parse, render
    from cuvil_hw.serve.process import About
    from cuvil_hw.serve.protocol import InferResponse, arrays_for

    ports = (Port("x", (1, 4), "f32"),), (Port("y", (1, 4), "f32"),)
    about = About("scale", "cpu", "hw", 0, True, *ports, ())

    def answer() -> None:
        asked = parse("scale", "", body if isinstance(body, bytes) else json.dumps(body).encode(), None)
        arrays, _ = arrays_for(asked, about)
        render(InferResponse(asked, "1", about.outputs, arrays))

    with pytest.raises(RequestError) as e:
        answer()
    assert e.value.status == 400
    assert said in str(e.value)


def test_unloading_and_termination(served: Served) -> None:
    assert call(served, "/v2/repository/models/scale/unload", {})[0] == 200
    status, said, headers = call(served, "/v2/models/scale/infer", GOOD)
    assert (status, headers["retry-after"]) == (503, "2")
    assert "no version of it is ready" in said["error"]
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(20) == 0


def test_who_may_call(models: Path, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(models), "--host", "0.0.0.0", "--port", "0"]) == 1
    assert "anybody could call it; give a token" in " ".join(capsys.readouterr().err.split())
    token = "0123456789abcdef"
    served = start(models, CUVIL_TOKEN=token)
    assert call(served, "/v2/health/ready")[0] == 200
    status, said, headers = call(served, "/v2")
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert "token is missing or wrong" in said["error"]
    np.testing.assert_array_equal(infer(served, x(), Authorization=f"Bearer {token}"), x())
    import tritonclient.grpc as rpc
    from tritonclient.utils import InferenceServerException

    with rpc.InferenceServerClient(served.rpc) as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            client.get_server_metadata()
        assert client.get_server_metadata(headers={"authorization": f"Bearer {token}"}).name == "cuvil"

"""Models and servers for the tests of serving."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvil_hw import api

ROOT = Path(__file__).resolve().parents[2]


def program(scale: float) -> Any:
    """y = scale · x for x of 1 × 4; its golden vectors are kept."""
    weights = numpy_helper.from_array(scale * np.eye(4, dtype=np.float32), "w")
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "scale", kinds[:1], kinds[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return api.compile(model, "cpu", golden=2)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """one.cuvil and two.cuvil multiply by 1 and 2; bad.cuvil by 2 with the golden vectors of 1."""
    from dataclasses import replace

    from cuvil_hw.runtime import artifact

    folder = tmp_path_factory.mktemp("programs")
    one, two = program(1.0), program(2.0)
    one.save(folder / "one.cuvil")
    two.save(folder / "two.cuvil")
    golden = {name: one.artifact.files[name] for name in (artifact.GOLDEN, artifact.GOLDEN_INDEX)}
    artifact.write(folder / "bad.cuvil", replace(two.artifact, files={**two.artifact.files, **golden}))
    return folder


@dataclass
class Served:
    http: int
    grpc: int
    models: Path
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.http}"

    @property
    def rpc(self) -> str:
        return f"127.0.0.1:{self.grpc}"

    def children(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in task.read_text().split()]


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[..., Served]]:
    """Starts `cuvil serve` on a folder, with free ports, and ends it after the tests."""
    running: list[subprocess.Popen[str]] = []

    def run(models: Path, *options: str, **environment: str) -> Served:
        argv = ["-m", "cuvil_hw.cli.main", "serve", str(models), "--port", "0", "--grpc-port", "0", "--json", *options]
        env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        process = subprocess.Popen([sys.executable, *argv], env=env, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        return Served(said["http"], said["grpc"], models, process)

    yield run
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


def x(samples: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(samples).normal(size=(samples, 4)).astype(np.float32)

"""The board tests run in an environment of their own (make board): an older Python and NumPy than the compiler's."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if importlib.util.find_spec("pynq") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains once that this processor is no board's
        importlib.import_module("pynq")

if TYPE_CHECKING:
    import numpy as np

    from cuvil_hw.runtime.artifact import Artifact
    from sim.pynq.board import SimulatedBoard

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Case:
    """An artifact, inputs for it, and what the meaning of its IR gives for them."""

    path: Path
    artifact: Artifact
    inputs: list[np.ndarray]
    expected: list[np.ndarray]


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of artifacts: $CUVIL_BOARD_ARTIFACTS where they were made before, else made now by the Python in
    $CUVIL_COMPILER, which has the compiler's packages. Those of shared models only where there are any."""
    made = os.environ.get("CUVIL_BOARD_ARTIFACTS")
    if made:
        return Path(made)
    compiler = os.environ.get("CUVIL_COMPILER")
    if not compiler:
        pytest.fail("set CUVIL_COMPILER to a Python that has the compiler, as `make board` does")
    folder, root = tmp_path_factory.mktemp("artifacts"), HERE.parents[1]
    models = root.parent / "shared" / "models"
    command = [compiler, str(HERE / "compile_models.py"), str(folder), *([str(models)] if models.is_dir() else [])]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def case(folder: Path, name: str) -> Case:
    import numpy as np

    from cuvil_hw.runtime import artifact

    path = folder / f"{name}.cuvil"
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
        inputs = [arrays[k] for k in sorted(arrays) if k.startswith("x")]
        expected = [arrays[k] for k in sorted(arrays) if k.startswith("y")]
    return Case(path, artifact.read(path), inputs, expected)


@pytest.fixture
def kws(artifacts: Path, request: pytest.FixtureRequest) -> Case:
    if not (artifacts / "kws.cuvil").exists():
        request.getfixturevalue("models")  # skips or fails with the reason
    return case(artifacts, "kws")


@pytest.fixture
def two_ports(artifacts: Path) -> Case:
    return case(artifacts, "two_ports-pynq-z2")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry of bitstreams of this test only."""
    monkeypatch.setenv("CUVIL_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "bitstreams"


@pytest.fixture
def board(home: Path) -> Iterator[SimulatedBoard]:
    """A simulated PYNQ-Z2, which pynq takes for the board that it runs on."""
    from sim.pynq.setting import active

    with active() as made:
        yield made

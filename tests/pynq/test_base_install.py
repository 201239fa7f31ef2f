"""What a board runs, on what a board has: the runtime on Python 3.10 and NumPy 1.21, without the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import cuvil
from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError, ToolNotFound
from cuvil_hw.ops import base
from tests.support.meaning_cases import everything

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.version_info[:2]
# Relative, by bytes of the element: NumPy's own loops for exp, tanh and their kind change between its versions.
RTOL = {2: 2e-3, 4: 1e-5, 8: 1e-12}
BF16_RTOL = 2**-7  # one step: the same f32 function, rounded once, may fall to the other side of a tie

# Any import that neither the base install nor the standard library offers raises.
ONLY_BASE = """
import sys
from importlib.machinery import PathFinder

BASE = {*sys.stdlib_module_names, "cuvil", "cuvil_hw", "numpy", "yaml", "_yaml"}

class OnlyBase:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        # Where Python was built is a module of its own, named after the machine.
        return PathFinder.find_spec(name, path, target) if top in BASE or top.startswith("_sysconfigdata") else None

sys.meta_path[:] = [finder for finder in sys.meta_path if finder.__module__ == "_frozen_importlib"] + [OnlyBase]
"""


def base_install(code: str, *arguments: str) -> str:
    """Output of `code` in a process that finds this checkout, NumPy and PyYAML only."""
    command = [sys.executable, "-W", "error", "-c", ONLY_BASE + code, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.must_run
def test_these_are_a_boards_versions() -> None:
    """Skipped, with the reason, only where the machine has no Python 3.10: then the tests run on what there is."""
    if PYTHON != (3, 10):
        found = subprocess.run(["sh", "tools/board_python.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
        here = f"these tests run on Python {PYTHON[0]}.{PYTHON[1]} and NumPy {np.__version__}"
        chosen = found.returncode == 0 and os.environ.get("CI", "").lower() == "true"
        assert not chosen, f"{here}, but {found.stdout.strip()} is there: make board"
        pytest.xfail(f"{here}: tools/board_python.sh finds no Python 3.10, which boards have")
    assert np.__version__.startswith("1.21.")
    for absent in ("torch", "onnx", "xdsl", "ortools", "typer"):
        with pytest.raises(ImportError):
            __import__(absent)


@pytest.mark.must_run
@pytest.mark.needs("g++")
@pytest.mark.parametrize(("target", "interface"), [("pynq-z2", "sim"), ("cpu", "hw")])
def test_a_base_install_runs_a_keyword_spotter(artifacts: Path, target: str, interface: str) -> None:
    code = """
import numpy as np, cuvil
path, interface = sys.argv[1:]
with np.load(path.replace(".cuvil", ".npz"), allow_pickle=False) as arrays, cuvil.load(path, interface) as program:
    run = program.run(arrays["x0"])
    assert run.samples == len(arrays["x0"]) == 32
    assert len(np.unique(run.outputs[0], axis=0)) > 16  # inputs that tell programs apart
    # exp of softmax, on the processor, is another one in other versions of NumPy
    assert np.allclose(run.outputs[0], arrays["y0"], rtol=1e-6, atol=0)
    print(program.report.text())
"""
    text = base_install(code, str(artifacts / f"keywords-{target}.cuvil"), interface)
    assert "keywords" in text


@pytest.mark.must_run
def test_every_module_of_the_runtime_imports() -> None:
    code = """
import importlib, pkgutil
count = 0
for name in "errors dtypes types data version expr contract report extent ops runtime schedule target".split():
    module = importlib.import_module(f"cuvil_hw.{name}")
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), module.__name__ + "."):
        importlib.import_module(found.name)
        count += 1
for adapter in ("cpu", "cuda", "zynq", "agilex", "mlu"):
    importlib.import_module(f"cuvil_hw.adapters.{adapter}.device")
print(count)
"""
    assert int(base_install(code)) > 20


def test_ops_on_this_numpy(artifacts: Path) -> None:
    """Host steps run an op's meaning: each gives here what it gives on the NumPy of all other tests."""
    wrong = []
    with np.load(artifacts / "ops.npz", allow_pickle=False) as wanted, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of values at the ends of a range
        for n, case in enumerate(everything()):
            results = base.evaluate(case.op, case.arrays)
            for k, got in enumerate(results):
                want = wanted[f"{n}_{k}"]
                if (got.shape, got.dtype) != (want.shape, want.dtype):
                    wrong.append(str(case))
                    continue
                rtol = BF16_RTOL if want.dtype == dtypes.BF16 else RTOL.get(want.itemsize, 0.0)
                got, want = dtypes.numbers(got), dtypes.numbers(want)
                exact = want.dtype.kind != "f"
                least = 0.0 if exact else max(case.atol, float(np.finfo(want.dtype).tiny))
                near = np.allclose(got, want, 0 if exact else rtol, least, equal_nan=not exact)
                if not (np.array_equal(got, want) or near):
                    wrong.append(str(case))
    assert wrong == []
    assert n > 1_000


@pytest.mark.skipif(PYTHON >= (3, 11), reason="this Python is new enough for the compiler")
@pytest.mark.parametrize(
    "call",
    [
        lambda: cuvil.compile("model.onnx", "pynq-z2"),
        lambda: cuvil.compile_all("model.onnx", ["pynq-z2", "cpu"]),
        lambda: cuvil.compile(lambda x: x, "cpu", (np.zeros(2),)),
        lambda: cuvil.check("model.onnx"),
        lambda: cuvil.accelerate(None),
    ],
)
def test_compiling_says_which_python_it_needs(call: object) -> None:
    with pytest.raises(ToolNotFound, match=r"Python 3\.11 or newer not found.*this is Python 3\.10.*bring the \.cuvil"):
        call()  # type: ignore[operator]


def test_errors_take_notes_on_every_python() -> None:
    error = CuvilError("what")
    error.add_note("where")
    error.add_note("why")
    assert error.__notes__ == ["where", "why"]

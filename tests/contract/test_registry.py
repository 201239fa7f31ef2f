"""How devices and adapters are found, and what the base install has to do for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cuvil
from cuvil_hw.contract import registry
from cuvil_hw.errors import CuvilError
from tests.support.plug_ins import announce


def test_names_claimed_twice_and_plugins_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(
        monkeypatch,
        ("toy", "a:b", "one"),
        ("toy", "c:d", "two"),
        ("cpu", "e:f", "rogue"),
        ("bad", "no_such_mod:x", "three"),
    )
    with pytest.raises(CuvilError, match=r"'toy' is claimed by one \(a:b\) and two \(c:d\)"):
        registry.find(registry.DEVICES, "toy")
    with pytest.raises(CuvilError, match=r"'cpu' is claimed by cuvil-hw .* and rogue"):
        registry.find(registry.DEVICES, "cpu")
    with pytest.raises(CuvilError, match=r"'bad' of package three .* failed to load: ModuleNotFoundError"):
        registry.find(registry.DEVICES, "bad").load()
    names = ", ".join(sorted({"bad", "toy", *registry.BUILT_IN[registry.DEVICES]}))
    with pytest.raises(CuvilError, match=rf"no plug-in 'absent' in cuvil\.devices; there are: {names}"):
        registry.find(registry.DEVICES, "absent")
    assert registry.find(registry.DEVICES, "zynq").package == "cuvil-hw"


def test_built_in_table_is_what_the_package_announces() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    announced = {group: table for group, table in project["entry-points"].items() if group.startswith("cuvil.")}
    assert announced == registry.BUILT_IN


def test_facade_is_lazy_and_complete() -> None:
    code = (
        "import sys, cuvil; assert not {'numpy', 'cuvil_hw', 'torch', 'xdsl'} & set(sys.modules); "
        "print(cuvil.__version__)"
    )
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout.strip()) == (0, cuvil.__version__), run.stderr
    assert set(cuvil.__all__) <= set(dir(cuvil))
    assert issubclass(cuvil.InputError, cuvil.CuvilError)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = cuvil.nonsense


def test_runtime_imports_nothing_but_the_base_install() -> None:
    code = (
        "import sys, cuvil; cuvil.load; import cuvil_hw.runtime.cache; "
        "print({'torch', 'onnx', 'xdsl', 'ortools', 'typer', 'rich'} & set(sys.modules))"
    )
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True
    )
    assert run.stdout.strip() == "set()", run.stderr

"""The adapter contract, proven from outside: a target in a package of its own, installed as a user would install it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil.testing import check_adapter
from cuvil_hw.adapters.base import Adapter, Epilogues, Form, IntegerWeights, Measures, WholeComposites
from cuvil_hw.adapters.registry import load_adapter
from cuvil_hw.contract import registry
from cuvil_hw.target.profile import load_profile

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / "tests" / "plugin"
BOARD = PLUGIN / "boards" / "toy-1.yaml"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip put the plug-in into; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("site")
    where = ["--target", str(folder), str(PLUGIN)]
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *where], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def plugin(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(installed)
    yield installed
    for name in [n for n in sys.modules if n.partition(".")[0] == "cuvil_toy"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def network() -> tuple[Any, Any]:
    """A CNN like that of the demo, and calibration data."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU())
            self.pool = nn.MaxPool2d(2)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            return self.head(self.pool(x + self.depthwise(x)).flatten(1))

    return Net().eval(), np.random.default_rng(0).random((16, 1, 8, 8), np.float32)


def compile_for(board: Path, network: tuple[Any, Any]) -> cuvil.Executable:
    model, data = network
    return cuvil.compile(model, board, example_inputs=data[:1], calibration=data)


@pytest.mark.must_run
@pytest.mark.needs("pip", "hatchling", "xdsl")
def test_compiles_a_network_for_a_target_that_cuvil_does_not_know(
    plugin: Path, network: tuple[Any, Any], tmp_path: Path
) -> None:
    program = compile_for(BOARD, network)
    source = program.sources["model.toy.c"]
    assert "#include <toy.h>" in source
    assert "TOY_KERNEL void conv_" in source
    assert "TOY_GLOBAL const toy_i8 *" in source
    assert "int8_t" not in source
    kernels = [command["kernel"] for command in program.artifact.manifest.info["commands"]]
    assert len(kernels) == len(program.report["layers"]) >= 4
    assert all(f"TOY_KERNEL void {kernel}(" in source for kernel in kernels)

    path = tmp_path / "net.cuvil"
    program.save(path)
    loaded = cuvil.load(path)
    assert loaded.interface == "null"
    assert "imaginary" not in repr(loaded)
    answer = loaded(np.ones((3, 1, 8, 8), np.float32))
    assert answer.shape == (3, 10)
    assert len(np.unique(answer)) == 1  # dequantized zeros: the null device computed nothing
    with pytest.raises(cuvil.CuvilError, match="toy-1 has no interface 'hw'; it is imaginary, use 'null'"):
        cuvil.load(path, "hw")


@pytest.mark.must_run
@pytest.mark.needs("pip", "hatchling", "xdsl", "ortools")
def test_it_keeps_the_contract(plugin: Path) -> None:
    """What a package's own tests would say, in one line."""
    check_adapter(BOARD)


@pytest.mark.needs("pip", "hatchling", "xdsl", "gcc")
def test_its_sources_are_valid_in_its_own_dialect(plugin: Path, network: tuple[Any, Any], tmp_path: Path) -> None:
    sources = compile_for(BOARD, network).sources
    for name, text in sources.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-I", str(tmp_path), "-c", "model.toy.c", "-o", "m.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("pip", "hatchling", "xdsl")
def test_the_solver_keeps_to_the_plugins_own_resource(plugin: Path, network: tuple[Any, Any], tmp_path: Path) -> None:
    def board(limit: int) -> Path:
        path = tmp_path / f"toy-{limit}.yaml"
        head = f"schema: cuvil-profile/1\nname: toy-{limit}\nextends: {BOARD}\n"
        path.write_text(f"{head}resources: {{scratch: {{limit: {limit}}}}}\n", encoding="utf-8")
        return path

    widest = [layer["schedule"] for layer in compile_for(BOARD, network).report["layers"]]
    assert "lanes=8" in widest[0]
    narrow = compile_for(board(72), network).report
    assert {t["axis"]: t["used"] for t in narrow["totals"]}["scratch"] <= 72
    assert "lanes=2" in narrow["layers"][0]["schedule"]
    with pytest.raises(cuvil.DoesNotFit, match="scratch") as caught:
        compile_for(board(60), network)
    assert (caught.value.axis, caught.value.limit) == ("scratch", 60)


@pytest.mark.needs("pip", "hatchling", "typer")
def test_the_command_line_knows_it(plugin: Path) -> None:
    from cuvil_hw.adapters.target_check import check_file

    assert check_file(BOARD) == load_profile(BOARD)
    assert registry.find(registry.DEVICES, "toy").package == "cuvil-toy"


def test_without_the_package_the_board_says_what_is_missing(network: tuple[Any, Any]) -> None:
    with pytest.raises(cuvil.CuvilError, match=r"no plug-in 'toy' in cuvil.adapters; .* install the package"):
        compile_for(BOARD, network)


def claim(folder: Path, package: str, value: str, name: str = "toy", group: str = registry.ADAPTERS) -> None:
    """An installed package that registers an adapter, or what `group` is of."""
    info = folder / f"{package.replace('-', '_')}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")


def test_what_is_installed_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points are read once for the folders as they are; a new package changes its folder."""
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.plugins(registry.ADAPTERS) is registry.plugins(registry.ADAPTERS)
    assert "late" not in registry.names(registry.ADAPTERS)
    claim(tmp_path, "late-toy", "late.adapter:Adapter", "late")
    later = tmp_path.stat().st_mtime_ns + 1_000_000_000  # clocks of file systems may be coarse
    os.utime(tmp_path, ns=(later, later))
    assert "late" in registry.names(registry.ADAPTERS)


@pytest.mark.needs("pip", "hatchling")
def test_a_name_that_two_packages_claim_is_an_error(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(tmp_path, "other-toy", "other.adapter:Adapter")
    monkeypatch.syspath_prepend(tmp_path)
    message = r"'toy' is claimed by cuvil-toy \(.*\) and other-toy \(.*\); uninstall one of these packages"
    with pytest.raises(cuvil.CuvilError, match=message):
        load_adapter("toy")


def test_nobody_takes_the_place_of_a_built_in_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path, "zynq-again", "other.adapter:Adapter", "zynq")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(cuvil.CuvilError, match=r"'zynq' is claimed by cuvil-hw \(.*\) and zynq-again"):
        load_adapter("zynq")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise ValueError('no licence file')\n", "ValueError: no licence file; repair or remove package broken-toy"),
        ("import toy_sdk_of_a_vendor\n", "No module named 'toy_sdk_of_a_vendor'; install toy_sdk_of_a_vendor"),
        ("", "has no attribute 'Adapter'; repair or remove package broken-toy"),
    ],
)
def test_a_broken_plugin_is_named(module: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path, "broken-toy", "broken_toy:Adapter", "broken")
    (tmp_path / "broken_toy.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_toy", raising=False)
    with pytest.raises(cuvil.CuvilError, match="of package broken-toy") as caught:
        load_adapter("broken")
    monkeypatch.delitem(sys.modules, "broken_toy", raising=False)
    assert said in str(caught.value)


FAULTY = """
from cuvil_hw.adapters.cpu.adapter import CpuAdapter
from cuvil_hw.adapters.cpu.form import LoopNest
from cuvil_hw.adapters.base import Offer

class Form(LoopNest):
    def estimate(self, profile):
        return fault("estimate") or super().estimate(profile)

    def emit(self, *args):
        return fault("emit") or super().emit(*args)

class Adapter(CpuAdapter):
    name = "faulty"

    def __init__(self):
        fault("__init__")

    def refuses(self, op, inputs, outputs, profile):
        return fault("refuses")

    def offer(self, graph, profile):
        return fault("offer") or Offer([[Form(k, "", 1, {}, {})] for k in graph.kernels])

    def plan(self, *args):
        return fault("plan") or super().plan(*args)

def fault(where):
    return 1 // 0 if where == WHERE else None
"""


@pytest.mark.needs("torch")
@pytest.mark.parametrize("where", ["__init__", "refuses", "offer", "estimate", "emit", "plan"])
def test_a_plugins_own_exception_names_it(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    claim(tmp_path, "faulty-toy", "faulty_toy:Adapter", "faulty")
    (tmp_path / "faulty_toy.py").write_text(f"WHERE = {where!r}\n{FAULTY}", encoding="utf-8")
    board = tmp_path / "faulty-1.yaml"
    board.write_text("schema: cuvil-profile/1\nname: faulty-1\nadapter: faulty\nclock_mhz: 100\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_toy", raising=False)
    said = (
        r"cuvil.adapters plug-in 'faulty' of package faulty-toy \(faulty_toy:Adapter\) failed: ZeroDivisionError: .*; "
        "report it to the authors of faulty-toy"
    )
    with pytest.raises(cuvil.CuvilError, match=said) as caught:
        cuvil.compile(torch.nn.Linear(3, 3), board, example_inputs=np.ones((1, 3), np.float32))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    del sys.modules["faulty_toy"]


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("where", ["open_device", "load", "run"])
def test_an_exception_of_a_plugins_device_names_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: tuple[Any, Any]
) -> None:
    model, data = network
    program = cuvil.compile(model, "cpu", example_inputs=data[:1], interface="null")
    manifest = replace(program.artifact.manifest, adapter="faulty")
    claim(tmp_path, "faulty-toy", "faulty_toy:open_device", "faulty", registry.DEVICES)
    text = f"""
from cuvil_hw.runtime.null import NullDevice, NullLoaded

class Loaded(NullLoaded):
    def run(self, inputs):
        return fault("run") or super().run(inputs)

class Device(NullDevice):
    def load(self, program):
        return fault("load") or Loaded(program)

def open_device(profile, interface):
    return fault("open_device") or Device("faulty")

def fault(where):
    if where == {where!r}:
        raise OSError("no such bus")
"""
    (tmp_path / "faulty_toy.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_toy", raising=False)
    broken = cuvil.Executable(replace(program.artifact, manifest=manifest))
    with pytest.raises(cuvil.CuvilError, match=r"of package faulty-toy .* failed: OSError: no such bus; report it to"):
        broken(data[:1])
    del sys.modules["faulty_toy"]


def test_a_fault_of_a_built_in_target_is_ours(monkeypatch: pytest.MonkeyPatch, network: tuple[Any, Any]) -> None:
    monkeypatch.setattr("cuvil_hw.adapters.cpu.adapter.place", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cuvil.compile(network[0], "cpu", example_inputs=network[1][:1])


def test_nothing_in_cuvil_hw_knows_the_plugin() -> None:
    files = [*(ROOT / "cuvil_hw").rglob("*.py"), *(ROOT / "cuvil").rglob("*.py")]
    assert files
    assert [f for f in files if "cuvil_toy" in f.read_text(encoding="utf-8")] == []


def test_the_documented_size_is_true() -> None:
    counts = {}
    for path in [*sorted((PLUGIN / "cuvil_toy").glob("*.py")), BOARD]:
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        counts[path.name] = sum(1 for line in lines if line and not line.startswith("#"))
    document = (ROOT / "docs" / "add-a-target.md").read_text(encoding="utf-8")
    for name in ("lang.py", "adapter.py", "device.py", "toy-1.yaml"):
        assert f"`{name}` | {counts[name]} |" in document
    assert f"{sum(counts.values())} lines" in document


def test_the_document_names_all_that_an_adapter_has() -> None:
    document = (ROOT / "docs" / "add-a-target.md").read_text(encoding="utf-8")
    parts = [*map(vars, (Adapter, Form, Epilogues, IntegerWeights, Measures, WholeComposites)), Adapter.__annotations__]
    names = {n for part in parts for n in part if not n.startswith("_")}
    assert {"name", "lower", "float_ends", "integer_weights", "residual_epilogue"} <= names
    assert [n for n in sorted(names) if f"`{n}`" not in document] == []

"""The wheel: what is inside, what the base install may import, and that it works away from the checkout."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest

from cuvil_hw.errors import pip_install
from cuvil_hw.version import __version__

ROOT = Path(__file__).resolve().parents[2]
DATA = ("targets", "hls", "rtl", "bitstreams", "sim")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# The modules that a board runs, and the third-party packages that it has.
BASE_MODULES = (
    *("errors", "dtypes", "types", "data", "version", "expr", "contract", "report", "extent", "ops", "runtime"),
    *("schedule", "target", "adapters.zynq.device"),
)
BASE_PACKAGES = ("numpy", "yaml", "_yaml")

# Runs in a fresh interpreter: any import that neither the base install nor the standard library offers raises there.
BLOCKER = """
import importlib, pkgutil, sys
wheel, *allowed = sys.argv[1:]
sys.path.insert(0, wheel)

class OnlyBase:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {"cuvil", "cuvil_hw", *allowed}:
            raise ImportError(f"{name} is not in the base install")

sys.meta_path.insert(0, OnlyBase())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (archive,) = folder.glob("cuvil_hw-*-py3-none-any.whl")
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def _python(wheel: Path, code: str, *allowed: str) -> str:
    """Output of `code` in a process that sees the unpacked wheel, not the checkout, and of other packages `allowed`."""
    command = [sys.executable, "-P", "-W", "error", "-c", BLOCKER + code, str(wheel), *allowed]
    done = subprocess.run(command, cwd=wheel.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.must_run
@pytest.mark.needs("hatchling")
def test_wheel_holds_the_packages_and_every_data_file(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "cuvil", "cuvil_hw", *DATA], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    names = [name for name in tracked if name and (ROOT / name).is_file()]
    assert {name.partition("/")[0] for name in names} == {"cuvil", "cuvil_hw", *DATA}
    inside = [f"cuvil_hw/data/{name}" if name.startswith(DATA) else name for name in names]
    assert [name for name in inside if not (wheel / name).is_file()] == []
    assert {path.name for path in wheel.iterdir()} == {"cuvil", "cuvil_hw", f"cuvil_hw-{__version__}.dist-info"}
    assert (wheel / "cuvil" / "py.typed").is_file()
    assert (wheel / "cuvil_hw" / "py.typed").is_file()


@pytest.mark.must_run
@pytest.mark.needs("hatchling")
def test_sdist_holds_the_template_of_an_adapter_and_all_that_documents_link_to(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        inside = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in packed.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", "-z", "tests/plugin", "examples", "docs", *DATA, "pyproject.toml", "LICENSE"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    there = [PurePosixPath(name) for name in listed if name and (ROOT / name).is_file()]
    assert PurePosixPath("tests/plugin/cuvil_toy/adapter.py") in there
    assert [str(path) for path in there if path not in inside] == []
    folders = {parent for path in inside for parent in path.parents}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose):
            to = PurePosixPath(os.path.relpath(page.parent / link, ROOT))
            assert to in inside or to in folders, f"{page.name}: {link}"


@pytest.mark.needs("hatchling")
def test_metadata(wheel: Path) -> None:
    found = metadata.Distribution.at(wheel / f"cuvil_hw-{__version__}.dist-info")
    assert (found.metadata["Name"], found.version) == ("cuvil-hw", __version__)
    assert found.metadata["License-Expression"] == "Apache-2.0"
    base = [line for line in found.requires or [] if "extra ==" not in line]
    assert [line.split(">")[0] for line in base] == ["numpy", "pyyaml"]
    assert found.read_text("licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.needs("hatchling")
def test_data_is_found_inside_the_wheel(wheel: Path) -> None:
    code = f"from cuvil_hw.data import folder\nfor name in {DATA}: print(folder(name))"
    places = [Path(line) for line in _python(wheel, code).splitlines()]
    assert places == [wheel / "cuvil_hw" / "data" / name for name in DATA]
    assert all(any(place.iterdir()) for place in places)


@pytest.mark.must_run
@pytest.mark.needs("hatchling")
@pytest.mark.parametrize("name", BASE_MODULES)
def test_base_modules_import_with_the_base_install_alone(wheel: Path, name: str) -> None:
    code = f"""
module = importlib.import_module("cuvil_hw.{name}")
for found in pkgutil.walk_packages(getattr(module, "__path__", ()), module.__name__ + "."):
    importlib.import_module(found.name)
"""
    _python(wheel, code, *BASE_PACKAGES)


@pytest.mark.must_run
@pytest.mark.needs("hatchling")
def test_import_cuvil_is_light(wheel: Path) -> None:
    """The budget of 0.15 s, said without a clock: nothing but the standard library, and little of that."""
    code = "before = set(sys.modules)\nimport cuvil\nassert cuvil.__file__\nprint(*sorted(set(sys.modules) - before))"
    loaded = _python(wheel, code).split()
    assert "cuvil" in loaded
    assert len(loaded) <= 120, loaded


@pytest.mark.needs("hatchling")
def test_what_to_install_works_for_a_checkout_and_for_a_wheel(wheel: Path) -> None:
    assert shlex.split(pip_install("onnx")) == ["pip", "install", "-e", f"{ROOT}[onnx]"]
    code = "from cuvil_hw.errors import pip_install\nprint(pip_install('onnx'))"
    assert _python(wheel, code) == "pip install 'cuvil-hw[onnx]'\n"


@pytest.mark.needs("hatchling")
def test_the_blocker_blocks(wheel: Path) -> None:
    with pytest.raises(AssertionError, match="numpy is not in the base install"):
        _python(wheel, "import numpy")


@pytest.mark.parametrize("group", ["cuvil.adapters", "cuvil.devices"])
@pytest.mark.parametrize("name", ["cpu", "zynq"])
def test_entry_points_lead_to_something(group: str, name: str) -> None:
    module, _, attribute = PROJECT["entry-points"][group][name].partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_console_script_leads_to_something() -> None:
    module, _, attribute = PROJECT["scripts"]["cuvil"].partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))


def _package(requirement: str) -> str:
    """Name without version, extras and marker, spelled as in an index."""
    name = requirement
    for end in "[=<>~!; ":
        name = name.partition(end)[0]
    return name.lower().replace("_", "-")


def test_every_dependency_is_explained_and_pinned() -> None:
    wanted = {_package(line) for line in PROJECT["dependencies"]}
    for lines in PROJECT["optional-dependencies"].values():
        wanted |= {_package(line) for line in lines}
    wanted.discard("cuvil-hw")
    files = ("constraints.txt", "constraints-pynq.txt")
    lines = [line for file in files for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    pinned = {_package(line) for line in lines if "==" in line and not line.startswith("#")}
    assert wanted - pinned == set()
    document = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    assert [name for name in sorted(wanted) if name not in document] == []

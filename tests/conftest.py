"""Fixtures and rules of the whole suite: shared models, golden files, a private cache, and no silent skips."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

# Before any test module is imported: no test may read or fill the user's own cache of built simulators.
_CACHE = tempfile.mkdtemp(prefix="cuvil-tests-")
os.environ["CUVIL_CACHE"] = _CACHE

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
IN_CI = os.environ.get("CI", "").lower() == "true"
if IN_CI and importlib.util.find_spec("hypothesis") is not None:  # a board has none
    import hypothesis

    # The same examples on every run, so that a failure is the change's own; elsewhere new ones every time.
    hypothesis.settings.register_profile("same-examples", derandomize=True, print_blob=True)
    hypothesis.settings.load_profile("same-examples")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden from what is generated now")


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)


def _present(name: str) -> bool:
    if shutil.which(name) is not None:
        return True
    return name.isidentifier() and importlib.util.find_spec(name) is not None


def pytest_runtest_setup(item: pytest.Item) -> None:
    wanted = [name for mark in item.iter_markers("needs") for name in mark.args]
    missing = [name for name in wanted if not _present(name)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: neither an executable on PATH nor an importable module")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if IN_CI and report.skipped and item.get_closest_marker("must_run") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} must run in CI but was skipped: {_reason(report)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("skipped, and why")
        for report in skipped:
            terminalreporter.write_line(f"{report.nodeid}: {_reason(report)}")


@pytest.fixture(scope="session")
def models() -> Path:
    """Folder of the ONNX models that lie beside the checkout. Absent: a skip, but a failure in CI."""
    folder = ROOT.parent / "shared" / "models"
    if folder.is_dir():
        return folder
    why = f"no folder {folder} with the shared ONNX models"
    if IN_CI:
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): `text` must equal tests/golden/<name>; with --update-golden the file is written."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"no golden file {path.relative_to(ROOT)}; write it with: make golden"
        assert text == path.read_text(encoding="utf-8"), f"{path.relative_to(ROOT)} differs; if meant: make golden"

    return check

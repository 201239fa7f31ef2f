"""Fixtures and rules of the whole suite: shared models, golden files, a private cache, and no silent skips."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

# Before any test module is imported: no test may read or fill the user's own cache of built simulators. The workers of
# one run share theirs, so that what all designs include is compiled once; a pytest that a test starts has its own.
_OWN = "PYTEST_XDIST_WORKER" not in os.environ or os.environ.get("CUVIL_TESTS_RUN") != str(os.getppid())
if _OWN:
    os.environ |= {"CUVIL_CACHE": tempfile.mkdtemp(prefix="cuvil-tests-"), "CUVIL_TESTS_RUN": str(os.getpid())}
_CACHE = os.environ["CUVIL_CACHE"]

# Before NumPy and PyTorch are: workers fill the processor, threads inside one would wait for each other in loops.
os.environ |= {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}

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
    parser.addoption("--full", action="store_true", help="run every case of others' suites, not an even share of them")


def pytest_unconfigure() -> None:
    if _OWN:
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the share of `@pytest.mark.share` unless `--full` or the test's own name is given; and begins with long
    files, so that no worker is left with one when the others are done."""
    named = {argument.rpartition("::")[2] for argument in config.args}
    whole = config.getoption("--full")
    left_out = {i for i in _outside_share(items) if not whole and i.name not in named}
    config.hook.pytest_deselected(items=[i for i in items if i in left_out])
    items[:] = sorted((i for i in items if i not in left_out), key=lambda i: "conformance" not in i.path.parts)


def _outside_share(items: list[pytest.Item]) -> Generator[pytest.Item]:
    """share(seed=4) on a parametrised test: every fourth of its values of `seed` is inside, for each combination of its
    other parameters other ones."""
    seen: dict[str, tuple[dict[object, int], dict[str, int]]] = {}
    for item in items:
        mark = item.get_closest_marker("share")
        if mark is None or not isinstance(item, pytest.Function):
            continue
        ((name, parts),) = mark.kwargs.items()
        others = dict(item.callspec.params)
        value = others.pop(name)
        values, combinations = seen.setdefault(item.nodeid.partition("[")[0], ({}, {}))
        at = values.setdefault(value, len(values)), combinations.setdefault(repr(others), len(combinations))
        if sum(at) % parts:
            yield item


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


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether all of a large suite's cases are to run: on demand (make conformance), and to write what they gave."""
    return bool(request.config.getoption("--full") or request.config.getoption("--update-golden"))


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

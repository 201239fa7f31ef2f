"""The rules in tests/conftest.py do what they say, on small suites that run in a process of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(folder: Path, test: str, *arguments: str, ci: bool = False) -> tuple[int, str]:
    """Exit status and output of pytest on `test`, in a project with our conftest.py and settings, away from ours."""
    (folder / "tests").mkdir(exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "test_it.py").write_text("import pytest, warnings\n" + test, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "CI": "true" if ci else "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


MUST_RUN = """
@pytest.mark.must_run
@pytest.mark.needs("no-such-tool")
def test_proof(): pass
"""


def test_a_skipped_proof_fails_in_ci_only(tmp_path: Path) -> None:
    status, out = _run(tmp_path, MUST_RUN)
    assert status == 0
    assert "test_it.py::test_proof: needs no-such-tool" in out
    status, out = _run(tmp_path, MUST_RUN, ci=True)
    assert status == 1
    assert "must run in CI but was skipped: needs no-such-tool" in out


def test_needs_runs_where_all_names_are_present(tmp_path: Path) -> None:
    status, out = _run(tmp_path, "@pytest.mark.needs('sh', 'numpy')\ndef test_it(): raise KeyError('it ran')")
    assert status == 1
    assert "it ran" in out


def test_missing_models_skip_but_fail_in_ci(tmp_path: Path) -> None:
    nested = tmp_path / "checkout"
    nested.mkdir()
    test = "def test_it(models): assert models.name == 'models'"
    assert _run(nested, test)[0] == 0
    status, out = _run(nested, test, ci=True)
    assert status == 1
    assert "no folder" in out
    (tmp_path / "shared" / "models").mkdir(parents=True)
    status, out = _run(nested, test, ci=True)
    assert (status, "1 passed" in out) == (0, True)


def test_golden_files(tmp_path: Path) -> None:
    test = "def test_it(golden): golden('a/x.txt', 'one\\n')"
    status, out = _run(tmp_path, test)
    assert status == 1
    assert "no golden file tests/golden/a/x.txt; write it with: make golden" in out
    assert _run(tmp_path, test, "--update-golden")[0] == 0
    assert _run(tmp_path, test)[0] == 0
    status, out = _run(tmp_path, test.replace("one", "two"))
    assert status == 1
    assert "differs; if meant: make golden" in out


SHARED = """
@pytest.mark.share(seed=2)
@pytest.mark.parametrize("target", ["cpu", "zynq"])
@pytest.mark.parametrize("seed", range(10, 14))
def test_it(seed, target): print(f"ran {seed} {target}")
"""


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        ([], ["10 cpu", "11 zynq", "12 cpu", "13 zynq"]),
        (["--full"], [f"{seed} {target}" for seed in range(10, 14) for target in ("cpu", "zynq")]),
        (["tests/test_it.py::test_it[11-cpu]"], ["11 cpu"]),
    ],
)
def test_a_share_of_the_values_runs_for_each_combination_of_the_others(
    arguments: list[str], ran: list[str], tmp_path: Path
) -> None:
    status, out = _run(tmp_path, SHARED, "-s", *arguments)
    assert status == 0
    assert re.findall("ran (.*)", out) == ran


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("def test_it(): warnings.warn('old habit', DeprecationWarning)", "old habit"),
        ("@pytest.mark.sloow\ndef test_it(): pass", "'sloow' not found in `markers`"),
        ("@pytest.mark.xfail\ndef test_it(): pass", "XPASS(strict)"),
    ],
)
def test_what_is_an_error(tmp_path: Path, test: str, said: str) -> None:
    status, out = _run(tmp_path, test)
    assert status != 0
    assert said in out


def test_the_users_cache_stays_untouched(tmp_path: Path) -> None:
    test = "import os\ndef test_it(): print('cache', os.environ['CUVIL_CACHE']); assert 0"
    _, out = _run(tmp_path, test)
    (line,) = [line for line in out.splitlines() if line.startswith("cache ")]
    folder = Path(line.removeprefix("cache "))
    assert folder != Path(os.environ["CUVIL_CACHE"])
    assert not folder.exists()

"""Rules for the source tree that no linter of ours checks."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 450
# /home/xilinx is the home folder on PYNQ boards, the same on every one.
PRIVATE_PATH = re.compile(r"(?<![\w.])/(?:work|root|Users)/\w|(?<![\w.])/home/(?!xilinx\b)\w")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")


def _tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="ignore")


def _where(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _tracked()
        if path != Path(__file__)
        for number, line in enumerate(_text(path).splitlines(), 1)
        if pattern.search(line)
    ]


def test_patterns_catch_what_they_are_for() -> None:
    for bad in ("/work/" + "x", 'open("/home/' + 'ann/x")', "/Users/" + "x", "see /root/" + "y"):
        assert PRIVATE_PATH.search(bad), bad
    for good in ("/home/xilinx/overlay", "tests/work/x", "framework/work", "https://a.example/home/page"):
        assert not PRIVATE_PATH.search(good), good
    assert UNFINISHED.search("# TO" + "DO: later")


def test_no_path_of_one_machine() -> None:
    assert _where(PRIVATE_PATH) == []


def test_nothing_marked_unfinished() -> None:
    assert _where(UNFINISHED) == []


def test_files_stay_short() -> None:
    lengths = {path.relative_to(ROOT): len(_text(path).splitlines()) for path in _tracked() if path.suffix == ".py"}
    assert {path: n for path, n in lengths.items() if n >= MOST_LINES} == {}


def test_every_module_says_what_it_is() -> None:
    modules = [path for path in _tracked() if path.suffix == ".py" and path.is_relative_to(ROOT / "cuvil_hw")]
    assert modules
    silent = [path for path in modules if _text(path).strip() and not ast.get_docstring(ast.parse(_text(path)))]
    assert [str(path.relative_to(ROOT)) for path in silent] == []


def test_relative_links_in_documents_lead_somewhere() -> None:
    dead = []
    for path in _tracked():
        if path.suffix == ".md":
            prose = re.sub(r"```.*?```", "", _text(path), flags=re.DOTALL)
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
                if "://" not in target and not (path.parent / target).exists():
                    dead.append(f"{path.relative_to(ROOT)}: {target}")
    assert dead == []


def test_tests_that_documents_name_are_there() -> None:
    named = {
        found
        for path in _tracked()
        if path.suffix == ".md"
        for found in re.findall(r"`(tests/[\w/]+\.py)::(\w+)", _text(path))
    }
    assert len(named) > 10
    assert [(file, test) for file, test in named if f"def {test}(" not in _text(ROOT / file)] == []

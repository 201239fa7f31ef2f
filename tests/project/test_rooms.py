"""The house: each package of cuvil_hw is a room, and a room imports only from those below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Bottom up; what stands in one line may import one another.
ROOMS = (
    "errors dtypes types data version telemetry",
    "expr",  # scalar expressions and index arithmetic
    "contract",  # between compiler and devices: build, device, calling, signature, registry; NumPy only
    "report",  # how a report looks
    "extent",  # algebra of open sizes
    "ops",
    "runtime",  # running a program that was built
    "serve",  # models over a network
    "schedule",  # kernels, resources, solver, memory: pure data
    "target",  # profiles of boards
    "ir",
    "render",  # level2 → text
    "lower",  # kernels → level2
    "adapters",
    "passes",
    "frontend",
    "compile",
    "api",
    "entry",  # what users call beside compile
    "rig",  # boards under test
    "cli",
)
RANK = {room: rank for rank, line in enumerate(ROOMS) for room in line.split()}
# Own imports inside functions, by file or folder, with the reason.
INSIDE = {
    "cli": "start-up: `cuvil --help` needs no compiler (0.1 s instead of 1 s)",
    "frontend/__init__.py": "optional packages: a front end needs its framework",
    "entry/decorator.py": "optional package: torch, for functions",
    "entry/gate.py": "optional packages: a program is tested where the compiler isn't, too",
    "rig/pytest_plugin.py": "start-up: every pytest of an environment loads it",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "cuvil_hw").rglob("*.py")):
        yield path.relative_to(ROOT / "cuvil_hw").as_posix(), _tree(path)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def own_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module below cuvil_hw) of every import of our own, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "cuvil_hw":
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif node.module and node.module.startswith("cuvil_hw."):
                yield node.lineno, node.module.removeprefix("cuvil_hw.")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("cuvil_hw."):
                    yield node.lineno, alias.name.removeprefix("cuvil_hw.")


def room(place: str) -> str:
    return place.replace(".", "/").split("/")[0]


def upward(path: str, tree: ast.AST) -> list[str]:
    here = RANK[room(path)]
    found = own_imports(tree)
    return [f"{path}:{line}: {m}" for line, m in found if room(m) != room(path) and RANK[room(m)] > here]


def inside_functions(path: str, tree: ast.Module) -> list[str]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sorted({f"{path}:{line}: {m}" for f in functions for line, m in own_imports(f)})


def test_a_room_imports_only_from_those_below() -> None:
    assert [fault for path, tree in sources() if path != "__init__.py" for fault in upward(path, tree)] == []


def test_an_import_of_a_room_above_is_found() -> None:
    assert upward("ops/base.py", ast.parse("def f():\n    from cuvil_hw.passes import constant_folding")) == [
        "ops/base.py:2: passes"
    ]
    assert upward("passes/constant_folding.py", ast.parse("from cuvil_hw.ops import base")) == []


def test_imports_stand_at_the_top() -> None:
    faults = {path: inside_functions(path, tree) for path, tree in sources()}
    found = {path: lines for path, lines in faults.items() if lines}
    listed = [key for path in found for key in INSIDE if path == key or path.startswith(key + "/")]
    assert {p: f for p, f in found.items() if not any(p == k or p.startswith(k + "/") for k in INSIDE)} == {}
    assert set(listed) == set(INSIDE), "an exception that nothing needs any more"


@pytest.mark.parametrize("folder", ["cuvil_hw"])
def test_the_root_has_few_modules(folder: str) -> None:
    names = {p.stem for p in (ROOT / folder).glob("*.py")}
    assert names == {"__init__", "dtypes", "types", "data", "version", "api"}


# Public classes of one name: what they are instead of two names, and why both keep theirs.
SHARED = {
    "Port": "of a device program (contract); an annotation called after the attribute that it is, cuvil.port",
    "Reshape": "the op (ops); an annotation called after the pragma that it becomes",
}


def same_names(trees: Iterator[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Files by the name of a public class that stands at the top of more than one."""
    found: dict[str, list[str]] = {}
    for path, tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_no_two_public_classes_share_a_name() -> None:
    shared = same_names(sources())
    assert {name: paths for name, paths in shared.items() if name not in SHARED} == {}
    assert set(SHARED) == set(shared), "an exception that nothing needs any more"


def test_classes_of_one_name_are_found() -> None:
    one = ast.parse("class Guard: ...\nclass _State: ...")
    assert same_names(iter([("a.py", one), ("b.py", one)])) == {"Guard": ["a.py", "b.py"]}

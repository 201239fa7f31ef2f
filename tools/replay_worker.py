"""What one process of `tools/replay.py` does: compile programs with the package in one folder, print what came out.

    python tools/replay_worker.py TREE < PAIRS        # lines "PROGRAM@TARGET"

Prints lines of JSON. "times" are processor seconds: of `import cuvil`, of reaching `cuvil.compile`, of a first
compilation, which loads the rest; "imported": of importing one more model. For every pair: "program", "target",
"seconds" and "texts", by name the text of each generated file, each group of figures of the report, or the error. No
tool is run and no device is opened.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# The steps of a compilation that run tools, by name and parameters: the only names from inside of the package here.
RUNS_TOOLS = {"build": ["plan"], "measure": ["adapter", "plan", "profile"]}
# Keys of the report by group; what is nowhere here is in "about".
GROUPS = {
    "cycles": ("bottleneck", "solver", "latency", "throughput", "timing", "clock_hz"),
    "graph": ("graph",),
    "memory": ("memory", "state"),
    "notes": ("notes",),
    "precision": ("precision", "quantization", "accuracy"),
    "processor": ("host",),
    "resources": ("totals",),
    "schedule": ("style",),
}
OF_A_LAYER = {"cycles": ("cycles", "seconds", "origin"), "resources": ("use",)}
ROUNDED = "precision"  # its figures come from libraries that add in orders of their own
DIGITS = 4
CRASH = "crash:"  # starts the error of a compilation that ended in something other than a CuvilError


def main(tree: str, pairs: list[str]) -> None:
    """Prints the lines. Raises AssertionError when the package does not come from `tree`."""
    sys.path[0] = tree
    times = {"import": seconds(lambda: import_module("cuvil"))}
    times["compiler"] = seconds(lambda: import_module("cuvil").compile)
    package = import_module("cuvil_hw")
    assert Path(str(package.__file__)).is_relative_to(tree), f"{package.__file__} is not below {tree}"
    # The package is there, and finds its modules in its own folder; the programs are those beside this file.
    sys.path.insert(0, str(ROOT))
    from tools.replay_programs import PROGRAMS

    wanted: dict[str, list[str]] = {}
    for pair in pairs:
        name, _, target = pair.partition("@")
        wanted.setdefault(name, []).append(target)
    with no_tools() as commands:
        first = wanted[pairs[0].partition("@")[0]][:1]
        times["first"] = seconds(lambda: PROGRAMS[0].compile(first, lambda _: None, lambda *_: None))
        _print({"times": times})
        for program in PROGRAMS:
            if program.name in wanted:
                replay(program, wanted[program.name], commands)


def replay(program: Any, targets: list[str], commands: list[str]) -> None:
    """Prints what a program becomes on each target, and seconds of importing it. `commands`: see `no_tools`."""
    start, seen = time.process_time(), set()

    def began(target: str) -> None:
        nonlocal start
        if not seen:
            _print({"imported": time.process_time() - start})
        commands.clear()
        start = time.process_time()

    def done(target: str, made: Any) -> None:
        seen.add(target)
        took = time.process_time() - start
        texts = {"error": failure(made)} if isinstance(made, Exception) else texts_of(made)
        if "error" not in texts:
            texts["commands"] = "".join(commands)
        _print({"program": program.name, "target": target, "seconds": took, "texts": texts})

    try:
        program.compile(targets, began, done)
    except Exception:
        # Of one target, or of all? Each by itself says.
        for target in [t for t in targets if t not in seen]:
            try:
                program.compile([target], began, done)
            except Exception as e:
                done(target, e)


def failure(error: Exception) -> str:
    """What a user would read; in front of it CRASH where that is no answer."""
    known = isinstance(error, import_module("cuvil").CuvilError)
    notes = "".join(f"{note}\n" for note in getattr(error, "__notes__", ()))
    return f"{'' if known else CRASH + ' '}{type(error).__name__}: {error}\n{notes}"


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds that it takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def _print(data: Mapping[str, Any]) -> None:
    print(json.dumps(data), flush=True)


@contextmanager
def no_tools() -> Iterator[list[str]]:
    """Compilations in the meantime run no tool: products are empty files, nothing is measured. Gives the commands that
    would have made the products, as they come."""
    import_module("cuvil_hw.api")  # brings the steps
    commands: list[str] = []

    def build(plan: Any) -> Any:
        commands.extend(f"{json.dumps(c.argv)}{' (optional)' * c.optional}\n" for c in plan.commands)
        commands.extend(f"makes {product}\n" for product in plan.products)
        products = dict.fromkeys(plan.products, b"")
        given = {str(signature(found).return_annotation) for _, name, found in replaced if name == "build"}
        return products if given == {"dict[str, bytes]"} else (plan, products)  # the first in older revisions

    def measure(adapter: Any, plan: Any, profile: Any) -> Any:
        return SimpleNamespace(use={}, notes=())

    replaced: list[tuple[Any, str, FunctionType]] = []
    for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "cuvil_hw"]:
        for stand_in in (build, measure):
            name = stand_in.__name__
            found = vars(module).get(name)
            if isinstance(found, FunctionType) and list(signature(found).parameters) == RUNS_TOOLS[name]:
                replaced.append((module, name, found))
                setattr(module, name, stand_in)
    missing = set(RUNS_TOOLS) - {name for _, name, _ in replaced}
    if missing:
        raise RuntimeError(
            f"no step {min(missing)} in this revision; bring RUNS_TOOLS of {Path(__file__).name} up to date"
        )
    try:
        yield commands
    finally:
        for module, name, found in replaced:
            setattr(module, name, found)


def texts_of(made: Any) -> dict[str, str]:
    """By name, the texts of a compiled program: its saved form is read, which is public."""
    with tempfile.TemporaryDirectory(prefix="cuvil-replay-") as folder:
        path = Path(folder) / "program.cuvil"
        made.save(path)
        return dict(_members(path.read_bytes()))


def _members(data: bytes, below: str = "") -> Iterator[tuple[str, str]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in sorted(archive.namelist()):
            content = archive.read(name)
            if name.startswith("products/"):
                continue
            if name.endswith(".cuvil"):
                yield from _members(content, f"{below}{name}/")
            elif name == "report.json":
                for group, figures in grouped(json.loads(content)).items():
                    yield f"{below}report/{group}", _json(figures)
            elif name == "manifest.json":
                manifest = json.loads(content)
                del manifest["members"], manifest["product_version"]
                yield f"{below}manifest", _json(manifest)
            else:
                yield below + name, _text(content)


def grouped(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report's figures by group, those of layers by the layer's name."""
    where = {key: group for group, keys in GROUPS.items() for key in keys}
    of_layer = {key: group for group, keys in OF_A_LAYER.items() for key in keys}
    groups: dict[str, Any] = {}
    for key, value in report.items():
        if key != "layers":
            groups.setdefault(where.get(key, "about"), {})[key] = value
    for layer in report.get("layers", ()):
        for key, value in layer.items():
            layers = groups.setdefault(of_layer.get(key, "schedule"), {}).setdefault("layers", {})
            layers.setdefault(layer["name"], {})[key] = value
    groups[ROUNDED] = _rounded(groups.get(ROUNDED))
    return groups


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _text(content: bytes) -> str:
    """What a diff can show: the text, of other bytes their number and digest."""
    try:
        return content.decode("utf-8") if b"\0" not in content else _binary(content)
    except UnicodeDecodeError:
        return _binary(content)


def _binary(content: bytes) -> str:
    return f"{len(content)} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}\n"


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read().split())

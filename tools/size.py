"""Prints lines of code (neither blank nor comment) by folder, by adapter and by language table.

A new adapter, board or language should stay small; this shows whether it does.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".h", ".hpp", ".cpp", ".tcl", ".yaml"}
TREES = ("cuvil", "cuvil_hw", "targets", "hls", "rtl", "sim", "tests", "examples", "benchmarks", "tools")


def code_lines(path: Path) -> int:
    """Lines of `path` that are neither blank nor only a comment; docstrings count."""
    marks = ("//",) if path.suffix in {".h", ".hpp", ".cpp"} else ("#",)
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return sum(1 for line in lines if line and not line.startswith(marks))


def sources(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and "__pycache__" not in path.parts]


def table(title: str, rows: list[tuple[str, list[Path]]]) -> None:
    print(title)
    for name, paths in rows:
        if paths:
            print(f"  {name:<24}{sum(map(code_lines, paths)):>7} lines {len(paths):>4} files")


def folders(parent: Path) -> list[tuple[str, list[Path]]]:
    return [(path.name, sources(path)) for path in sorted(parent.iterdir()) if path.is_dir()]


# What talks to a Zynq board, beside what makes the design.
BOARD = ("bitstreams", "hw", "hwh", "shell")
# Files that hold one language; lang.py holds the form of a table and two languages.
LANGUAGES = ("opencl", "sycl", "cuda", "bang")
LANG = ROOT / "cuvil_hw" / "render" / "c" / "lang.py"
# What names a type of elements: lines that know of it, and of nothing else's kind.
ELEMENTS = {"f16": r"\bf16\b|\bfloat16\b|\bhalf(_t)?\b", "bf16": r"\bbf16\b|BF16|bfloat|BFloat|BFLOAT"}


def languages(path: Path) -> dict[str, int]:
    """Lines of each table `NAME = Lang(…)` of a file, and of its private values, which go to the table after them."""
    text = path.read_text(encoding="utf-8")
    found, waiting = {}, 0
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            lines = sum(1 for line in text.splitlines()[node.lineno - 1 : node.end_lineno] if line.strip())
            if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "Lang":
                found[node.targets[0].id.lower()] = waiting + lines
                waiting = 0
            elif node.targets[0].id.startswith("_"):
                waiting += lines
    return found


def beside(title: str, common: int, private: dict[str, int]) -> None:
    """Lines of what several share, beside what each has of its own."""
    print(title)
    print(f"  {'shared':<24}{common:>7} lines")
    for name, lines in private.items():
        print(f"  {'only ' + name:<24}{lines:>7} lines")
    print(f"  {'private of all together':<24}{sum(private.values()):>7} lines")
    apart = {name: lines for name, lines in private.items() if not name.endswith("board")}
    if apart != private:
        print(f"  {'without the board':<24}{sum(apart.values()):>7} lines")


def named(pattern: str, paths: list[Path]) -> tuple[int, int]:
    """Lines with `pattern`, or all lines of a file that is named after it, and the files that have any."""
    counts = []
    for path in paths:
        whole = re.search(pattern, path.stem)
        lines = path.read_text(encoding="utf-8").splitlines()
        counts.append(code_lines(path) if whole else sum(bool(re.search(pattern, line)) for line in lines))
    return sum(counts), sum(map(bool, counts))


def main() -> None:
    table("trees", [(name, sources(ROOT / name)) for name in TREES if (ROOT / name).is_dir()])
    table("cuvil_hw, by folder", folders(ROOT / "cuvil_hw"))
    table("adapters", folders(ROOT / "cuvil_hw" / "adapters"))
    table("simulators", folders(ROOT / "sim"))

    adapters = ROOT / "cuvil_hw" / "adapters"
    zynq = sources(adapters / "zynq")
    beside(
        "streaming FPGA targets",
        sum(map(code_lines, sources(adapters / "streaming"))),
        {
            "zynq, design": sum(code_lines(path) for path in zynq if path.stem not in BOARD),
            "zynq, board": sum(code_lines(path) for path in zynq if path.stem in BOARD),
            "agilex": sum(map(code_lines, sources(adapters / "agilex"))),
        },
    )
    print("element types, lines that name one")
    for dtype, pattern in ELEMENTS.items():
        lines, files = named(pattern, [p for tree in ("cuvil_hw", "sim", "hls") for p in sources(ROOT / tree)])
        print(f"  {dtype:<24}{lines:>7} lines {files:>4} files")
    render = sources(ROOT / "cuvil_hw" / "render")
    private = {
        **languages(LANG),
        **{path.stem: code_lines(path) for path in render if path.stem in LANGUAGES},
    }
    walker = sum(code_lines(path) for path in render if path.stem not in LANGUAGES)
    beside("C-family languages: one walker, a table each", walker - sum(languages(LANG).values()), private)


if __name__ == "__main__":
    main()

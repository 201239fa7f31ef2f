"""Prints lines of code (neither blank nor comment) by folder, by adapter and by language table.

A new adapter, board or language should stay small; this shows whether it does.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".h", ".hpp", ".cpp", ".tcl", ".yaml"}
TREES = ("cuvil", "cuvil_hw", "targets", "hls", "sim", "tests", "examples", "benchmarks", "tools")


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


# Language tables of the C-family walker; everything else in render/ is shared by them.
TABLES = ("lang", "opencl", "sycl", "cuda", "bang")


def shared(title: str, common: list[Path], private: list[tuple[str, list[Path]]]) -> None:
    """Lines of what several share, beside what each has of its own."""
    table(title, [("shared", common), *(("only " + name, paths) for name, paths in private)])


def main() -> None:
    table("trees", [(name, sources(ROOT / name)) for name in TREES if (ROOT / name).is_dir()])
    table("cuvil_hw, by folder", folders(ROOT / "cuvil_hw"))
    table("adapters", folders(ROOT / "cuvil_hw" / "adapters"))
    table("renderers and language tables", [(path.stem, [path]) for path in sources(ROOT / "cuvil_hw" / "render")])

    adapters, render = ROOT / "cuvil_hw" / "adapters", sources(ROOT / "cuvil_hw" / "render")
    fpga = [(name, sources(adapters / name)) for name in ("zynq", "agilex")]
    shared("streaming FPGA targets", sources(adapters / "fpga"), fpga)
    shared(
        "C-family languages",
        [path for path in render if path.stem not in TABLES],
        [(path.stem, [path]) for path in render if path.stem in TABLES],
    )


if __name__ == "__main__":
    main()

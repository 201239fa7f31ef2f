"""The checkout as if it were installed, for processes that look for its entry points."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def path_with_entry_points(folder: Path) -> str:
    """A PYTHONPATH on which the checkout lies and importlib.metadata finds what pyproject.toml enters."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    info = folder / "site" / "cuvil_hw-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cuvil-hw\nVersion: 0\n", encoding="utf-8")
    lines = [line for g, entries in groups.items() for line in (f"[{g}]", *(f"{k} = {v}" for k, v in entries.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{ROOT}:{info.parent}"

"""The IR of a compilation after each step, as numbered files."""

from __future__ import annotations

import re
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from cuvil_hw.errors import CuvilError
from cuvil_hw.report.file import write_text


class Dump:
    """Writes `00-import.mlir`, `01-fold.mlir`, … into a folder, one after each step. Constants appear as digests, as in
    all IR text. Files of an earlier dump with higher numbers stay."""

    def __init__(self, folder: str | Path) -> None:
        """Raises CuvilError when the folder can't be made."""
        self.folder, self._next = Path(folder), 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise CuvilError(f"dump={str(folder)!r}: can't make this folder: {e.strerror or e}") from e

    def __call__(self, what: str, module: ModuleOp) -> None:
        """Raises CuvilError when the file can't be written."""
        name = re.sub(r"[^A-Za-z0-9=._-]+", "-", what).strip("-")
        write_text(self.folder / f"{self._next:02}-{name}.mlir", str(module) + "\n")
        self._next += 1

"""Writes the output files of commands and reports."""

from __future__ import annotations

import os

from cuvil_hw.contract.files import replace
from cuvil_hw.errors import CuvilError


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to the file at `path` in one step (contract/files.py). Raises CuvilError (no such folder, no
    permission, disk full)."""
    try:
        replace(path, data)
    except (OSError, ValueError) as e:  # ValueError: a path that no file can have
        why = getattr(e, "strerror", None) or e
        raise CuvilError(f"{os.fspath(path)}: could not be written: {why}; choose another place") from e


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """`write_bytes` of UTF-8."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))

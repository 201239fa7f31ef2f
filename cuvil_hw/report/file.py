"""Writing a file so that it appears whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cuvil_hw.errors import CuvilError


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at `path`. Raises CuvilError (no such folder, no permission, disk full)."""
    target = Path(path)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            temporary.write_bytes(data)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as e:
        raise CuvilError(f"{target}: could not be written: {e.strerror or e}; choose another place") from e


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """`write_bytes` of UTF-8."""
    write_bytes(path, text.encode("utf-8"))

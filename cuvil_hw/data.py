"""The location of the package's data folders: in an installed wheel, or at the root of a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The folder "targets", "hls", "rtl", "bitstreams" or "sim". Raises FileNotFoundError for a broken installation."""
    for place in (_PACKAGE / "data" / name, _PACKAGE.parent / name):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"data folder {name!r} is missing from the cuvil-hw installation; reinstall the package")

"""Writes a file so that readers see all of it or nothing; a target that isn't a regular file is written directly."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path


def replace(path: str | os.PathLike[str], data: bytes, *, durable: bool = False, mode: int | None = None) -> None:
    """Write `data` to the file at `path`. Raises OSError.

    A regular file (also behind a link) is replaced in one step by a new one with the same permissions: a reader sees
    the old or the new content. A device, pipe or socket is written to and stays what it is; so is everything below /dev
    and /proc, where names stand for open files. `durable`: return once the bytes are on the disk. `mode`: permissions
    to set, whatever the old file's and the umask are.
    """
    given = os.fspath(path)
    try:
        status: os.stat_result | None = os.stat(given)
    except FileNotFoundError:
        status = None  # nothing there, or a link that leads to nothing: the file is made at its end
        folder, name = os.path.split(given)
        if name in ("", os.curdir, os.pardir):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), given) from None
        os.stat(folder or os.curdir)  # realpath would leave out a missing folder before ".."
    # ".." goes up from where a link leads, so only this question is asked of the text alone.
    apparent = os.path.abspath(given)
    through = apparent.startswith(("/dev/", "/proc/")) and not apparent.startswith("/dev/shm/")
    if status is not None and (through or not stat.S_ISREG(status.st_mode)):
        with open(given, "wb", buffering=0) as f:
            _write(f.fileno(), data)
        return
    target = Path(os.path.realpath(given))
    permissions = mode if mode is not None or status is None else stat.S_IMODE(status.st_mode)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb", buffering=0) as f:
            _write(f.fileno(), data)
            if permissions is not None:
                os.fchmod(f.fileno(), permissions)
            if durable:
                os.fsync(f.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        _sync_folder(target.parent)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_folder(folder: Path) -> None:
    """Make the new directory entry durable, if the system can sync folders."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)

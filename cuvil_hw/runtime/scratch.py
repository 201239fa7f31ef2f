"""Private temporary folders, and libraries that are loaded from them."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import shutil
import struct
import tempfile
import weakref
from pathlib import Path
from typing import Any

from cuvil_hw.errors import CuvilError, DeviceError
from cuvil_hw.runtime.cache import root

_ERROR_BYTES = 4096  # that a library's function may fill with why it failed


class Scratch:
    """A folder for this user only. It is removed by `remove`, by garbage collection, or at the end of its process;
    forked processes leave it alone."""

    def __init__(self, prefix: str) -> None:
        """Raises CuvilError when no folder can be made."""
        self.path = make_folder(prefix)
        self._remove = weakref.finalize(self, _remove, self.path, os.getpid())

    def remove(self) -> None:
        """May be called twice."""
        self._remove()


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def make_folder(prefix: str) -> Path:
    """A new folder in which files can be written and, if possible, libraries loaded from: below the system's temporary
    folder, else below the build cache. Raises CuvilError."""
    problems = []
    places = (_temporary, _cache)
    for may_be_noexec in (False, True):
        for place in places:
            try:
                where = place()
                if may_be_noexec or not noexec(where):
                    return Path(tempfile.mkdtemp(prefix=prefix, dir=where))
            except (OSError, CuvilError) as e:
                problems.append(str(e))
    raise CuvilError(
        f"no usable temporary folder: {problems[0]}; set TMPDIR to a folder that can be written, or free space"
    )


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


def _cache() -> Path:
    return root()


def noexec(folder: Path) -> bool:
    """Whether the folder's file system refuses to load code."""
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


class Library:
    """A shared library with its own global variables: no other program and no forked process shares them.

    `close` unloads it; no thread may be inside then.
    """

    def __init__(self, path: Path, program: str) -> None:
        """Loads a private copy of `path`, since the loader treats the same file as the same library. Raises
        DeviceError."""
        self._copy = Scratch("cuvil-lib-")
        copy = self._copy.path / path.name
        try:
            shutil.copyfile(path, copy)
        except OSError as e:
            raise DeviceError(f"{program}: {path} can't be copied to {copy.parent}: {e.strerror or e}") from e
        self.path = copy
        self.functions = load_library(copy, program)
        self._handle: int | None = self.functions._handle

    def call(self, symbol: str, *arguments: Any, failure: str) -> None:
        """Call `int symbol(…, char *error, long size)`. Raises DeviceError, `failure` and what the function says, when
        it doesn't return 0."""
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if self.functions[symbol](*arguments, error, ctypes.c_long(_ERROR_BYTES)) != 0:
            raise DeviceError(f"{failure}: {error.value.decode(errors='replace')}")

    def close(self) -> None:
        """May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _ctypes.dlclose(handle)
        self._copy.remove()


def load_library(path: Path, program: str) -> ctypes.CDLL:
    """Load a library. Raises DeviceError that says why it can't be loaded and what to do."""
    try:
        whole(path)
        return ctypes.CDLL(str(path))
    except (OSError, ValueError) as e:
        remedy = "compile the model again"
        if isinstance(e, OSError) and path.parent.is_dir() and noexec(path.parent):
            remedy = (
                f"{path.parent} is mounted noexec, which forbids loading code from it; set TMPDIR or CUVIL_CACHE to a "
                "folder that allows it"
            )
        raise DeviceError(f"{program}: {path} can't be loaded: {e}; {remedy}") from e


def whole(path: Path) -> None:
    """Raises ValueError when an ELF file is truncated. The loader would map pages that don't exist, and touching them
    would kill the process (SIGBUS)."""
    size = path.stat().st_size
    with path.open("rb") as f:
        head = f.read(64)
        if len(head) < 52 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
            raise ValueError("it is no shared library (ELF)")
        wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
        if wide and len(head) < 64:
            raise ValueError("it is cut short")
        # e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum of the System V ABI's ELF header.
        start, at = (f"{order}QQIHHH", 32) if wide else (f"{order}IIIHHH", 28)
        table, _, _, _, each, count = struct.unpack_from(start, head, at)
        # A program header, up to p_filesz.
        kind, least = (f"{order}IIQQQQ", 56) if wide else (f"{order}IIIII", 32)
        if each < least:
            raise ValueError("its program headers are damaged")
        f.seek(table)
        headers = f.read(each * count)
    if len(headers) < each * count:
        raise ValueError("it is cut short")
    for n in range(count):
        fields = struct.unpack_from(kind, headers, n * each)
        offset, length = (fields[2], fields[5]) if wide else (fields[1], fields[4])
        if offset + length > size:
            raise ValueError("it is cut short")

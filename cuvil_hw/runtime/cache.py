"""A cache of build products by content, so that simulators and libraries are compiled once.

Each entry is a folder named by its key, with the products and "entry.json" (their SHA-256), which is written last. An
entry is verified at every use, and rebuilt when it is damaged. A lock file per key keeps several processes from
building the same key twice. The root is $CUVIL_CACHE, else $XDG_CACHE_HOME/cuvil, else ~/.cache/cuvil.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeVar

from cuvil_hw.contract import canonical, programs
from cuvil_hw.contract.build import BuildPlan, write_files
from cuvil_hw.errors import BuildFailed, CuvilError, ToolNotFound
from cuvil_hw.version import VERSION

ENTRY = "entry.json"
LOCK_TIMEOUT_S = 1800.0
_KEY = re.compile(r"[0-9a-f]{64}\Z")
# Read by compilers besides their arguments.
_ENVIRONMENT = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
_log = logging.getLogger("cuvil.build")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Info:
    """Location of the cache, number of entries, their total size."""

    root: Path
    entries: int
    size_bytes: int


def cached_build(plan: BuildPlan, extra_key: str = "") -> Path:
    """A folder with the plan's products, built now unless there is a valid entry. Treat it as read-only.

    `extra_key` stands for inputs of the commands that are neither in the plan nor part of a tool, such as headers
    elsewhere: pass their digest. Raises as `BuildPlan.execute` does, and CuvilError when the cache can't be used.
    """
    missing = plan.missing_tool()
    if missing is not None:
        raise missing
    key = build_key(plan, extra_key)
    top = root()
    entry = top / key
    with _locked(top, key):
        if _damage(entry, plan) is None:
            _log.debug("built before: %s", entry)
            return entry
        for stale in (entry, *top.glob(f".{key}-*")):
            _remove(stale)
        _build(plan, top, key)
    return entry


def build(plan: BuildPlan) -> tuple[BuildPlan, dict[str, bytes]]:
    """Build a plan's products, or take them from the build cache; where a command fails, those of the plan's
    alternative. The plan that was built comes with them. Raises ToolNotFound, BuildFailed."""
    try:
        folder = cached_build(plan) if plan.products else Path()
    except BuildFailed as e:
        if plan.otherwise is None:
            raise
        _log.info("%s; building the alternative", e)
        said = e.output.strip().splitlines()[-1:] or [f"{e.command[0]} exited with {e.returncode}"]
        return build(replace(plan.otherwise, instead=f"{plan.otherwise.instead or 'second attempt'}: {said[0]}"))
    return plan, {name: (folder / name).read_bytes() for name in plan.products}


def cached(plan: BuildPlan, extra_key: str = "") -> Path | None:
    """The entry that `cached_build` would return without building; None if there is no valid one. Raises ToolNotFound
    and CuvilError as `cached_build` does."""
    entry = entry_path(plan, extra_key)
    return entry if _damage(entry, plan) is None else None


def entry_path(plan: BuildPlan, extra_key: str = "") -> Path:
    """Where the plan's entry is, or would be. Raises as `cached` does."""
    return root() / build_key(plan, extra_key)


def build_key(plan: BuildPlan, extra_key: str = "") -> str:
    """SHA-256 (hex) over everything that the products depend on: plan, tools, machine, environment, package version."""
    tools = {c.argv[0]: _tool_digest(c.argv[0]) for c in plan.commands if not c.optional}
    environment = {name: os.environ.get(name, "") for name in _ENVIRONMENT}
    parts = [plan.digest(), extra_key, VERSION, tools, environment, _machine()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def root() -> Path:
    """The cache's folder, created if needed, accessible to this user only.

    Raises CuvilError if $CUVIL_CACHE can't be used. If the default place can't be written, logs a warning and uses a
    private folder that is removed when this process ends.
    """
    chosen = os.environ.get("CUVIL_CACHE")
    if chosen:
        return _private(Path(chosen).absolute(), "set CUVIL_CACHE to a folder of your own")
    base = os.environ.get("XDG_CACHE_HOME", "")
    place = (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "cuvil"
    try:
        return _private(place, "")
    except CuvilError as e:
        return _temporary_root(str(e))


def info() -> Info:
    """Number and size of the entries. Raises CuvilError as `root` does."""
    top = root()
    entries = [p for p in top.iterdir() if _KEY.match(p.name)]
    size = sum(f.stat().st_size for e in entries for f in e.rglob("*") if f.is_file())
    return Info(top, len(entries), size)


def clear() -> int:
    """Remove every entry and return how many there were. Programs that are already loaded keep running."""
    top, removed = root(), 0
    for entry in [p for p in top.iterdir() if _KEY.match(p.name)]:
        with _locked(top, entry.name):
            if entry.exists():
                _remove(entry)
                removed += 1
    return removed


def _build(plan: BuildPlan, top: Path, key: str) -> None:
    work = Path(_attempt(top, lambda: tempfile.mkdtemp(prefix=f".{key}-", dir=top)))
    try:
        products = plan.execute(_made(work / "build"))
        done = _made(work / "entry")
        write_files(done, products, mode=0o700)
        listing = {name: hashlib.sha256(data).hexdigest() for name, data in products.items()}
        write_files(done, {ENTRY: canonical.dump(listing)}, mode=0o600)
        _attempt(top, lambda: os.replace(done, top / key))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _damage(entry: Path, plan: BuildPlan) -> str | None:
    """Why an entry can't be used; None when it is whole."""
    try:
        listing = canonical.parse((entry / ENTRY).read_bytes())
        if set(listing) != set(plan.products):
            return "has other products"
        for name, expected in listing.items():
            path = entry / name
            if path.is_symlink() or hashlib.sha256(path.read_bytes()).hexdigest() != expected:
                return f"{name} is damaged"
    except (OSError, ValueError, LookupError, TypeError) as e:
        return f"{type(e).__name__}: {e}"
    return None


@contextmanager
def _locked(top: Path, key: str) -> Iterator[None]:
    path = top / f"{key}.lock"
    fd = _attempt(top, lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not _try_lock(fd, path):
            if time.monotonic() > deadline:
                raise CuvilError(f"{path}: another process held it {LOCK_TIMEOUT_S:g} s; end it, or set CUVIL_CACHE")
            time.sleep(0.02)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # closing it isn't enough where a process was forked meanwhile, which has it too
        os.close(fd)


def _try_lock(fd: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        raise CuvilError(f"{path}: can't be locked: {e.strerror or e}; set CUVIL_CACHE to a local disk") from e
    return True


def _private(folder: Path, remedy: str) -> Path:
    """`folder`, made with mode 0700. Libraries are loaded from it, so no other user may be able to write there."""
    tail = f"; {remedy}" if remedy else ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            why = "belongs to, or can be written by, another user"
            raise CuvilError(f"cache {folder}: {why}{tail or '; chmod 700 it'}")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise CuvilError(f"cache {folder}: can't be written: {e.strerror or e}{tail}") from e
    return folder


@lru_cache(maxsize=1)
def _temporary_root(why: str) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="cuvil-cache-"))
    except OSError as e:
        raise CuvilError(f"{why}; and there is no usable temporary folder: {e}; set CUVIL_CACHE or TMPDIR") from e
    atexit.register(_remove_own, folder, os.getpid())
    _log.warning("%s; using %s until this process ends, set CUVIL_CACHE to keep builds", why, folder)
    return folder


def _remove_own(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _version_of(program: str, size: int, modified_ns: int) -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        argv = [program, "--version"]
        run = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30
        )
        if run.returncode == 0:
            return hashlib.sha256(run.stdout).hexdigest()
    return f"{size} bytes, {modified_ns} ns"


def _tool_digest(program: str) -> str:
    if "/" in program and not os.path.isabs(program):
        return ""  # made by the plan itself, so its files stand for it
    found = programs.find(program)
    if found is None:
        raise ToolNotFound(program, "build a cached product", f"install {program}")
    path = os.path.realpath(found)
    status = os.stat(path)
    return f"{path}: {_version_of(found, status.st_size, status.st_mtime_ns)}"


@lru_cache(maxsize=1)
def _machine() -> str:
    """Kind of processor (for code tuned to "native") and C library: a home folder may be shared by several machines."""
    lines = {platform.machine(), platform.system(), "-".join(platform.libc_ver())}
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        lines.update(x for x in text.splitlines() if x.startswith(("flags", "Features", "model name", "CPU part")))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _made(folder: Path) -> Path:
    _attempt(folder.parent, lambda: folder.mkdir(mode=0o700))
    return folder


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        _attempt(path.parent, lambda: shutil.rmtree(path))
    else:
        _attempt(path.parent, lambda: path.unlink(missing_ok=True))


def _attempt(folder: Path, action: Callable[[], T]) -> T:
    try:
        return action()
    except OSError as e:
        raise CuvilError(f"cache {folder}: {e.strerror or e}; free space, or set CUVIL_CACHE to another folder") from e

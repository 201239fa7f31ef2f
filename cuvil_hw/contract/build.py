"""BuildPlan: the files and commands that make a product, as pure data; and the only code that runs them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from cuvil_hw.contract import programs
from cuvil_hw.errors import BuildFailed, CuvilError, ToolNotFound
from cuvil_hw.errors.quoting import shell
from cuvil_hw.telemetry.spans import span

_log = logging.getLogger("cuvil.build")
_running: dict[int, subprocess.Popen[bytes]] = {}  # by the thread that waits for it
_guard = threading.Lock()
_told: ContextVar[Callable[[str], None] | None] = ContextVar("told", default=None)


@contextmanager
def telling(tell: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile `tell` gets the purpose of every command that this thread is about to run."""
    token = _told.set(tell)
    try:
        yield
    finally:
        _told.reset(token)


def _forget() -> None:
    """In a forked process: the commands are its parent's, and its own new threads may get the parent's identifiers."""
    global _guard
    _running.clear()
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_forget)


@dataclass(frozen=True, slots=True)
class Command:
    """One tool run, in the plan's folder; paths in `argv` are relative to it.

    `argv[0]`: a program name, found as programs.py says, or with a "/" a file that an earlier command made.
    `optional`: a tool that need not be here (vendor synthesis); `execute` leaves it for the user.
    `timeout_s`: longest time before the tool is stopped and the build fails.
    """

    argv: tuple[str, ...]
    purpose: str
    remedy: str
    optional: bool = False
    timeout_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Files by relative POSIX path, commands in order, and the products that the commands create.

    `info`: what the adapter's device needs to know to run the products, as JSON values. `otherwise`: what to build
    instead where a command of this plan fails. `instead`: of such a plan, what the report says where it was built.
    """

    files: Mapping[str, bytes]
    commands: tuple[Command, ...] = ()
    products: tuple[str, ...] = ()
    info: Mapping[str, object] = field(default_factory=dict)
    otherwise: BuildPlan | None = None
    instead: str = ""

    def digest(self) -> str:
        """SHA-256 over files, commands and product names: equal plans have equal digests."""
        h = hashlib.sha256()
        for path in sorted(self.files):
            h.update(f"{path}\0{hashlib.sha256(self.files[path]).hexdigest()}\n".encode())
        h.update(json.dumps([[c.argv, c.optional] for c in self.commands]).encode())
        h.update(json.dumps(self.products).encode())
        return h.hexdigest()

    def missing_tool(self) -> ToolNotFound | None:
        """The error for the first program that `execute` would not find; None when all are here."""
        for command in self.commands:
            program = command.argv[0]
            made_here = "/" in program and not os.path.isabs(program)
            if not command.optional and not made_here and programs.find(program) is None:
                return ToolNotFound(program, command.purpose, command.remedy)
        return None

    def write(self, folder: Path) -> None:
        """Write all files below `folder`. Raises CuvilError for a path that leaves it, or when the disk is full."""
        write_files(folder, self.files)

    def execute(self, folder: Path) -> dict[str, bytes]:
        """Write the files, run the commands that are not optional, return the products by path.

        Raises ToolNotFound before anything is written when a program is missing, BuildFailed when one fails, takes
        too long or leaves a product out, CuvilError when a file can't be written.
        """
        check_paths(self.products)
        missing = self.missing_tool()
        if missing is not None:
            raise missing
        self.write(folder)
        needed = [c for c in self.commands if not c.optional]
        for command in needed:
            _run(command, folder)
        products = {}
        root = folder.resolve()
        for name in self.products:
            path = (root / name).resolve()
            if not path.is_relative_to(root) or not path.is_file():
                argv = needed[-1].argv if needed else ()
                raise BuildFailed(argv, 0, f"every command succeeded, but product {name!r} was not made in {folder}")
            products[name] = path.read_bytes()
        return products


def _run(command: Command, folder: Path) -> None:
    try:
        temporary = tempfile.mkdtemp(prefix=".tmp-", dir=folder.resolve())
    except OSError as e:
        raise CuvilError(f"{folder}: {e.strerror or e}; free space, or choose another folder") from e
    try:
        # C locale: the tail of the output is shown to users and matched by tests. What a tool leaves in its folder for
        # temporary files when it is stopped is removed here.
        _run_with(command, folder, {**os.environ, "PATH": programs.search_path(), "LC_ALL": "C", "TMPDIR": temporary})
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run_with(command: Command, folder: Path, env: Mapping[str, str]) -> None:
    if (tell := _told.get()) is not None:
        tell(command.purpose)
    _log.info("%s: %s", command.purpose, " ".join(map(shell, command.argv)))
    try:
        # A session, and so a process group, of its own: a compiler's children must end with it.
        process = subprocess.Popen(
            command.argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as e:
        raise BuildFailed(command.argv, -1, f"could not be started to {command.purpose}: {e}") from e
    with span("cuvil.tool", purpose=command.purpose, program=command.argv[0]), process, _listed(process):
        try:
            output, _ = process.communicate(timeout=command.timeout_s)
        except BaseException as e:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(e, subprocess.TimeoutExpired):
                shown = process.communicate()[0].decode(errors="replace")
                raise BuildFailed(command.argv, -1, f"{shown}\nstopped after {command.timeout_s:g} s") from e
            raise
    if process.returncode != 0:
        raise BuildFailed(command.argv, process.returncode, output.decode(errors="replace"))


@contextmanager
def _listed(process: subprocess.Popen[bytes]) -> Iterator[None]:
    thread = threading.get_ident()
    with _guard:
        _running[thread] = process
    try:
        yield
    finally:
        with _guard:
            _running.pop(thread, None)


def stop(thread: int) -> None:
    """Terminate the command that `execute` is running in another thread (given by its identifier), if any; `execute`
    then raises BuildFailed there."""
    with _guard, suppress(ProcessLookupError):
        process = _running.get(thread)
        if process is not None and process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)


def check_paths(names: Iterable[str]) -> None:
    """Raise CuvilError unless every name is a plain relative POSIX path that stays below its folder, no name occurs
    twice, and none is both a file and a folder."""
    seen: set[str] = set()
    folders: set[str] = set()
    for name in names:
        parts = name.split("/")
        plain = name.isascii() and name.isprintable() and not set(name) & set('\\:*?"<>|') and len(name) <= 512
        if not plain or any(part in ("", ".", "..") for part in parts):
            raise CuvilError(
                f"file name {name!r} is not a plain relative path (printable ASCII, '/' between parts, no '.' or '..', "
                "at most 512 characters); rename the file"
            )
        if name in seen:
            raise CuvilError(f"file name {name!r} is given twice")
        seen.add(name)
        folders.update("/".join(parts[:i]) for i in range(1, len(parts)))
    both = seen & folders
    if both:
        raise CuvilError(f"{min(both)!r} is both a file and a folder")


def write_files(folder: Path, files: Mapping[str, bytes], *, mode: int = 0o666) -> None:
    """Write `files` (relative POSIX path → content) below `folder`, which exists. `mode` is subject to the umask.

    Raises CuvilError when a name would leave the folder (also through a link that lies there) or can't be written."""
    check_paths(files)
    root = folder.resolve()
    for name, data in files.items():
        path = root / name
        if not path.parent.resolve().is_relative_to(root) or path.is_symlink():
            raise CuvilError(f"file {name!r} would be written outside {folder}; remove the link that leads there")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
            with os.fdopen(fd, "wb") as f:
                f.write(data)
        except OSError as e:
            why = e.strerror or e
            raise CuvilError(f"{path}: could not be written: {why}; free space or choose another folder") from e

"""How files and commands get to a board: over ssh, over labgrid's client, on this machine, or into a simulated board.

A command line is a list of words. Only a remote shell makes one text of it, quoted word by word. labgrid is a program
that is called, not a library: `labgrid-client` reserves the place, switches its power and knows how to reach it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cuvil_hw import data
from cuvil_hw.errors import DeviceError, ToolNotFound
from cuvil_hw.rig.rig_file import RigBoard

WORKER = "cuvil_hw.runtime.on_board"
_SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_STEP_S = 120.0  # for copying a file, switching power, reserving a place
_ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Reached:
    """A board that this process has for itself, with a folder on it that is removed at the end."""

    board: RigBoard
    folder: str
    run_prefix: tuple[str, ...] = ()
    copy: tuple[str, ...] = ()
    target: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def put(self, path: Path, name: str) -> str:
        """Copy a file; returns where it lies on the board. Raises DeviceError."""
        there = f"{self.folder}/{name}"
        if self.copy:
            _call(self.board, (*self.copy, str(path), f"{self.target}{there}"), "copy a file to it")
        else:
            shutil.copyfile(path, there)
        return there

    def check(self, program: str, vectors: str) -> subprocess.CompletedProcess[str]:
        """The worker's output for one program. Raises DeviceError when it doesn't end in time."""
        simulated = self.board.reach == "simulated"
        worker = (str(data.folder("sim") / "pynq" / "worker.py"),) if simulated else ("-m", WORKER)
        argv: tuple[str, ...] = ("sudo", "-n", "-E") if self.board.sudo else ()
        variables = {**self.board.environment, **self.environment}
        if self.run_prefix:
            argv = (*argv, "env", *(f"{k}={v}" for k, v in variables.items()))
        argv = (*argv, self.board.python, *worker, program, vectors)
        try:
            return subprocess.run(
                (*self.run_prefix, shlex.join(argv)) if self.run_prefix else argv,
                env=None if self.run_prefix else {**os.environ, **variables},
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=self.board.timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as e:
            raise DeviceError(
                f"{self.board.name}: no end after {self.board.timeout_s:g} s (timeout_s of the rig)"
            ) from e
        except OSError as e:
            raise DeviceError(f"{self.board.name}: {self.board.python} could not be started: {e.strerror or e}") from e


@contextmanager
def reached(board: RigBoard) -> Iterator[Reached]:
    """Power a board on, and off again at the end; a labgrid place is reserved meanwhile. Raises DeviceError and
    ToolNotFound."""
    client = ("labgrid-client", "-p", board.address)
    if board.reach == "labgrid":
        _call(board, (*client, "acquire"), "reserve its place")
    try:
        _power(board, client, "on")
        try:
            with _folder(board, client) as found:
                yield found
        finally:
            _power(board, client, "off")
    finally:
        if board.reach == "labgrid":
            _call(board, (*client, "release"), "release its place")


@contextmanager
def _folder(board: RigBoard, client: tuple[str, ...]) -> Iterator[Reached]:
    if board.reach in ("local", "simulated"):
        with tempfile.TemporaryDirectory(prefix="cuvil-rig-") as here:
            # This package and the simulator's folder, for a Python that has neither; its own registry of bitstreams.
            simulated = {
                "PYTHONPATH": os.pathsep.join((str(_ROOT), str(data.folder("sim").parent))),
                "CUVIL_HOME": f"{here}/home",
            }
            yield Reached(board, here, environment=simulated if board.reach == "simulated" else {})
        return
    run: tuple[str, ...] = ("ssh", *_SSH, board.address, "--")
    copy: tuple[str, ...] = ("scp", "-q", *_SSH)
    target = f"{board.address}:"
    if board.reach == "labgrid":
        run, copy, target = (*client, "ssh", "--"), (*client, "scp"), ":"
    made = _call(board, (*run, shlex.join(("mktemp", "-d"))), "make a folder on it").strip().splitlines()
    there = made[-1] if made else ""
    if not there.startswith("/"):
        raise DeviceError(f"{board.name}: `mktemp -d` on the board gave {there!r}, no folder")
    try:
        yield Reached(board, there, run, copy, target)
    finally:
        _call(board, (*run, shlex.join(("rm", "-rf", "--", there))), "remove a folder on it")


def _power(board: RigBoard, client: tuple[str, ...], state: str) -> None:
    if board.reach == "labgrid" and state not in board.power:
        _call(board, (*client, "power", state), f"switch it {state}")
    elif state in board.power:
        _call(board, board.power[state], f"switch it {state}")


def _call(board: RigBoard, argv: Sequence[str], purpose: str) -> str:
    """Its standard output. Raises ToolNotFound, DeviceError."""
    if shutil.which(argv[0]) is None:
        remedy = {
            "labgrid-client": "pip install labgrid, in an environment of its own (LGPL-2.1; it needs a coordinator)",
            "ssh": "install it (Debian: apt-get install openssh-client)",
        }.get(argv[0], f"install it, or change the rig's entry of {board.name}")
        raise ToolNotFound(argv[0], f"{purpose} ({board.name})", remedy)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_STEP_S,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise DeviceError(f"{board.name}: {shlex.join(argv)}: no end after {_STEP_S:g} s, to {purpose}") from e
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[-1] if said else "it said nothing"
        raise DeviceError(f"{board.name}: {shlex.join(argv)} ended with {done.returncode}, to {purpose}: {why}")
    return done.stdout

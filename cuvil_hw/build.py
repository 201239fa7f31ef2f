"""BuildPlan: the files and commands that make a product, as pure data; and the one place that runs them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cuvil_hw.errors import BuildFailed, CuvilError, ToolNotFound


@dataclass(frozen=True, slots=True)
class Command:
    """One tool run. `argv[0]` is a program name, looked up on PATH; paths are relative to the plan's folder.

    `optional`: a tool that need not be here (vendor synthesis); `execute` leaves it for the user.
    """

    argv: tuple[str, ...]
    purpose: str
    remedy: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Files by relative POSIX path, commands in order, and the products that they leave behind."""

    files: Mapping[str, bytes]
    commands: tuple[Command, ...] = ()
    products: tuple[str, ...] = ()
    info: Mapping[str, object] = field(default_factory=dict)

    def digest(self) -> str:
        """SHA-256 over files and commands: equal plans have equal digests."""
        h = hashlib.sha256()
        for path in sorted(self.files):
            h.update(f"{path}\0{hashlib.sha256(self.files[path]).hexdigest()}\n".encode())
        h.update(json.dumps([c.argv for c in self.commands]).encode())
        return h.hexdigest()

    def write(self, folder: Path) -> None:
        """Write all files below `folder`; refuses a path that would leave it."""
        root = folder.resolve()
        for name, data in self.files.items():
            path = (root / name).resolve()
            if not path.is_relative_to(root):
                raise CuvilError(f"build plan file {name!r} would be written outside {folder}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def execute(self, folder: Path) -> dict[str, bytes]:
        """Write the files, run the commands that are not optional, return the products by path.

        Raises ToolNotFound before anything runs when a program is missing, BuildFailed when one fails.
        """
        needed = [c for c in self.commands if not c.optional]
        for command in needed:
            if shutil.which(command.argv[0]) is None:
                raise ToolNotFound(command.argv[0], command.purpose, command.remedy)
        self.write(folder)
        for command in needed:
            run = subprocess.run(
                command.argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if run.returncode != 0:
                raise BuildFailed(command.argv, run.returncode, run.stdout)
        return {name: (folder / name).read_bytes() for name in self.products}

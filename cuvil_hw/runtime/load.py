"""Loads artifacts: programs of fixed and of open shapes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.dynamic import DynamicExecutable, restore
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.open_program import is_open
from cuvil_hw.runtime.trust import Key


def load(
    path: str | os.PathLike[str],
    interface: str | None = None,
    *,
    trust: Iterable[Key] | Key | None = None,
    min_release: int = 0,
    **options: Any,
) -> Executable | DynamicExecutable:
    """Open a `.cuvil` file as a program.

    `interface`: the device, "hw", "sim" or "null"; None: the one that the artifact names. `options`: of a device that
    has some; "rtl" has trace="run.fst" (or .vcd), stalls=30 (percent of cycles) and seed=1. Every byte of the file is
    verified first. A program with open shapes has the sizes that were compiled when it was saved.

    `trust`: public keys (paths of .pub files, or PEM texts as bytes). The file must then be signed by one of them, as
    `cuvil sign` does, with a release of at least `min_release`; this is checked before anything of it is parsed or run.

    An artifact is code: opening a device other than "null" loads its library, or compiles and runs its sources. Without
    `trust`, only load files from people whose programs you would run; docs/security.md says what executes nothing.

    Raises:
        ArtifactError: the file is damaged, isn't an artifact, or isn't signed as `trust` demands.
        ToolNotFound, DeviceError, CuvilError: the device can't be opened.
    """
    executable = program_in(container.read(path, trust=trust, min_release=min_release), interface, options)
    executable.open()
    return executable


def program_in(
    artifact: Artifact, interface: str | None = None, options: Mapping[str, Any] | None = None
) -> Executable | DynamicExecutable:
    """The program in an artifact. Nothing in it is executed until it is opened or called. Raises ArtifactError, and
    CuvilError for options with open shapes."""
    if not is_open(artifact):
        return Executable(artifact, interface, options)
    if options:
        raise CuvilError(f"{artifact.manifest.model}: has open shapes, for which there are no options of an interface")
    return restore(artifact, interface)

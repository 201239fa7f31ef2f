"""The device contract: what runs a built program. Imports numpy only, so that a board can use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a device program. Arrays cross in logical (row-major) `shape`, whole batch of one call;
    `dtype` is a Cuvil dtype name, its NumPy container is what crosses."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def one_sample(*ports: Port) -> bool:
    """Whether each has a first dimension of 1, in whose place several samples may lie."""
    return all(p.shape[:1] == (1,) for p in ports)


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """What a device loads: the adapter's files and products (already verified), its ports and settings.

    Attributes:
        folder: a private directory that holds `files`.
        info: the build plan's own data (JSON values).
        constants: the artifact's constants, read-only, by name (the digest of a constant).
        seal: the digest that the generated code must contain if it belongs to `info` and these ports
            (contract/record.py); "" if not known.
    """

    name: str
    folder: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    info: Mapping[str, Any]
    constants: Mapping[str, Array] = field(default_factory=dict)
    seal: str = ""


class Loaded(Protocol):
    """A program on a device, ready to run. Owned by the caller; `close` frees it and may be called twice."""

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        """Run N samples. Each input is C-contiguous, shape (N, *port.shape), container dtype of its port.

        Returns outputs of shape (N, *port.shape) (fresh arrays that the caller owns) and seconds on the device.
        Safe to call from several threads. Raises DeviceError."""

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """Per layer, what was counted since loading, e.g. {"conv1": {"saturated_high": 3}}; {} if nothing was."""

    def close(self) -> None: ...


class Device(Protocol):
    """Hardware, a simulator, or the null device ("null"). `load` raises ToolNotFound when a needed tool is missing."""

    name: str
    interface: str  # "hw" | "sim" | "null"

    def load(self, program: DeviceProgram) -> Loaded: ...

    def usable(self) -> str | None:
        """None if this device can run programs on this machine, else the reason, for `cuvil doctor`."""


@runtime_checkable
class HasDirect(Protocol):
    """What a loaded program may have beside `Loaded`'s: a shorter way for one sample."""

    direct: Any
    """None, or a function of one sample's arrays, in order of the inputs, each C-contiguous and of exactly its port's
    shape and type. Returns the fresh output, or a tuple of them; None when it can't, then `run` says why. Its method
    `bind(inputs, outputs)` gives a call on these very arrays that returns whether it ran. Safe to call from several
    threads, also while the program is closed."""


@runtime_checkable
class Configurable(Protocol):
    """What a device offers beside `Device` where runs on it have options, such as a file for waves."""

    def configure(self, options: Mapping[str, Any]) -> None:
        """Take options by name, before programs are loaded. Raises CuvilError for unknown or wrong ones."""

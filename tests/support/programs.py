"""Programs for every device that runs here, and processes that use them in ways of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import cuvil
from cuvil_hw import dtypes
from cuvil_hw.adapters.agilex.runtime import EMULATION, missing
from cuvil_hw.runtime.executable import Executable
from tools.fuzz_records import network

ROOT = Path(__file__).resolve().parents[2]
# By name: target, interface. "sim" of agilex is a process with pipes, the others run in this one.
DEVICES = {
    "cpu": ("cpu", "hw"),
    "cuda": ("cuda:sm_75", "sim"),
    "zynq": ("pynq-z2", "sim"),
    "zynq-count": ("pynq-z2", "sim-count"),
    "mlu": ("mlu370-x4", "sim"),
    "agilex-sycl": ("agilex", "sim-sycl"),
    "null": ("cpu", "null"),
    **({"agilex": ("agilex", "sim")} if missing(EMULATION) is None else {}),
}


@cache
def _compiled(target: str) -> Executable:
    program = cuvil.compile(network(), target)
    assert isinstance(program, Executable)
    return program


def program(device: str) -> Executable:
    """A new one for a device, not opened."""
    target, interface = DEVICES[device]
    return Executable(_compiled(target).artifact, interface)


def saved(device: str, folder: Path) -> tuple[Path, str]:
    """A file of it, and the interface to load it with."""
    target, interface = DEVICES[device]
    path = folder / f"{target.replace(':', '-')}.cuvil"
    if not path.exists():
        _compiled(target).save(path)
    return path, interface


def data(seed: int, samples: int = 8) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(samples, 2, 6, 6)).astype(dtypes.to_numpy("f32"))


def script(text: str, *args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    argv = [sys.executable, "-X", "faulthandler", "-c", text, *args]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout, check=False)

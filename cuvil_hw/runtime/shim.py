"""Builds and loads call.c, by which a call from NumPy to NumPy takes a microsecond or two. Where it can't be built (no
Python headers, no compiler, another Python than CPython), calls go through ctypes, with the same results and errors."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import logging
import os
import sys
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Port
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime.cache import cached_build
from cuvil_hw.runtime.compilers import CCompiler

VARIABLE = "CUVIL_CALLS"  # "ctypes" in the environment: the shim isn't used
_NAME = "cuvil_call"
_SOURCE = Path(__file__).with_name("call.c")
_log = logging.getLogger("cuvil.run")


class Direct(Protocol):
    """A sample's call, as directly as there is one."""

    def __call__(self, *arrays: Any) -> Any:
        """The output, or a tuple of them; None when the arguments aren't exactly arrays of the inputs' types."""

    def bind(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
        """A call on these very arrays, which returns whether it ran; None when they don't fit."""

    def close(self) -> int:
        """Start no call any more; how many still run."""


def direct(
    run: int, constants: int, workspace: int, inputs: Sequence[Port], outputs: Sequence[Port], kept: object
) -> Direct | None:
    """The caller of the function at address `run`; None where the shim can't be used, or not for these ports.
    `constants`: address of their pointers, which `kept` keeps alive."""
    module = _module() if os.environ.get(VARIABLE) != "ctypes" else None
    if module is None or not all(_whole(p.dtype) for p in (*inputs, *outputs)):
        return None
    ports = [tuple(_port(p) for p in of) for of in (inputs, outputs)]
    shapes = tuple((p.shape, dtypes.to_numpy(p.dtype)) for p in outputs)
    try:
        made: Direct = module.make(run, constants, workspace, *ports, kept, np.ndarray, np.empty, shapes)
    except ValueError:  # more ports or dimensions than it takes
        return None
    return made


def _whole(dtype: str) -> bool:
    """Whether any array of the container is a value of the type."""
    return dtype in dtypes.WHOLE and dtype != "bf16"


def _port(port: Port) -> tuple[str, int, tuple[int, ...]]:
    kind = dtypes.to_numpy(port.dtype)
    return np.empty((), kind).data.format, kind.itemsize, port.shape


@lru_cache(maxsize=1)
def _module() -> Any:
    """The loaded shim; None where it can't be built, with the reason in the log."""
    include = Path(sysconfig.get_paths()["include"])
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if sys.implementation.name != "cpython" or free or not (include / "Python.h").is_file():
        _log.info("calls go through ctypes: %s", "no Python.h" if not free else "this Python has no interpreter lock")
        return None
    compiler, product = CCompiler.chosen({}), f"{_NAME}.so"
    argv = (*compiler.command, "-std=c11", "-O2", "-fPIC", "-shared", f"-I{include}", "-o", product, _SOURCE.name)
    plan = BuildPlan(
        {_SOURCE.name: _SOURCE.read_bytes()},
        (Command(argv, "build the call path", compiler.remedy),),
        (product,),
    )
    try:
        path = cached_build(plan, sys.version) / product
        loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
        spec = importlib.util.spec_from_loader(_NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (CuvilError, ImportError, OSError) as e:
        _log.warning("calls go through ctypes, which takes longer: %s", e)
        return None
    return module


def address(function: Any) -> int:
    """Where a ctypes function lies."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0

"""Cuvil: compile a PyTorch or ONNX model for an FPGA, a processor or another device, and run it.

    program = cuvil.compile(model, "pynq-z2", example_inputs=x, calibration=data)
    y = program(x)
    program.save("model.cuvil")
    y = cuvil.load("model.cuvil")(x)

Everything is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuvil_hw.api import compile_all as compile_all
    from cuvil_hw.entry.accelerate import accelerate as accelerate
    from cuvil_hw.entry.check import check as check
    from cuvil_hw.entry.decorator import compile as compile
    from cuvil_hw.errors import ArtifactError as ArtifactError
    from cuvil_hw.errors import BuildFailed as BuildFailed
    from cuvil_hw.errors import CuvilError as CuvilError
    from cuvil_hw.errors import DeviceError as DeviceError
    from cuvil_hw.errors import DoesNotFit as DoesNotFit
    from cuvil_hw.errors import GuardError as GuardError
    from cuvil_hw.errors import InputError as InputError
    from cuvil_hw.errors import MissesSlot as MissesSlot
    from cuvil_hw.errors import ProfileError as ProfileError
    from cuvil_hw.errors import ToolNotFound as ToolNotFound
    from cuvil_hw.errors import Unsupported as Unsupported
    from cuvil_hw.extent.constraint import Constraint as Constraint
    from cuvil_hw.extent.dim import Dim as Dim
    from cuvil_hw.ops.custom import register_op as register_op
    from cuvil_hw.runtime.dynamic import DynamicExecutable as DynamicExecutable
    from cuvil_hw.runtime.executable import Executable as Executable
    from cuvil_hw.runtime.load import load as load
    from cuvil_hw.schedule.slots import timing as timing
    from cuvil_hw.target.profile import builtin_profiles as targets
    from cuvil_hw.version import VERSION as __version__

_WHERE = {
    "accelerate": ("cuvil_hw.entry.accelerate", "accelerate"),
    "compile": ("cuvil_hw.entry.decorator", "compile"),
    "compile_all": ("cuvil_hw.api", "compile_all"),
    "check": ("cuvil_hw.entry.check", "check"),
    "load": ("cuvil_hw.runtime.load", "load"),
    "Executable": ("cuvil_hw.runtime.executable", "Executable"),
    "DynamicExecutable": ("cuvil_hw.runtime.dynamic", "DynamicExecutable"),
    "Dim": ("cuvil_hw.extent.dim", "Dim"),
    "Constraint": ("cuvil_hw.extent.constraint", "Constraint"),
    "register_op": ("cuvil_hw.ops.custom", "register_op"),
    "timing": ("cuvil_hw.schedule.slots", "timing"),
    "targets": ("cuvil_hw.target.profile", "builtin_profiles"),
    "__version__": ("cuvil_hw.version", "VERSION"),
    **{
        name: ("cuvil_hw.errors", name)
        for name in (
            "ArtifactError",
            "BuildFailed",
            "CuvilError",
            "DeviceError",
            "DoesNotFit",
            "GuardError",
            "InputError",
            "MissesSlot",
            "ProfileError",
            "ToolNotFound",
            "Unsupported",
        )
    },
}

__all__ = [
    "ArtifactError",
    "BuildFailed",
    "Constraint",
    "CuvilError",
    "DeviceError",
    "Dim",
    "DoesNotFit",
    "Executable",
    "GuardError",
    "InputError",
    "MissesSlot",
    "ProfileError",
    "ToolNotFound",
    "Unsupported",
    "__version__",
    "accelerate",
    "check",
    "compile",
    "compile_all",
    "load",
    "register_op",
    "targets",
    "timing",
]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'cuvil' has no attribute {name!r}")
    try:
        value = getattr(import_module(where[0]), where[1])
    except ModuleNotFoundError as e:
        from cuvil_hw.errors import needs_compiler

        with needs_compiler(f"use cuvil.{name}"):
            raise e
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

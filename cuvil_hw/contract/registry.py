"""Finds adapters and devices by name, including those of other packages, and imports only those asked for.

A package adds a target by two entry points of the same name: in group "cuvil.adapters" a class without constructor
arguments (cuvil_hw.adapters.base.Adapter), in group "cuvil.devices" a function (profile data, interface) → Device. For
targets with too many variants to list as files, an entry point in group "cuvil.profiles" may give a function that maps
the text after the colon, as in `cuda:sm_75`, to a Profile. The built-in targets use the same groups; the table below
also makes them available in a checkout that isn't installed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from cuvil_hw.contract.device import Device
from cuvil_hw.errors import CuvilError, pip_install

ADAPTERS, DEVICES, PROFILES = "cuvil.adapters", "cuvil.devices", "cuvil.profiles"
OWN = "cuvil-hw"
BUILT_IN: Mapping[str, Mapping[str, str]] = {
    ADAPTERS: {
        "cpu": "cuvil_hw.adapters.cpu.adapter:CpuAdapter",
        "cuda": "cuvil_hw.adapters.cuda.adapter:CudaAdapter",
        "agilex": "cuvil_hw.adapters.agilex.adapter:AgilexAdapter",
        "ecp5": "cuvil_hw.adapters.ecp5.adapter:Ecp5Adapter",
        "mlu": "cuvil_hw.adapters.mlu.adapter:MluAdapter",
        "zynq": "cuvil_hw.adapters.zynq.adapter:ZynqAdapter",
    },
    DEVICES: {
        "cpu": "cuvil_hw.adapters.cpu.device:open_device",
        "cuda": "cuvil_hw.adapters.cuda.device:open_device",
        "agilex": "cuvil_hw.adapters.agilex.device:open_device",
        "ecp5": "cuvil_hw.adapters.ecp5.device:open_device",
        "mlu": "cuvil_hw.adapters.mlu.device:open_device",
        "zynq": "cuvil_hw.adapters.zynq.device:open_device",
    },
    PROFILES: {
        "cuda": "cuvil_hw.adapters.cuda.arch:profile_of",
    },
}

OpenDevice = Callable[[Mapping[str, Any], str], Device]


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point. `value`: "module:attribute"; `package`: name of the distribution that brings it."""

    group: str
    name: str
    value: str
    package: str

    def __str__(self) -> str:
        return f"{self.group} plug-in {self.name!r} of package {self.package} ({self.value})"

    def load(self) -> Any:
        """The object itself. Raises CuvilError that names the package when importing it fails, for whatever reason."""
        module, _, attribute = self.value.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except Exception as e:
            remedy = f"repair or remove package {self.package}"
            if isinstance(e, ModuleNotFoundError) and e.name != module:
                remedy = f"install {e.name}"
                if self.package == OWN:
                    remedy += f", which {pip_install('all')} brings"
            raise CuvilError(f"{self} failed to load: {type(e).__name__}: {e}; {remedy}") from e

    def raised(self, error: BaseException) -> bool:
        """Whether code of its package stands in the traceback."""
        package, trace = self.value.partition(":")[0].partition(".")[0], error.__traceback__
        while trace is not None:
            if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == package:
                return True
            trace = trace.tb_next
        return False


def plugins(group: str) -> tuple[Plugin, ...]:
    """All plug-ins of a group, sorted; if two packages use the same name, it appears twice."""
    return _plugins(group, entry_points, tuple((p, _changed(p)) for p in sys.path))


def _changed(folder: str) -> int:
    """When something was last installed in a folder of packages, or removed from it; -1 for no folder."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return -1


@lru_cache(maxsize=32)
def _plugins(group: str, entries: Callable[..., Any], folders: tuple[tuple[str, int], ...]) -> tuple[Plugin, ...]:
    """Asking reads a file of every installed package: once for the `folders` as they are."""
    found = {Plugin(group, name, value, OWN) for name, value in BUILT_IN[group].items()}
    for entry in entries(group=group):
        package = entry.dist.name if entry.dist is not None else "of unknown name"
        # An installed copy of this package says what the table says; the code that runs decides.
        if re.sub(r"[-_.]+", "-", package).lower() != OWN:
            found.add(Plugin(group, entry.name, entry.value, package))
    return tuple(sorted(found, key=lambda p: (p.name, p.package, p.value)))


def names(group: str) -> frozenset[str]:
    """Names of the plug-ins of a group."""
    return frozenset(p.name for p in plugins(group))


def find(group: str, name: str) -> Plugin:
    """The plug-in called `name`. Raises CuvilError when there is none, or several: then it names their packages."""
    every = plugins(group)
    matches = [p for p in every if p.name == name]
    if not matches:
        have = ", ".join(sorted({p.name for p in every}))
        raise CuvilError(f"no plug-in {name!r} in {group}; there are: {have}; install the package that brings it")
    if len(matches) > 1:
        claims = " and ".join(f"{p.package} ({p.value})" for p in matches)
        raise CuvilError(f"{group} plug-in {name!r} is claimed by {claims}; uninstall one of these packages")
    return matches[0]


def open_device(name: str, profile: Mapping[str, Any], interface: str) -> Device:
    """Open a device of adapter `name`; the profile is given as data. Raises CuvilError, ToolNotFound or DeviceError."""
    opener: OpenDevice = find(DEVICES, name).load()
    with blaming(DEVICES, name):
        return opener(profile, interface)


class blaming:  # reads as a word: with blaming(ADAPTERS, name)
    """Where plug-in `name` is called: what it raises by itself becomes a CuvilError that names it and its package.
    Faults of the built-in ones stay what they are, faults of ours."""

    __slots__ = ("group", "name")

    def __init__(self, group: str, name: str) -> None:
        self.group, self.name = group, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, CuvilError):
            return
        for plugin in plugins(self.group):
            if plugin.name == self.name and plugin.package != OWN and plugin.raised(error):
                why = f"{type(error).__name__}: {error}; report it to the authors of {plugin.package}"
                raise CuvilError(f"{plugin} failed: {why}") from error

"""The accelerator's devices. There is no silicon, so there is only the null device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuvil_hw.contract.device import Device
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime.null import NullDevice


def open_device(profile: Mapping[str, Any], interface: str) -> Device:
    """Raises CuvilError for any interface but "null"."""
    if interface != "null":
        raise CuvilError(f"{profile['name']} has no interface {interface!r}; it is imaginary, use 'null'")
    return NullDevice(profile["name"])

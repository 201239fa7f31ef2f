"""What a CPU program's plan tells its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import constant


@dataclass(frozen=True, slots=True)
class Constant:
    """`order`: its dimensions in the order in which the program reads them."""

    digest: str
    order: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class CpuRecord:
    """What the device needs to know of a program beside its ports.

    Attributes:
        march: `-march` of the compiler; "" for its default.
        workspace_bytes: scratch memory of a call.
        constants: in the order of their pointers.
    """

    abi_version: int
    abi: Mapping[str, str]
    machine: str
    march: str
    workspace_bytes: int
    constants: tuple[Constant, ...]

    def arrays(self, program: DeviceProgram) -> list[Array]:
        """The constants as the program reads them: aligned as the compiler takes for granted."""
        ordered = (program.constants[c.digest].transpose(c.order) for c in self.constants)
        return [np.require(array, requirements=["C", "A"]) for array in ordered]

    def check(self, program: DeviceProgram) -> None:
        for each in self.constants:
            array = constant(program, each.digest, each.bytes)
            if sorted(each.order) != list(range(array.ndim)):
                raise ValueError(f"constant {each.digest} has {array.ndim} dimensions, not the order {each.order}")
        if self.workspace_bytes < 0:
            raise ValueError("workspace_bytes is negative")

"""What a CPU program's plan tells its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cuvil_hw.contract.device import Array, DeviceProgram
from cuvil_hw.contract.record import constant


@dataclass(frozen=True, slots=True)
class Constant:
    """`order`: its dimensions in the order in which the program reads them; `lanes`, `pairs`: as `LaneBlocks` of
    adapters/sequential/nest.py says (0: not)."""

    digest: str
    order: tuple[int, ...]
    bytes: int
    lanes: int
    pairs: bool

    def arranged(self, array: Array) -> Array:
        """A constant as it lies in the program's memory, aligned as the compiler takes for granted."""
        array = array.transpose(self.order)
        if self.lanes:
            full = [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % self.lanes)]
            if self.pairs:
                full[-2] = (0, array.shape[-2] % 2)
            array = np.pad(array, full)
            *outer, last = array.shape
            array = np.moveaxis(array.reshape(*outer, last // self.lanes, self.lanes), -2, 0)
            if self.pairs:
                *outer, steps, lanes = array.shape
                array = np.moveaxis(array.reshape(*outer, steps // 2, 2, lanes), -2, -1)
        return np.require(array, requirements=["C", "A"])


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
        """The constants as the program reads them."""
        return [c.arranged(program.constants[c.digest]) for c in self.constants]

    def check(self, program: DeviceProgram) -> None:
        for each in self.constants:
            array = constant(program, each.digest, each.bytes)
            if sorted(each.order) != list(range(array.ndim)):
                raise ValueError(f"constant {each.digest} has {array.ndim} dimensions, not the order {each.order}")
            if each.lanes < 0 or array.ndim < (2 if each.pairs else 1 if each.lanes else 0):
                raise ValueError(f"constant {each.digest} of {array.ndim} dimensions has no blocks of {each.lanes}")
        if self.workspace_bytes < 0:
            raise ValueError("workspace_bytes is negative")

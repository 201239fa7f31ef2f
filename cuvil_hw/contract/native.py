"""What a program is to code that calls it without Python: data that the runtime hands to a device which can make a
library of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from cuvil_hw.contract.build import BuildPlan
from cuvil_hw.contract.calling import Calling
from cuvil_hw.contract.device import Array, DeviceProgram, Port

Kind = Literal["so", "a", "c"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from: input `at` of the model, output `at` of the device program, or a constant."""

    source: Literal["input", "device", "constant"]
    at: int = 0
    constant: str = ""


@dataclass(frozen=True, slots=True)
class Native:
    """A program as C calls it.

    Attributes:
        stem: of the files; its identifier starts the name of every symbol.
        kind: shared library, static library, or one C file.
        inputs, outputs: the model's ports.
        given: for each input of the device program, where it comes from; never the device.
        made: likewise for each output of the model.
        calling: state, guards, writes and ranges of `inputs` and `outputs`.
        constants: arrays that `given`, `made` and initial states name.
    """

    stem: str
    kind: Kind
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    given: tuple[Origin, ...]
    made: tuple[Origin, ...]
    calling: Calling
    constants: Mapping[str, Array] = field(repr=False)


@runtime_checkable
class MakesNative(Protocol):
    """What a device may have beside `Device`'s: its programs can run without Python, on machines of their own."""

    def native(self, program: DeviceProgram, native: Native) -> BuildPlan:
        """The plan whose products are `STEM.KIND` and `STEM.h`. Raises CuvilError for what can't be made."""

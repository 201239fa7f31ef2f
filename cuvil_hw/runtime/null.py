"""The null device: accepts any program and returns zeros of the right shapes. A template for new devices, and a way to
time overheads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import Array, DeviceProgram


class NullLoaded:
    def __init__(self, program: DeviceProgram) -> None:
        self._outputs = program.outputs

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        samples = inputs[0].shape[0] if inputs else 1
        return [np.zeros((samples, *p.shape), dtypes.to_numpy(p.dtype)) for p in self._outputs], 0.0

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def close(self) -> None:
        pass


class NullDevice:
    """Computes nothing, and says so in its name."""

    interface = "null"

    def __init__(self, target: str) -> None:
        self.name = f"null device of {target} (computes nothing, answers zeros)"

    def load(self, program: DeviceProgram) -> NullLoaded:
        return NullLoaded(program)

    def usable(self) -> str | None:
        return None

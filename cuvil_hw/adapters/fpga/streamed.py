"""Arrays in the order in which samples cross a port: channels last, one sample behind the other. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.runtime.device import Array, DeviceProgram


def packed_for(program: DeviceProgram, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Inputs (N, *shape) as they cross, and room for the outputs as they do. The plan's info has each port's order."""
    samples, info = len(inputs[0]), program.info
    packed = [_permuted(a, [d + 1 for d in about["order"]]) for a, about in zip(inputs, info["inputs"], strict=True)]
    room = [
        np.empty((samples, *(port.shape[d] for d in about["order"])), dtypes.to_numpy(port.dtype))
        for port, about in zip(program.outputs, info["outputs"], strict=True)
    ]
    return packed, room


def unpacked(program: DeviceProgram, outputs: Sequence[Array]) -> list[Array]:
    """Outputs that crossed, as arrays (N, *shape)."""
    orders = [[int(d) + 1 for d in np.argsort(about["order"])] for about in program.info["outputs"]]
    return [_permuted(a, order) for a, order in zip(outputs, orders, strict=True)]


def _permuted(array: Array, order: Sequence[int]) -> Array:
    return np.ascontiguousarray(array.transpose(0, *order))

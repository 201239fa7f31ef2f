"""Arrays in the order in which samples cross a port: channels last, one sample behind the other. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import Array, DeviceProgram


def physical(rank: int) -> tuple[int, ...]:
    """Order in which a stream carries the dimensions of a tensor: channels (dimension 1) last."""
    return tuple(range(rank)) if rank < 3 else (0, *range(2, rank), 1)


def packed_for(program: DeviceProgram, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Inputs (N, *shape) as they cross, and room for the outputs as they do."""
    samples = len(inputs[0])
    packed = [_permuted(a, [d + 1 for d in physical(a.ndim - 1)]) for a in inputs]
    room = [
        np.empty((samples, *(port.shape[d] for d in physical(len(port.shape)))), dtypes.to_numpy(port.dtype))
        for port in program.outputs
    ]
    return packed, room


def unpacked(outputs: Sequence[Array]) -> list[Array]:
    """Outputs that crossed, as arrays (N, *shape)."""
    return [_permuted(a, [int(d) + 1 for d in np.argsort(physical(a.ndim - 1))]) for a in outputs]


def _permuted(array: Array, order: Sequence[int]) -> Array:
    return np.ascontiguousarray(array.transpose(0, *order))

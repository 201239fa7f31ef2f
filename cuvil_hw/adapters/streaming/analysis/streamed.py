"""Arrays in the order in which samples cross a port, one sample behind the other. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import Array, DeviceProgram


def physical(rank: int) -> tuple[int, ...]:
    """Order in which a stream carries the dimensions of an image: channels (dimension 1) last. order.py says where
    tensors have another one."""
    return tuple(range(rank)) if rank < 3 else (0, *range(2, rank), 1)


def crossing(array: Array, order: Sequence[int]) -> Array:
    """Samples (N, *shape) as they cross. `order`: the logical dimension of each streamed one."""
    return np.ascontiguousarray(array.transpose(0, *(d + 1 for d in order)))


def packed_for(program: DeviceProgram, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Inputs (N, *shape) as they cross, and room for the outputs as they do."""
    samples = len(inputs[0])
    packed = [crossing(a, order) for a, order in zip(inputs, _orders(program, "inputs"), strict=True)]
    room = [
        np.empty((samples, *(port.shape[d] for d in order)), dtypes.to_numpy(port.dtype))
        for port, order in zip(program.outputs, _orders(program, "outputs"), strict=True)
    ]
    return packed, room


def unpacked(program: DeviceProgram, outputs: Sequence[Array]) -> list[Array]:
    """Outputs that crossed, as arrays (N, *shape)."""
    ways = _orders(program, "outputs")
    return [crossing(a, [int(d) for d in np.argsort(way)]) for a, way in zip(outputs, ways, strict=True)]


def words_of(samples: Array, size: int) -> Array:
    """Samples (N, ...) that cross, as words of `size` bytes (N, words, size): little endian, each sample begins a word,
    its last one is filled up with zeros."""
    raw = samples.astype(samples.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(samples), -1)
    short = -raw.shape[1] % size
    return np.ascontiguousarray(np.pad(raw, ((0, 0), (0, short)))).reshape(len(samples), -1, size)


def room_for(samples: Array, size: int) -> Array:
    """Zeros in the shape of `words_of`."""
    return np.zeros((len(samples), -(-sample_bytes(samples) // size), size), np.uint8)


def take_words(words: Array, samples: Array) -> None:
    """Writes words, as `words_of` makes them, into `samples`."""
    samples.reshape(len(samples), -1).view(np.uint8)[...] = words.reshape(len(samples), -1)[:, : sample_bytes(samples)]


def sample_bytes(samples: Array) -> int:
    return samples.nbytes // len(samples)


def _orders(program: DeviceProgram, ends: str) -> list[tuple[int, ...]]:
    """Of the ports, as the record of the design says."""
    return [tuple(port["order"]) for port in program.info[ends]]

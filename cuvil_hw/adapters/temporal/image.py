"""Constants and samples as they lie in a temporal design's memory. NumPy only: a board needs it."""

from __future__ import annotations

from math import prod

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.contract.device import Array, Port

WORD_BYTES = 8


def packed_weights(array: Array, kind: str, lanes: int, chunk: int) -> bytes:
    """Weights (output channels, taps, input channels; int8) in the order of the engine's steps: block, tap, chunk,
    output, input; depthwise: block, tap, channel. Channels are filled up with zeros."""
    outputs, taps, inputs = array.shape
    blocks = -(-outputs // lanes)
    if kind == "dense":
        chunks = -(-inputs // chunk)
        room = np.zeros((blocks * lanes, taps, chunks * chunk), np.int8)
        room[:outputs, :, :inputs] = array
        return room.reshape(blocks, lanes, taps, chunks, chunk).transpose(0, 2, 3, 1, 4).tobytes()
    room = np.zeros((blocks * lanes, taps), np.int8)
    room[:outputs] = array[:, :, 0]
    return room.reshape(blocks, lanes, taps).transpose(0, 2, 1).tobytes()


def room_bytes(port: Port) -> int:
    """Bytes of one sample of a port: channels last, each pixel padded to whole words."""
    return prod(_room(port)) * dtypes.to_numpy(port.dtype).itemsize


def placed(sample: Array, port: Port) -> bytes:
    """One sample (*shape) as it lies."""
    ordered = sample.transpose(physical(sample.ndim))
    room = np.zeros(_room(port), dtypes.to_numpy(port.dtype))
    room[tuple(slice(n) for n in ordered.shape)] = ordered
    return room.tobytes()


def taken(raw: bytes, port: Port) -> Array:
    """The reverse of `placed`, in the container's dtype."""
    order = physical(len(port.shape))
    room = np.frombuffer(raw, dtypes.to_numpy(port.dtype)).reshape(_room(port))
    inner = room[tuple(slice(port.shape[d]) for d in order)]
    return np.array(inner.transpose([int(d) for d in np.argsort(order)]), order="C")


def _room(port: Port) -> tuple[int, ...]:
    """The shape of a sample as it lies."""
    shape = [port.shape[d] for d in physical(len(port.shape))]
    if shape:
        size = dtypes.to_numpy(port.dtype).itemsize
        shape[-1] = -(-shape[-1] * size // WORD_BYTES) * WORD_BYTES // size
    return tuple(shape)

"""How feature maps lie in the board's memory: channels last, each pixel padded to whole words of eight bytes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from cuvil_hw import dtypes
from cuvil_hw.adapters.streaming.analysis.streamed import physical
from cuvil_hw.adapters.temporal.image import WORD_BYTES
from cuvil_hw.schedule.kernel import Buffer
from cuvil_hw.types import TensorType

ALIGNMENT = 64  # bytes; a burst then starts at a cache line and no element straddles a word


def pixel_words(kind: TensorType) -> int:
    """Words of all channels at one position."""
    channels = kind.shape[physical(kind.rank)[-1]] if kind.rank else 1
    return -(-channels * dtypes.to_numpy(kind.dtype).itemsize // WORD_BYTES)


def padded(buffer: Buffer) -> Buffer:
    """The buffer with as many channels as there is room for; constants lie densely, in their own order."""
    kind = buffer.type
    if buffer.role == "const" or not kind.rank:
        return buffer
    size = pixel_words(kind) * WORD_BYTES // dtypes.to_numpy(kind.dtype).itemsize
    channel = physical(kind.rank)[-1]
    shape = tuple(size if d == channel else n for d, n in enumerate(kind.shape))
    return replace(buffer, type=TensorType(shape, kind.dtype))


def padded_bytes(buffer: Buffer) -> int:
    """Bytes of a buffer as it lies."""
    kind = padded(buffer).type
    return prod(kind.shape) * dtypes.to_numpy(kind.dtype).itemsize


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

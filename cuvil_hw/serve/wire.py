"""What server and worker process say to each other over a socket: a line of JSON, then the bytes of arrays.

Nothing is pickled. An array is [NumPy's dtype, shape] in the line; bfloat16 goes as its bits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from cuvil_hw import dtypes

MAX_LINE = 1 << 20
Array = np.ndarray[Any, Any]


def pack(message: dict[str, Any], arrays: Sequence[Array] = ()) -> list[bytes | memoryview]:
    """The parts of a message, in order."""
    described = [[_name(a), list(a.shape)] for a in arrays]
    line = json.dumps({**message, "arrays": described}).encode() + b"\n"
    return [line, *(_raw(a) for a in arrays if a.size)]


def sizes(line: bytes) -> tuple[dict[str, Any], list[tuple[np.dtype[Any], tuple[int, ...], int]]]:
    """The message in a line, and of each array that follows dtype, shape and bytes. Raises ValueError."""
    message = json.loads(line)
    found = []
    for name, shape in message.pop("arrays"):
        dtype = dtypes.to_numpy("bf16") if name == "bf16" else np.dtype(name)
        if dtype.hasobject or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"an array is {name} {shape}")
        found.append((dtype, tuple(shape), math.prod(shape) * dtype.itemsize))
    return message, found


def read(stream: BinaryIO) -> tuple[dict[str, Any], list[Array]] | None:
    """The next message, with arrays that may be written into; None at the end. Raises ValueError, EOFError."""
    line = stream.readline(MAX_LINE)
    if not line:
        return None
    message, wanted = sizes(line)
    return message, [array_of(_exactly(stream, size), dtype, shape) for dtype, shape, size in wanted]


def array_of(data: bytes | bytearray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return np.frombuffer(data, dtype).reshape(shape) if data else np.empty(shape, dtype)


def _exactly(stream: BinaryIO, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        step = stream.readinto(view[got:])  # type: ignore[attr-defined]
        if not step:
            raise EOFError("the socket ended within a message")
        got += step
    return data


def _name(array: Array) -> str:
    return "bf16" if array.dtype == dtypes.to_numpy("bf16") else array.dtype.str


def _raw(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

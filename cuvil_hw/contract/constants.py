"""Constants of a program, identified by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError

Array = npt.NDArray[Any]


class ConstantStore(Mapping[str, Array]):
    """Arrays by digest of dtype, shape and bytes; equal constants are stored once. Append-only, arrays are
    read-only."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def add(self, array: Array, dtype: str) -> str:
        """Store `array` (cast to the container of `dtype` by the caller) and return its digest."""
        data = np.array(dtypes.convert(array, dtype), order="C", copy=True)
        state = hashlib.sha256(f"{dtype}{data.shape}".encode())
        state.update(data.reshape(-1).view(np.uint8).data)
        digest = state.hexdigest()[:32]
        data.setflags(write=False)
        self._arrays.setdefault(digest, data)
        return digest

    def __getitem__(self, digest: str) -> Array:
        if digest not in self._arrays:
            raise CuvilError(
                f"constant {digest} is not in the store; the IR text and its weights don't belong together"
            )
        return self._arrays[digest]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

"""The type of a tensor, as plain data: shape and dtype. Shared by op definitions, kernels and the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class TensorType:
    """`shape`: extents (static, ≥ 0); `dtype`: a name from cuvil_hw.dtypes."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype: str) -> TensorType:
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype])

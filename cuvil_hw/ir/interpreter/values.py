"""What values and memories of level2 are to the interpreter.

An integer is a Python int in its type's signed range, i1 is 0 or 1, a float is the NumPy scalar of its width, an index
a Python int, a vector the list of its lanes. A memory is a flat list, row by row. None stands for what was never
written: it may be moved and selected, and any arithmetic on it fails.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import Float16Type, Float32Type, Float64Type, IndexType, IntegerType, MemRefType, VectorType
from xdsl.ir import Attribute

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError

Array = npt.NDArray[Any]
Values = list[Any]
FLOATS: dict[type[Attribute], Any] = {Float16Type: np.float16, Float32Type: np.float32, Float64Type: np.float64}
INDEX_BITS = 32


class Fault(Exception):
    """A rule of level2 that a running op breaks; whoever runs it adds which op and where."""


def scalar_of(kind: Attribute) -> Attribute:
    """The type of a vector's lanes; any other type itself."""
    return kind.element_type if isinstance(kind, VectorType) else kind


def bits_of(kind: Attribute) -> int:
    """Width of an integer type, of an index, or 0 of anything else."""
    if isinstance(kind, IntegerType):
        return int(kind.width.data)
    return INDEX_BITS if isinstance(kind, IndexType) else 0


def signed(value: int, bits: int) -> int:
    """The number of an integer type that has the same low bits."""
    if bits == 1:
        return value & 1
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def listed(array: Array, kind: Attribute) -> Values:
    """The elements of an array as values of a level2 type; bits beyond the type's width are ignored."""
    if (container := FLOATS.get(type(kind))) is not None:
        if array.dtype != container:
            raise CuvilError(f"level2: a memory of {kind} takes {np.dtype(container)}, not {array.dtype}")
        return list(array.ravel())
    if array.dtype == dtypes.BF16:  # level2 knows its bits
        array = array.view(np.int16)
    if array.dtype.kind not in "iub":
        raise CuvilError(f"level2: a memory of {kind} takes integers, not {array.dtype}")
    bits = bits_of(kind)
    flat = np.ascontiguousarray(array).ravel().astype(np.int64)  # uint64 keeps its bits
    if bits == 1:
        flat = flat & 1
    elif bits < 64:
        half = 1 << (bits - 1)
        flat = ((flat + half) & ((1 << bits) - 1)) - half
    return flat.tolist()


def arrayed(values: Values, dtype: str) -> Array:
    """Values of a level2 type as an array of `dtype`'s container: signless integers get its sign. Raises Fault for one
    that was never written."""
    if None in values:
        raise Fault(f"element {values.index(None)} was never written")
    container = dtypes.to_numpy(dtype)
    if dtype == "bf16":
        return np.array(values, np.int64).astype(np.uint16).view(container)
    if dtypes.is_float(dtype):
        return np.array(values, container)
    flat = np.array(values, np.int64)
    width = dtypes.int_width(dtype)
    if width is None:
        return np.asarray(flat != 0)
    is_signed, bits = width
    if bits == 1:
        return np.asarray(-(flat & 1) if is_signed else flat & 1).astype(container)
    return np.asarray(flat if is_signed or bits == 64 else flat & ((1 << bits) - 1)).astype(container)


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory that functions are given; `kind`: its memref type, with sizes known."""

    kind: MemRefType[Any]
    values: Values

    @classmethod
    def of(cls, array: Array, kind: MemRefType[Any]) -> Memory:
        """Raises CuvilError when the array's elements or size don't fit `kind`, whose first size may be open."""
        wanted = tuple(kind.get_shape())
        inner = prod(wanted[1:])
        shape = (array.size // max(inner, 1), *wanted[1:]) if wanted and wanted[0] < 0 else wanted
        if prod(shape) != array.size:
            raise CuvilError(f"level2: {kind} doesn't hold an array of shape {array.shape}")
        return cls(MemRefType(kind.element_type, shape), listed(array, kind.element_type))

    @classmethod
    def empty(cls, kind: MemRefType[Any], samples: int = 1) -> Memory:
        """Nothing written yet; an open first size is `samples`."""
        shape = [samples if n < 0 else n for n in kind.get_shape()]
        return cls(MemRefType(kind.element_type, shape), [None] * prod(shape))

    def array(self, dtype: str) -> Array:
        """What it holds, in `dtype`'s container. Raises CuvilError for an element that was never written."""
        try:
            return arrayed(self.values, dtype).reshape(tuple(self.kind.get_shape()))
        except Fault as e:
            raise CuvilError(f"level2: of a memory of {self.kind}, {e}") from e


@dataclass(slots=True)
class Stream:
    """A FIFO of words, each a list of lanes."""

    name: str
    depth: int
    words: deque[Values] = field(default_factory=deque)


@dataclass(slots=True)
class Wire:
    """An AXI4-Stream port: the elements of each tensor that crosses it, in streaming order, and whether a packet ended
    with the tensor. `dtype`: of the elements, which a port that is written learns from its writer."""

    tensors: list[Values] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)
    dtype: str = ""

    @classmethod
    def of(cls, batch: Array, kind: Attribute) -> Wire:
        """A port on which a batch (N, …) of elements of a level2 type waits as one packet."""
        tensors = [listed(sample, kind) for sample in batch]
        return cls(tensors, [n == len(tensors) - 1 for n in range(len(tensors))])

    def array(self) -> Array:
        """All tensors that were written to it, (N, elements)."""
        return np.stack([arrayed(values, self.dtype) for values in self.tensors])

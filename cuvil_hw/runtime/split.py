"""Serving a size by programs of other sizes, along a dimension in which every result stands alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cuvil_hw.contract.device import Array
from cuvil_hw.extent.polynomial import whole
from cuvil_hw.runtime.open_program import OpenPort


@dataclass(frozen=True, slots=True)
class Part:
    """`count` of the rows from `start` on go through the program of `size` ≥ count rows."""

    start: int
    count: int
    size: int


def parts(wanted: int, sizes: Sequence[int]) -> tuple[Part, ...]:
    """`wanted` ≥ 1 rows by programs of these sizes (≥ 1): as many as fit of the largest, the next largest, …; the
    rest through the smallest that holds it."""
    found: list[Part] = []
    start = 0
    for size in sorted(sizes, reverse=True):
        while wanted - start >= size:
            found.append(Part(start, size, size))
            start += size
    if start < wanted:
        rest = wanted - start
        found.append(Part(start, rest, min(s for s in sizes if s >= rest)))
    return tuple(found)


def axis_of(port: OpenPort, dim: str) -> int | None:
    """The axis of `port` that is `dim` and nothing else; None: there is none."""
    return next((d for d, e in enumerate(port.shape) if whole(e).name == dim), None)


def cut(arrays: Mapping[str, Array], ports: Sequence[OpenPort], dim: str, part: Part) -> dict[str, Array]:
    """Inputs of one part; missing rows repeat the last one, so that they hold values that the model may get."""
    found = {}
    for port in ports:
        array, axis = arrays[port.name], axis_of(port, dim)
        if axis is not None:
            rows = np.minimum(np.arange(part.start, part.start + part.size), part.start + part.count - 1)
            array = np.take(array, rows, axis)
        found[port.name] = array
    return found


def join(results: Sequence[Sequence[Array]], ports: Sequence[OpenPort], dim: str, cuts: Sequence[Part]) -> list[Array]:
    """Outputs of all parts as one."""
    joined = []
    for i, port in enumerate(ports):
        axis = axis_of(port, dim)
        assert axis is not None, "the proof of independence wants the dimension in every output"
        rows = [np.take(r[i], np.arange(p.count), axis) for r, p in zip(results, cuts, strict=True)]
        joined.append(np.concatenate(rows, axis))
    return joined

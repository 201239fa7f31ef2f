"""Serves a size with programs of other sizes, along a dimension in which rows are independent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cuvil_hw.contract.device import Array
from cuvil_hw.extent.polynomial import whole
from cuvil_hw.runtime.open_program import OpenPort


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `start` to `start` + `count` - 1, computed by the program of `size` ≥ count rows."""

    start: int
    count: int
    size: int


def parts(wanted: int, sizes: Sequence[int]) -> tuple[Part, ...]:
    """How to compute `wanted` ≥ 1 rows with programs of these sizes (each ≥ 1): as many full parts as fit of the
    largest size, then of the next, …; the remaining rows go through the smallest program that holds them."""
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
    """The axis of `port` whose extent is exactly `dim`; None: there is none."""
    return next((d for d, e in enumerate(port.shape) if whole(e).name == dim), None)


def cut(arrays: Mapping[str, Array], ports: Sequence[OpenPort], dim: str, part: Part) -> dict[str, Array]:
    """The inputs of one part. Missing rows repeat the last one, so that they hold values that the model could get."""
    found = {}
    for port in ports:
        array, axis = arrays[port.name], axis_of(port, dim)
        if axis is not None:
            rows = np.minimum(np.arange(part.start, part.start + part.size), part.start + part.count - 1)
            array = np.take(array, rows, axis)
        found[port.name] = array
    return found


def join(results: Sequence[Sequence[Array]], ports: Sequence[OpenPort], dim: str, cuts: Sequence[Part]) -> list[Array]:
    """The outputs of all parts, joined."""
    joined = []
    for i, port in enumerate(ports):
        axis = axis_of(port, dim)
        assert axis is not None, "the proof of independence wants the dimension in every output"
        rows = [np.take(r[i], np.arange(p.count), axis) for r, p in zip(results, cuts, strict=True)]
        joined.append(np.concatenate(rows, axis))
    return joined

"""Loops over the positions that nonzero found: `for i in torch.nonzero(m)`.

Their number is only known at run time, but all possible positions are known. The loop makes one iteration for each
possible position, under the condition that m is true there; the position is a tensor with known values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from cuvil_hw.frontend.python.arrays import Array
from cuvil_hw.frontend.python.number import Number
from cuvil_hw.frontend.python.trace import current, refuse
from cuvil_hw.frontend.python.values import sized

MOST_ROWS = 4096  # of a loop
_LINES = frozenset(["squeeze", "flatten", "reshape", "view", "ravel"])  # of one column
_SAME = frozenset(["clone", "detach", "contiguous", "long", "to", "cpu", "copy", "astype"])


@dataclass(frozen=True)
class Hits:
    """`found`: a result of nonzero, or a part of it. `mask`: (n,), its argument, flattened. `rows`: (n, …), the rows
    that `found` would have if the mask were true everywhere. `version`: torch's count of changes of `found`, for which
    this holds."""

    found: Any
    mask: torch.Tensor
    rows: np.ndarray[Any, Any]
    version: int

    def trips(self) -> Iterator[tuple[Any, Any]]:
        for i, row in enumerate(self.rows):
            yield Number(self.mask[i], bool), Array.of(row) if isinstance(self.found, Array) else known(row)


@dataclass(frozen=True)
class Listed:
    """`found.tolist()`, to be looped through."""

    hits: Hits

    def trips(self) -> Iterator[tuple[Any, Any]]:
        for i, row in enumerate(self.hits.rows):
            yield Number(self.hits.mask[i], bool), row.tolist()

    def __iter__(self) -> Iterator[Any]:
        refuse("a list of positions", "of which only a run knows how many there are; loop through it")


@dataclass(frozen=True)
class Beside:
    """What zip and enumerate make of rows that values select, and of other things, to be looped through."""

    parts: tuple[Any, ...]

    def trips(self) -> Iterator[tuple[Any, Any]]:
        each = [_selected(p, _most(p)) if is_selected(p) else ((True, v) for v in p) for p in self.parts]
        for trip in zip(*each, strict=False):
            there = functools.reduce(torch.logical_and, [c.tensor for c, _ in trip if isinstance(c, Number)])
            yield Number(there, bool), tuple(v for _, v in trip)

    def __iter__(self) -> Iterator[Any]:
        refuse("zip or enumerate", "of what values select, which only a run knows; loop through it")


def beside(function: Any, *parts: Any) -> Any:
    """zip(*parts), or that of a counter and what is enumerated."""
    return Beside(parts) if any(map(is_selected, parts)) else function()


class Known(torch.Tensor):
    """A tensor whose values are known during the trace; so are values computed only from such tensors."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        alone = all(isinstance(x, Known) for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor))
        with torch._C.DisableTorchFunctionSubclass():
            plain, named = pytree.tree_map(lambda x: x.as_subclass(torch.Tensor) if type(x) is cls else x, given)
            if not alone:
                return func(*plain, **named)
            with _disable_current_modes():
                result = func(*plain, **named)
            return pytree.tree_map(lambda x: x.as_subclass(cls) if isinstance(x, torch.Tensor) else x, result)


def known(values: Any) -> torch.Tensor:
    with _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
        return torch.from_numpy(np.array(values)).as_subclass(Known)


def record(source: torch.Tensor, found: Any) -> Any:
    """What nonzero found of `source`: one array of rows, or one of each axis."""
    rows = np.argwhere(np.ones(tuple(source.shape)))
    mask = source.reshape(-1) != 0
    if isinstance(found, tuple):
        for axis, part in enumerate(found):
            _keep(part, mask, rows[:, axis])
    else:
        _keep(found, mask, rows)
    return found


def of(value: Any) -> Hits | None:
    hits: Hits | None = current().hits.get(id(value))
    return hits if hits is not None and hits.version == _tensor(value)._version else None


def _tensor(value: Any) -> torch.Tensor:
    tensor: torch.Tensor = value.tensor if isinstance(value, Array) else value
    return tensor


def _keep(found: Any, mask: torch.Tensor, rows: np.ndarray[Any, Any]) -> None:
    current().hits[id(found)] = Hits(found, mask, rows, _tensor(found)._version)


def trips(values: Any) -> Iterator[tuple[Any, Any]] | None:
    """The iterations of a loop through what values select: conditions and items; None where that isn't known."""
    if isinstance(values, Listed | Beside):
        return values.trips()
    if (found := of(values)) is not None:
        return found.trips()
    return _selected(values, _most(values)) if is_selected(values) else None


def is_selected(values: Any) -> bool:
    """Whether a tensor has as many rows as values say."""
    return isinstance(values, torch.Tensor) and bool(values.ndim) and isinstance(values.shape[0], torch.SymInt)


def _most(values: torch.Tensor) -> int:
    n: Any = values.shape[0]
    most = n.node.shape_env.bound_sympy(n.node.expr).upper
    if not most <= MOST_ROWS:
        refuse("a loop", f"goes through what values select, which may be more than {MOST_ROWS} rows; use masks")
    return int(most)


def _selected(values: torch.Tensor, most: int) -> Iterator[tuple[Any, Any]]:
    """One for each row that there can be, under the condition that it is there."""
    count = values.shape[0]
    rows = torch.nn.functional.pad(values, [0, 0] * (values.ndim - 1) + [0, most - count])
    for i in range(most):
        yield Number(sized(count) > i, bool), rows[i]


def follow(source: Any, name: str, result: Any) -> Any:
    """A method of what nonzero found."""
    hits = of(source)
    if hits is not None and isinstance(result, torch.Tensor | Array):
        column = hits.rows.ndim == 1 or hits.rows.shape[1] == 1
        if name in _LINES and column and result.ndim == 1:
            _keep(result, hits.mask, hits.rows.reshape(-1))
        elif name in _SAME and _tensor(result).dtype == torch.int64:
            _keep(result, hits.mask, hits.rows)
    return result


def part(source: Any, index: Any, result: Any) -> Any:
    """source[index]: a column of what nonzero found."""
    hits = of(source)
    if hits is not None and isinstance(index, tuple) and len(index) == 2:
        first, column = index
        if first == slice(None) and isinstance(column, int):
            _keep(result, hits.mask, hits.rows[:, column])
    return result


__all__ = ["Beside", "Hits", "Known", "Listed", "beside", "follow", "of", "part", "record", "trips"]

"""Loops over the positions that nonzero found: `for i in torch.nonzero(m)`.

Their number is only known at run time, but all possible positions are known. The loop makes one iteration for each
possible position, under the condition that m is true there; the position is a tensor with known values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from cuvil_hw.frontend.python.arrays import Array
from cuvil_hw.frontend.python.number import Number
from cuvil_hw.frontend.python.trace import current

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


__all__ = ["Hits", "Known", "follow", "of", "part", "record"]

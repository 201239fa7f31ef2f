"""Assignments at positions that tensors hold, `x[i] = v` and `x[:, i] = v`: torch would ask for the number while it
traces, here they become writes at an index."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cuvil_hw.frontend.torch.impure import unwatched


def is_position(part: Any) -> bool:
    """A single position that is read from a tensor."""
    whole = isinstance(part, torch.Tensor) and part.ndim == 0 and not part.is_floating_point()
    return whole and part.dtype != torch.bool


def assign(x: torch.Tensor, index: tuple[Any, ...], value: Any) -> None:
    """`x[index] = value`, where positions in `index` are tensors without dimensions."""
    at, axis, parts = torch.arange(x.numel()).reshape(x.shape), 0, list(index)
    spread = x.ndim - sum(1 for p in parts if p is not None and p is not Ellipsis)
    for i, part in enumerate(parts):
        if is_position(part):
            row = torch.where(part < 0, part + x.shape[axis], part).reshape(1).to(torch.int64)
            at, parts[i] = torch.index_select(at, axis, row), slice(None)
        axis += spread if part is Ellipsis else part is not None
    # Each position keeps its dimension of 1 while the other parts are taken, and then loses it.
    single = [is_position(p) for p in index]
    chosen = at[tuple(0 if one else p for one, p in zip(single, parts, strict=True))]
    given = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    while given.ndim > chosen.ndim and given.shape[0] == 1:
        given = given[0]
    new = given.to(x.dtype).expand(chosen.shape).reshape(-1)
    x.copy_(x.reshape(-1).index_put((chosen.reshape(-1),), new).reshape(x.shape))


class Positions(TorchFunctionMode):
    """Takes such assignments over while a model is traced, and lets torch's functions run unwatched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__setitem__ and len(args) == 3:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            plain = all(p is None or p is Ellipsis or isinstance(p, int | slice) or is_position(p) for p in index)
            if plain and any(map(is_position, index)):
                return assign(args[0], index, args[2])
        return unwatched(func, args, kwargs or {})


__all__ = ["Positions", "assign", "is_position"]

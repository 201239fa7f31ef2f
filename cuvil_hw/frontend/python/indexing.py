"""Subscripts of arrays and tensors, with NumPy's meaning for arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from cuvil_hw.frontend.python.arrays import Array, as_tensor, behaviour, reversed_view
from cuvil_hw.frontend.python.conditions import TRUE
from cuvil_hw.frontend.python.number import Number
from cuvil_hw.frontend.python.trace import current, refuse, where
from cuvil_hw.frontend.torch.positions import assign


@behaviour("subscript")
def get(array: Array, index: Any) -> Array:
    """`array[index]`: a view where NumPy gives one; a scalar where it gives one."""
    parts = index if isinstance(index, tuple) else (index,)
    known: Any = None
    fixed, plain = _fixed(index)
    if array.known is not None and fixed:
        known = np.asarray(array.known)[plain]
    taken, flips = torch_index(parts, tuple(array.tensor.shape), backwards=True)
    tensor = take(array.tensor, taken)
    if flips:
        reversed_view(array)
        tensor = torch.flip(tensor, flips)
    whole = any(p is Ellipsis or (isinstance(p, Array | np.ndarray) and p.ndim) for p in parts)
    scalar = tensor.ndim == 0 and not whole
    if scalar:
        return Array(tensor.clone(), known, scalar=True)
    shares = known is not None and np.may_share_memory(known, np.asarray(array.known))
    return Array(tensor, known, array.alive if shares else None)


def set_(array: Array, index: Any, value: Any) -> None:
    """`array[index] = value`, known values included where nothing depends on an input."""
    parts = index if isinstance(index, tuple) else (index,)
    taken, _ = torch_index(parts, tuple(array.tensor.shape), backwards=False)
    fixed, plain = _fixed((index, value))
    if array.known is not None and fixed and current().mask == TRUE:
        np.asarray(array.known)[plain[0]] = plain[1]
    else:
        array.alive[0] = False
    tensor = value.tensor if isinstance(value, Array | Number) else as_tensor(value)
    dimensions = take(array.tensor, taken).ndim
    while tensor.ndim > dimensions and tensor.shape[0] == 1:
        tensor = tensor[0]  # NumPy drops leading dimensions of 1 here
    put(array.tensor, taken, tensor.to(array.tensor.dtype))


def _computed(part: Any) -> bool:
    """A single position that is read from a tensor: torch would want its value now."""
    return isinstance(part, torch.Tensor) and part.ndim == 0


def take(tensor: torch.Tensor, index: tuple[Any, ...]) -> torch.Tensor:
    """`tensor[index]`, a copy where positions are computed."""
    parts, axis = list(index), 0
    spread = tensor.ndim - sum(1 for p in parts if p is not None and p is not Ellipsis)
    for i, part in enumerate(parts):
        if _computed(part):
            tensor = torch.index_select(tensor, axis, part.reshape(1))
            parts[i] = 0
        axis += spread if part is Ellipsis else part is not None
    return tensor[tuple(parts)]


def put(tensor: torch.Tensor, index: tuple[Any, ...], value: Any) -> None:
    """`tensor[index] = value`."""
    if not any(_computed(p) for p in index):
        tensor[index] = value
        return
    if any(isinstance(p, torch.Tensor) and p.ndim for p in index):
        refuse("a subscript", "assigns at several positions and at one read from a tensor at once; assign in a loop")
    assign(tensor, index, value.tensor if isinstance(value, Array | Number) else value)


def _fixed(index: Any) -> tuple[bool, Any]:
    """Whether an index depends on no input, and then the index in plain NumPy."""
    if isinstance(index, tuple):
        parts = [_fixed(p) for p in index]
        return all(ok for ok, _ in parts), tuple(p for _, p in parts)
    if isinstance(index, Number | torch.Tensor):
        return False, None
    if isinstance(index, Array):
        return index.known is not None, index.known
    if isinstance(index, slice):
        return not any(isinstance(p, Number) for p in (index.start, index.stop, index.step)), index
    return True, index


def torch_index(parts: tuple[Any, ...], shape: tuple[int, ...], backwards: bool) -> tuple[Any, list[int]]:
    """An index that torch takes, and the dimensions of the result to reverse (slices with negative steps)."""
    made: list[Any] = []
    flips: list[int] = []
    taken = sum(_dimensions(p) for p in parts if p is not None and p is not Ellipsis)
    axis = 0
    for part in parts:
        if part is Ellipsis:
            made.append(part)
            axis += len(shape) - taken
            continue
        if part is None:
            made.append(None)
            continue
        extent = shape[axis] if axis < len(shape) else 1
        if isinstance(part, slice):
            made.append(_slice(part, extent, backwards, flips, made))
        else:
            made.append(_position(part, extent))
        axis += _dimensions(part)
    if flips and any(isinstance(p, torch.Tensor) and p.ndim for p in made):
        refuse("a subscript", "mixes arrays with slices that go backwards; index in two steps")
    flips = [sum(1 for p in made[:i] if p is None or isinstance(p, slice)) + _implied(made[:i], shape) for i in flips]
    return tuple(made), flips


def _implied(before: list[Any], shape: tuple[int, ...]) -> int:
    """Dimensions that an ellipsis stands for."""
    if not any(p is Ellipsis for p in before):
        return 0
    refuse("a subscript", "has a slice that goes backwards after an ellipsis; index in two steps")


def _dimensions(part: Any) -> int:
    if part is None:
        return 0
    if isinstance(part, Array | torch.Tensor | np.ndarray) and str(part.dtype).removeprefix("torch.") == "bool":
        return int(part.ndim)
    return 1


def _slice(part: slice, extent: int, backwards: bool, flips: list[int], made: list[Any]) -> slice:
    ends = [_whole(p) for p in (part.start, part.stop, part.step)]
    part = slice(*ends)
    if part.step is None or part.step > 0:
        return part
    if not backwards:
        refuse("a subscript", "assigns to a slice that goes backwards; reverse the value instead")
    positions = range(*part.indices(extent))
    flips.append(len(made))
    if not len(positions):
        return slice(0, 0)
    return slice(positions[-1], positions[0] + 1, -part.step)


def _whole(part: Any) -> Any:
    """An end of a slice; one read from a tensor is a size that torch knows by a symbol."""
    if isinstance(part, Array) and part.known is not None:
        return part.__index__()
    if isinstance(part, Array | Number):
        part = part.tensor
    if isinstance(part, torch.Tensor):
        return part.item()
    return operator.index(part) if isinstance(part, np.integer) else part


def _position(part: Any, extent: int) -> Any:
    if isinstance(part, Array) and part.known is not None:
        part = part.known
    if isinstance(part, list):
        part = Array.of(part)
    if isinstance(part, np.ndarray | np.generic) and not isinstance(part, np.bool_):
        return torch.from_numpy(np.array(part)) if part.ndim else operator.index(part)  # type: ignore[arg-type]
    if isinstance(part, Number | Array):
        part = part.tensor
    if not isinstance(part, torch.Tensor):
        return part
    if part.dtype == torch.bool:
        if not part.ndim:
            refuse("a boolean index", "without dimensions adds one whose length depends on values; use where")
        return part
    if part.is_floating_point():
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    part = part.to(torch.int64)
    inside = ((part >= -extent) & (part < extent)).all()
    trace = current()
    trace.demand(inside, f"{where()}: an index is out of bounds for an axis of size {extent}", IndexError)
    if trace.mask != TRUE:
        part = torch.where(trace.conditions.tensor(trace.mask), part, torch.zeros_like(part))
    return part

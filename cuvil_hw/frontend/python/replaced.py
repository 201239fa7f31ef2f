"""Functions of NumPy for which torch's own NumPy layer computes something else, or reads values while tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cuvil_hw.frontend.python import hits
from cuvil_hw.frontend.python.arrays import Array
from cuvil_hw.frontend.python.number import Number, is_python_number
from cuvil_hw.frontend.python.trace import refuse

# Modes of np.pad that only repeat elements: which ones is asked of NumPy.
_REPEATING = frozenset(["edge", "reflect", "symmetric", "wrap"])


def fix(x: Any) -> torch.Tensor:
    """Towards zero."""
    made = Array.of(x).tensor
    return torch.trunc(made) if made.is_floating_point() else made.clone()


def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> torch.Tensor:
    """Raises Unsupported for modes that compute, and for widths or values for each side that are read from tensors."""
    tensor = Array.of(array).tensor
    width = pad_width.known if isinstance(pad_width, Array) else pad_width
    if width is None or isinstance(width, dict):
        refuse("np.pad", "widths must be known while compiling, as numbers or pairs of them")
    sides = np.broadcast_to(np.asarray(width), (tensor.ndim, 2)).tolist()
    if mode in _REPEATING and not kwargs:
        for axis, side in enumerate(sides):
            positions = np.pad(np.arange(tensor.shape[axis]), side, mode=mode)  # type: ignore[call-overload]
            tensor = tensor.index_select(axis, torch.from_numpy(positions))
        return tensor.clone()
    value = kwargs.pop("constant_values", 0)
    if mode != "constant" or kwargs:
        refuse("np.pad", f"mode {mode!r} with {', '.join(kwargs) or 'no options'}; write it with np.concatenate")
    if not is_python_number(value) and not isinstance(value, Array | Number | np.generic):
        refuse("np.pad", "with a value for each side; write it with np.concatenate")
    filled = Array.of(value).tensor.reshape(()).to(tensor.dtype)
    for axis, side in enumerate(sides):
        ends = [filled.expand(*tensor.shape[:axis], n, *tensor.shape[axis + 1 :]) for n in side]
        tensor = torch.cat([ends[0], tensor, ends[1]], axis)
    return tensor


def alike(name: str, args: Any, dtype: np.dtype[Any]) -> Any:
    """Operands that become one array, in its dtype."""

    def cast(x: Any) -> Any:
        return Array.of(x).astype(dtype)

    first = 1 if name == "where" else 0
    made = list(args)
    if name in ("where", "append"):
        made[first : first + 2] = [cast(x) for x in made[first : first + 2]]
    elif name not in ("select", "choose"):
        parts = made[0]
        made[0] = [cast(x) for x in parts]
    return made


def positions(name: str, x: Any) -> Any:
    """What np.nonzero, np.where(x), np.argwhere and np.flatnonzero find: where `x` isn't zero, in order."""
    source = Array.of(x).tensor
    if name == "flatnonzero":
        source = source.reshape(-1)
    if name == "argwhere":
        return hits.record(source, Array(torch.argwhere(source)))
    found = hits.record(source, tuple(Array(t) for t in torch.nonzero(source, as_tuple=True)))
    return found[0] if name == "flatnonzero" else found


REPLACED: dict[str, Callable[..., torch.Tensor]] = {"fix": fix, "pad": pad}

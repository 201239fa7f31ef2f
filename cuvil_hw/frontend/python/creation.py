"""NumPy functions that create arrays from traced values: by name in MAKERS, with NumPy's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from cuvil_hw.frontend.python.arrays import Array, torch_dtype
from cuvil_hw.frontend.python.trace import current, refuse


def array(
    object: Any, dtype: Any = None, *, copy: bool | None = True, order: str | None = "K", subok: bool = False,
    ndmin: int = 0, **rest: Any,
) -> Array:  # fmt: skip
    return _made("np.array", object, dtype, copy, order, rest, ndmin)


def asarray(a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, **rest: Any) -> Array:
    return _made("np.asarray", a, dtype, copy, order, rest)


def ascontiguousarray(a: Any, dtype: Any = None, **rest: Any) -> Array:
    return _made("np.ascontiguousarray", a, dtype, None, "C", rest, 1)


def copy(a: Any, order: str | None = "K", subok: bool = False) -> Array:
    return _made("np.copy", a, None, True, order, {})


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str | None = "C", **rest: Any) -> Array:
    _want_handled("np.full", order, rest)
    return _filled(shape, fill_value, dtype, order)


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str | None = "K", subok: bool = True, shape: Any = None,
    **rest: Any,
) -> Array:  # fmt: skip
    _want_handled("np.full_like", order, rest)
    like = Array.of(a)
    return _filled(like.shape if shape is None else shape, fill_value, like.dtype if dtype is None else dtype, order)


def _want_handled(name: str, order: str | None, rest: Mapping[str, Any]) -> None:
    """Raises ValueError for an invalid order, Unsupported for keywords that would change the result."""
    if order not in (None, "C", "F", "K", "A"):
        raise ValueError(f"{name}: order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    for key, value in rest.items():
        if value is not None and (key, value) != ("device", "cpu"):
            refuse(name, f"{key}= is not supported on what is traced; leave it out")


def _made(
    name: str, given: Any, dtype: Any, copied: bool | None, order: str | None, rest: Mapping[str, Any], ndmin: int = 0
) -> Array:
    """`given` as an array of `ndmin` dimensions at least. `copied`: None where needed only, False never."""
    _want_handled(name, order, rest)
    made = Array.of(given)
    other = dtype is not None and np.dtype(dtype) != made.dtype
    needed = other or made.scalar or not isinstance(given, Array | torch.Tensor) or not _laid(made.tensor, order)
    if needed and copied is False:
        raise ValueError(f"{name} with copy=False, where a copy is needed")
    if needed or copied:
        tensor = made.tensor.to(torch_dtype(dtype)) if other else made.tensor
        made = Array(_copied(tensor, order), None if other or made.known is None else np.array(made.known))
    if order in ("C", "F") and isinstance(given, Array):
        current().lay(given.tensor, made.tensor)
    return made if made.ndim >= ndmin else made.reshape((1,) * (ndmin - made.ndim) + made.shape)


def _filled(shape: Any, value: Any, dtype: Any, order: str | None) -> Array:
    wanted = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    tensor = Array.of(value).tensor.expand(wanted)
    return Array(_copied(tensor if dtype is None else tensor.to(torch_dtype(dtype)), "F" if order == "F" else "C"))


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(tuple(reversed(range(tensor.ndim))))


def _laid(tensor: torch.Tensor, order: str | None) -> bool:
    """Whether it lies in memory as "C" or "F" says, which other orders don't."""
    return order not in ("C", "F") or (tensor if order == "C" else _turned(tensor)).is_contiguous()


def _copied(tensor: torch.Tensor, order: str | None) -> torch.Tensor:
    if order == "F":
        return _turned(_copied(_turned(tensor), "C"))
    return tensor.clone(memory_format=torch.contiguous_format if order == "C" else torch.preserve_format)


MAKERS: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "array": array,
        "asarray": asarray,
        "asanyarray": asarray,
        "ascontiguousarray": ascontiguousarray,
        "copy": copy,
        "full": full,
        "full_like": full_like,
    }
)

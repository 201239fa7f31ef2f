"""NumPy functions that make arrays, of values that are traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cuvil_hw.frontend.python.arrays import Array, torch_dtype


def array(name: str, args: Any, kwargs: Any) -> Array:
    """np.array, asarray, copy and their like, called `name`."""
    given = args[0]
    made = Array.of(given)
    dtype = kwargs.get("dtype", args[1] if len(args) > 1 else None)
    fresh = name in ("array", "copy") and kwargs.get("copy", True) is not False
    if dtype is not None and np.dtype(dtype) != made.dtype:
        return Array(made.tensor.to(torch_dtype(dtype)))
    if made.scalar or (fresh and made is given) or (fresh and isinstance(given, torch.Tensor)):
        return Array(made.tensor.clone(), None if made.known is None else np.array(made.known))
    return made


def full(name: str, args: Any, kwargs: Any) -> Array:
    """np.full, np.full_like."""
    shape, value = args[0], kwargs.get("fill_value", args[1] if len(args) > 1 else None)
    like = Array.of(shape) if name == "full_like" else None
    dtype = kwargs.get("dtype") or (like.dtype if like is not None else None)
    filled = Array.of(value)
    wanted = like.shape if like is not None else (shape,) if isinstance(shape, int) else tuple(shape)
    tensor = filled.tensor.expand(wanted).clone()
    return Array(tensor if dtype is None else tensor.to(torch_dtype(dtype)))

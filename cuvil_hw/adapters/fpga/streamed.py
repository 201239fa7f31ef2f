"""Arrays in the order in which samples cross a port: channels last, one sample behind the other. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.runtime.device import Array, Port


def streamed(array: Array, about: Mapping[str, Any]) -> Array:
    """(N, *shape) as it crosses; `about`: the port's entry in the plan's info, with its `order`."""
    return np.ascontiguousarray(array.transpose(0, *(d + 1 for d in about["order"])))


def empty(samples: int, port: Port, about: Mapping[str, Any]) -> Array:
    """Room for an output as it crosses."""
    return np.empty((samples, *(port.shape[d] for d in about["order"])), dtypes.to_numpy(port.dtype))


def logical(array: Array, about: Mapping[str, Any]) -> Array:
    """The reverse of `streamed`."""
    return np.ascontiguousarray(array.transpose(0, *(d + 1 for d in np.argsort(about["order"]))))

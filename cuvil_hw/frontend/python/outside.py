"""Values that a function reads from outside: arrays become traced constants; containers are marked as not its own."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import numpy as np
import torch

from cuvil_hw.frontend.python.arrays import Array, as_tensor, own_operations
from cuvil_hw.frontend.python.helpers import helper_function
from cuvil_hw.frontend.python.trace import current, memory, refuse
from cuvil_hw.frontend.python.values import constant, settle


def outside(value: Any, name: str) -> Any:
    """A value that was there before the trace, as the rewritten function sees it."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        trace = current()
        if why := own_operations(value):
            refuse(name or "an array", why)
        if id(value) not in trace.outside:
            made = Array(as_tensor(value), value)
            trace.frozen[memory(made.tensor)] = f"{name or 'an array'}, which is from outside of the function"
            trace.outside[id(value)] = (value, made)
        return trace.outside[id(value)][1]
    return value


def origin(value: Any) -> str:
    """Of an array: "argument", "outside", or "" where the function made it."""
    trace = current()
    if any(value is made for made in trace.given):
        return "argument"
    known = isinstance(value, torch.Tensor) and constant(value)
    return "outside" if known or any(value is made for _, made in trace.outside.values()) else ""


# torch.export puts functions of its own in place of these while it traces.
_BUILTINS = {name: getattr(builtins, name) for name in ("max", "min")}


@helper_function
def outer(value: Any, name: str) -> Any:
    """A global, or a variable of a scope around the function, which is read with the function itself."""
    frame = sys._getframe(1)
    if name not in frame.f_code.co_freevars:
        current().reads.name(frame.f_globals, name)
    if name in _BUILTINS and value is getattr(builtins, name):
        return _BUILTINS[name]
    if isinstance(value, list | dict | set):
        current().outside.setdefault(id(value), (value, name))
    return outside(value, name)


@helper_function
def get(value: Any, name: str) -> Any:
    """A variable."""
    return outside(settle(value, name), name)

"""What a function reads besides its arguments, as a value to compare: a change of it asks for another compilation."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from cuvil_hw.frontend.python.source import captured, is_library, of_user

# Tensors with fewer bytes are compared by content; larger ones by torch's count of their changes.
_CONTENT_BYTES = 1 << 20


def fingerprint(value: Any, seen: dict[int, Any]) -> Any:
    """Equal for what a function can't tell apart. `seen`: objects by id, which it fills; they must be kept as long as
    the result is compared, since an id is only unique while its object lives."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value), repr(value)
    if id(value) in seen:
        return "again", id(value)
    seen[id(value)] = value
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        return "array", value.shape, str(value.dtype), _digest(np.asarray(value))
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), tuple(fingerprint(v, seen) for v in value)
    if isinstance(value, dict):
        return type(value), tuple((fingerprint(k, seen), fingerprint(v, seen)) for k, v in value.items())
    if isinstance(value, types.MethodType):
        return "method", fingerprint(value.__func__, seen), fingerprint(value.__self__, seen)
    wrapped = getattr(value, "__cuvil_wrapped__", None)
    if wrapped is not None:
        return "compiled", fingerprint(wrapped, seen)
    if of_user(value):
        return _function(value, seen)
    if isinstance(value, types.ModuleType | type):
        return "named", id(value)
    if isinstance(value, torch.nn.Module):
        return _module(value, seen)
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(value, types.FunctionType):
        return "object", id(value), fingerprint(dict(attributes), seen)
    return "object", id(value)


def _tensor(tensor: torch.Tensor) -> Any:
    facts = ("tensor", id(tensor), tensor._version, tuple(tensor.shape), str(tensor.dtype))
    if tensor.numel() * tensor.element_size() <= _CONTENT_BYTES and tensor.device.type == "cpu":
        plain = tensor.detach().contiguous()
        return (*facts, _digest(plain.reshape(-1).view(torch.uint8).numpy()))
    return facts


def _digest(array: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()


def _module(module: torch.nn.Module, seen: dict[int, Any]) -> Any:
    weights = tuple((id(t), t._version) for t in (*module.parameters(), *module.buffers()))
    own = []
    for m in module.modules():
        seen[id(m)] = m
        plain = {k: v for k, v in vars(m).items() if k == "training" or not (k.startswith("_") or k in _OF_MODULES)}
        own.append((id(m), fingerprint(plain, seen)))
    return "module", weights, tuple(own)


_OF_MODULES = frozenset(vars(torch.nn.Module()))


def _function(function: types.FunctionType, seen: dict[int, Any]) -> Any:
    names = tuple(_names(function.__code__))
    found: list[Any] = [id(function.__code__)]
    found += [fingerprint(v, seen) for v in (function.__defaults__, function.__kwdefaults__)]
    found += [(k, fingerprint(v, seen)) for k, v in captured(function).items()]
    for name in names:
        if name in function.__globals__:
            value = function.__globals__[name]
            found.append((name, fingerprint(value, seen)))
            if isinstance(value, types.ModuleType) and not is_library(getattr(value, "__file__", None) or "<"):
                found += [(n, fingerprint(vars(value)[n], seen)) for n in names if n in vars(value)]
    return tuple(found)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

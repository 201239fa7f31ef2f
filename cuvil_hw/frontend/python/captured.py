"""Fingerprints of values: equal if a compiled function can't tell the values apart.

A user's object that only Python code can read is identified by its id, since the trace records what the code reads of
it (reads.py). Everything else is compared by content. `deep` also compares the content of objects.
"""

from __future__ import annotations

import array
import collections
import functools
import hashlib
import sys
import types
from abc import ABC
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from cuvil_hw.frontend.python.source import captured, is_library, of_user

# Objects seen, by (id, deep); attributes of classes by (-id, deep). Kept: an id is unique only while its object lives.
Kept = dict[tuple[int, bool], Any]

_SCALARS = frozenset([type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes, range])
_BASES = (int, float, complex, str, bytes)
_DIGESTED = 1 << 16  # bytes; more are hashed faster
_HEAP_TYPE = 1 << 9  # of type.__flags__: a class statement made it
_NO_STATE = frozenset(["__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__"])
# Classes whose own code reads nothing of an instance unless it is called with it.
_BARE: tuple[Any, ...] = (object, Generic, Protocol, ABC, torch.nn.Module)


def fingerprint(value: Any, seen: Kept, deep: bool = False) -> Any:
    """The fingerprint of `value`. `seen`: filled with the objects that are identified by their ids."""
    if type(value) in _SCALARS:
        return type(value), repr(value)
    key = id(value), deep and not isinstance(value, torch.Tensor | np.ndarray)
    if key in seen:
        return "again", id(value)
    seen[key] = value
    if is_traced(value):
        return "traced", id(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        content = _objects(array, seen, deep) if array.dtype.hasobject else digest(array)
        return "array", array.shape, array.strides, str(array.dtype), content
    wrapped = getattr(value, "__dict__", {}).get("__cuvil_wrapped__")
    if wrapped is not None:
        return "compiled", fingerprint(wrapped, seen, deep)
    if isinstance(value, types.FunctionType):
        return _function(value, seen, deep)
    if isinstance(value, types.MethodType):
        return "method", fingerprint(value.__func__, seen, deep), fingerprint(value.__self__, seen, deep)
    if isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType | None):
        return "method", value.__name__, fingerprint(value.__self__, seen, deep)
    if isinstance(value, types.ModuleType | types.BuiltinFunctionType | types.CodeType | torch.dtype | torch.device):
        return "named", id(value)
    if isinstance(value, type):
        return ("class", id(value), *_class(value, seen, deep)) if deep else ("class", id(value))
    if not deep and is_opaque(value):
        return "object", id(value), id(type(value))
    return type(value), id(type(value)), tuple(_parts(value, seen, deep))


def is_opaque(value: Any) -> bool:
    """Whether an object's content can only be read by user code, or by a call that receives it."""
    return type(value) is not object and all(c in _BARE or is_users(c) for c in type(value).__mro__)


def is_users(kind: type) -> bool:
    """Whether a class is the user's: not of the standard library, an installed package or Cuvil itself."""
    if not kind.__flags__ & _HEAP_TYPE:
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return module is None or kind.__module__ == "__main__" or (file is not None and not is_library(file))


def is_traced(value: Any) -> bool:
    """Whether a value stands for something computed at run time."""
    return isinstance(value, FakeTensor) or getattr(type(value), "traced", False) is True


def _parts(value: Any, seen: Kept, deep: bool) -> Iterator[Any]:
    """The content of an object: container elements, its attributes and slots, its class's attributes."""

    def of(part: Any) -> Any:
        return fingerprint(part, seen, deep)

    if isinstance(value, _BASES):
        base = next(b for b in _BASES if isinstance(value, b))
        yield base.__repr__(value)
    elif isinstance(value, bytearray | memoryview | array.array):
        yield bytes(value), getattr(value, "typecode", "")
    elif isinstance(value, dict | types.MappingProxyType):
        yield tuple((of(k), of(v)) for k, v in value.items())
        yield of(getattr(value, "default_factory", None))
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        yield tuple(of(v) for v in value)
        yield getattr(value, "maxlen", None)
    elif isinstance(value, functools.partial):
        yield of(value.func), of(value.args), of(value.keywords)
    elif isinstance(value, property):
        yield of(value.fget)
    elif isinstance(value, staticmethod | classmethod | functools._lru_cache_wrapper):
        yield of(value.__wrapped__)
    elif isinstance(value, types.CellType):
        yield of(_contents(value))
    elif not hasattr(value, "__dict__") and not any("__slots__" in vars(c) for c in type(value).__mro__):
        yield _reduced(value, of)
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield tuple((k, of(v)) for k, v in attributes.items() if not _is_patch(v))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in _NO_STATE:
                yield name, of(_slot(kind, name, value))
    yield from _class(type(value), seen, deep)


def _class(kind: type, seen: Kept, deep: bool) -> Iterator[Any]:
    """Attributes of the user's classes."""
    for c in kind.__mro__:
        if is_users(c) and (-id(c), deep) not in seen:
            seen[-id(c), deep] = c
            for name, value in vars(c).items():
                if name not in _NO_STATE and not isinstance(value, types.MemberDescriptorType):
                    yield name, fingerprint(value, seen, deep)


def _slot(kind: type, name: str, value: Any) -> Any:
    if name.startswith("__") and not name.endswith("__"):
        name = f"_{kind.__name__.lstrip('_')}{name}"
    descriptor = vars(kind).get(name)
    try:
        return descriptor.__get__(value) if isinstance(descriptor, types.MemberDescriptorType) else None
    except AttributeError:
        return None


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _reduced(value: Any, of: Callable[[Any], Any]) -> Any:
    """The state of an object of a C type, as pickling describes it; else its id."""
    try:
        said = value.__reduce_ex__(2)
    except Exception:  # any type may refuse in its own way
        return id(value)
    if isinstance(said, str):
        return said
    return tuple(of(tuple(part) if i in (3, 4) and part is not None else part) for i, part in enumerate(said))


def _is_patch(value: Any) -> bool:
    """Whether a value is a rewritten forward, which replaces the original in a module during a trace."""
    return isinstance(value, types.MethodType) and "__cuvil__" in getattr(value.__func__, "__dict__", {})


def _function(function: types.FunctionType, seen: Kept, deep: bool) -> Any:
    """Its globals are read when it runs."""
    seen[id(function.__code__), deep] = function.__code__
    parts = (function.__defaults__, function.__kwdefaults__, captured(function))
    kept = {k: v for k, v in vars(function).items() if k != "__cuvil__"} if deep or of_user(function) else {}
    return "function", id(function.__code__), tuple(fingerprint(p, seen, deep) for p in (*parts, kept))


def _objects(array: np.ndarray[Any, Any], seen: Kept, deep: bool) -> Any:
    """Of an array of Python objects."""
    return tuple(fingerprint(v, seen, deep) for v in array.reshape(-1).tolist())


def _tensor(tensor: torch.Tensor) -> Any:
    """Shape, strides, dtype and values; what has no values on this processor: which tensor it is, and torch's count of
    its changes."""
    facts: tuple[Any, ...] = "tensor", tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad, type(tensor)
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        return (*facts, id(tensor), 0 if tensor.is_inference() else tensor._version)
    facts = *facts, tensor.stride()
    with _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return (*facts, digest(plain.view(torch.uint8).numpy()))


def digest(array: np.ndarray[Any, Any]) -> bytes:
    """A digest of an array's bytes. For many bytes a fast, non-cryptographic one: words are mixed, multiplied by random
    factors and summed. It distinguishes contents unless they are made to collide."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = flat[: flat.size // 8 * 8].view(np.uint64) if flat.size > _DIGESTED else np.zeros(0, np.uint64)
    rest = hashlib.blake2b(flat[words.size * 8 :].tobytes(), digest_size=16).digest()
    total, factors = 0, _factors()
    for start in range(0, words.size, factors.size):
        part = words[start : start + factors.size]
        # Odd factors can't tell an even number of changes of the highest bit: it goes into a lower one first.
        mixed = part ^ (part >> np.uint64(29))
        total = (total * _STEP + int(np.einsum("i,i", mixed, factors[: part.size]))) % (1 << 64)
    return total.to_bytes(8, "little") + rest


_STEP = 0x9E3779B97F4A7C15


@functools.cache
def _factors() -> np.ndarray[Any, Any]:
    random = np.random.default_rng().integers(0, 1 << 63, 1 << 14, dtype=np.uint64)
    return random * np.uint64(2) + np.uint64(1)

"""Calls, attributes and containers while a function is traced.

The user's functions are rewritten when they are called; NumPy's get arrays that use NumPy's dispatch; others run as
they are. What can't be compiled is refused with its line.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cuvil_hw.frontend.python import (
    hits,
    libraries,
    numpy_functions,  # noqa: F401  (gives arrays their functions)
)
from cuvil_hw.frontend.python.arrays import Array, constants
from cuvil_hw.frontend.python.builtin_calls import BUILTINS, as_number
from cuvil_hw.frontend.python.changes import MUTATING, change, container
from cuvil_hw.frontend.python.conditions import TRUE
from cuvil_hw.frontend.python.creation import MAKERS
from cuvil_hw.frontend.python.helpers import helper_function
from cuvil_hw.frontend.python.loops import loops
from cuvil_hw.frontend.python.number import Number, math_function
from cuvil_hw.frontend.python.outside import outside
from cuvil_hw.frontend.python.reads import GRADIENTS
from cuvil_hw.frontend.python.rewriting import converted, rewritten_loops
from cuvil_hw.frontend.python.source import Function, of_user
from cuvil_hw.frontend.python.trace import current, memory, refuse
from cuvil_hw.frontend.python.values import constant, holds_traced, item, listed, owned
from cuvil_hw.frontend.torch.conversions import keep_types

_DEPTH = 64  # calls of one function inside each other, each under a condition on tensors
_POW = math.pow  # torch.export puts a function of its own in its place while it traces
_depth: dict[types.CodeType, int] = {}
_VIEWS = frozenset([
    "view", "reshape", "t", "transpose", "permute", "squeeze", "unsqueeze", "expand", "expand_as", "flatten",
    "narrow", "select", "split", "chunk", "unbind", "diagonal", "view_as", "detach", "contiguous", "to",
    "float", "double", "half", "int", "long", "bool", "swapaxes", "movedim", "unflatten",
])  # fmt: skip
_VIEW_OR_COPY = frozenset(["reshape", "reshape_as", "contiguous", "flatten", "ravel", "to"])
_DATA_SHAPE = frozenset(["bincount"])
_MEMORY = frozenset(["storage_offset", "data_ptr", "untyped_storage", "_version"])
_STRIDES = frozenset(["stride", "is_contiguous"])


# Functions of NumPy that take arrays in a list.
_OF_SEQUENCES = frozenset([
    "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "block", "select", "choose",
    "multi_dot", "lexsort", "ix_", "broadcast_arrays", "meshgrid", "concat", "ones", "zeros", "empty", "einsum",
])  # fmt: skip


@helper_function
def call(f: Any, /, *args: Any, **kwargs: Any) -> Any:
    wrapped = getattr(f, "__cuvil_wrapped__", None)
    if wrapped is not None:
        return call(wrapped, *args, **kwargs)
    special = BUILTINS.get(f) if isinstance(f, types.BuiltinFunctionType | type) else None
    if special is not None:
        return special(*args, **kwargs)
    if isinstance(f, types.MethodType):
        if isinstance(f.__self__, torch.Tensor):
            return _torch(f, f.__name__, args, kwargs, f.__self__)
        if isinstance(f.__self__, Array | Number):
            return _array_method(f, args, kwargs)
        return call(f.__func__, f.__self__, *args, **kwargs) if isinstance(f.__func__, Function) else f(*args, **kwargs)
    if isinstance(f, functools.partial):
        return call(f.func, *f.args, *args, **{**f.keywords, **kwargs})
    if isinstance(f, Function):
        if f.__dict__.get("__cuvil__") or of_user(f):
            return _of_user(converted(f), args, kwargs)
    elif isinstance(f, torch.nn.Module):
        current().reads.used(f)
        with patched(f):
            return f(*args, **kwargs)
    elif isinstance(f, functools._lru_cache_wrapper):
        return call(f.__wrapped__, *args, **kwargs)
    elif not isinstance(f, type) and of_user(method := vars(type(f)).get("__call__")):
        return call(method, f, *args, **kwargs)
    return _library(f, args, kwargs)


def _of_user(f: Function, args: Any, kwargs: Any) -> Any:
    code = f.__code__
    _depth[code] = _depth.get(code, 0) + 1
    try:
        if _depth[code] > _DEPTH and current().mask != TRUE:
            refuse(f"recursion of {f.__name__}", "its end depends on tensors; write it as a while loop")
        return f(*args, **kwargs)
    finally:
        _depth[code] -= 1


@contextmanager
def patched(module: torch.nn.Module) -> Iterator[None]:
    """Inside this context, the forwards of a module and its submodules are rewritten, if they are the user's, and
    conversions that change nothing pass (`keep_types`)."""
    changed: list[tuple[torch.nn.Module, str]] = []
    for m in module.modules():
        kind = type(m)
        if "_apply" not in m.__dict__:
            keep_types(m)
            changed.append((m, "_apply"))
        if (of_user(kind.forward) or loops(kind.forward)) and "forward" not in m.__dict__:
            own = converted(kind.forward) if of_user(kind.forward) else rewritten_loops(kind.forward)
            m.__dict__["forward"] = types.MethodType(own, m)
            changed.append((m, "forward"))
        for tensor in (*m.parameters(recurse=False), *m.buffers(recurse=False)):
            if not constant(tensor):
                current().frozen[memory(tensor)] = f"a weight of {type(m).__name__}"
    try:
        yield
    finally:
        for m, name in changed:
            del m.__dict__[name]


def _library(f: Any, args: Any, kwargs: Any) -> Any:
    name = getattr(f, "__name__", type(f).__name__)
    libraries.check(f)
    owner = getattr(f, "__self__", None)
    current().reads.used([owner, *args, *kwargs.values()])
    if isinstance(owner, torch.Tensor):
        return _torch(f, name, args, kwargs, owner)
    if isinstance(owner, list | dict | set) or type(owner).__name__ == "deque":
        if name in MUTATING:
            container(owner, f".{name}()")
        return owned(f(*map(converted, args), **{k: converted(v) for k, v in kwargs.items()}))
    root = libraries.root(f)
    if root == "numpy":
        return current().reads.told(f, args, kwargs, _numpy(f, name, args, kwargs))
    if root == "math" and any(isinstance(a, torch.Tensor | Array | Number) for a in args):
        return _math(f, name, args)
    if root == "torch" or isinstance(f, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return current().reads.told(f, args, kwargs, _torch(f, name, args, kwargs, args[0] if args else None))
    if isinstance(owner, str) and holds_traced((args, kwargs)):
        refuse(f"str.{name}", "a text can't hold values that depend on tensors")
    result = f(*map(converted, args), **{k: converted(v) for k, v in kwargs.items()})
    if isinstance(f, type):
        current().reads.born(result)
    return owned(result)


def _torch(f: Any, name: str, args: Any, kwargs: Any, first: Any) -> Any:
    """A function of torch, or a method of a tensor."""
    bound = isinstance(getattr(f, "__self__", None), torch.Tensor)
    if name in ("from_numpy", "as_tensor", "asarray", "tensor") and args and not isinstance(args[0], torch.Tensor):
        return _to_tensor(f, name, args, kwargs)
    if name == "compile":
        refuse("torch.compile", "inside a compiled function; call the function itself")
    if name in _DATA_SHAPE:
        refuse(name, libraries.BOUNDED)
    if name in libraries.POSITIONS and isinstance(first, torch.Tensor) and (name != "where" or len(args) == 1 - bound):
        return hits.record(first, f(*args, **kwargs))
    if bound and name == "tolist":
        found = hits.of(f.__self__)
        return owned(listed(f.__self__)) if found is None else hits.Listed(found)
    if bound and name == "item":
        return item(f.__self__)
    if bound and name == "numpy":
        return Array(f.__self__)
    if kwargs.get("out") is not None:
        refuse(name, "out= isn't supported; assign the result")
    args, kwargs = tuple(map(converted, args)), {k: converted(v) for k, v in kwargs.items()}
    inplace = (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace") is True
    if inplace and isinstance(first, torch.Tensor):
        return change(first, lambda: f(*args, **kwargs), f"{name}()")
    result = hits.follow(first, name, f(*args, **kwargs))
    if isinstance(first, torch.Tensor) and isinstance(result, torch.Tensor) and name in _VIEW_OR_COPY:
        current().lay(first, result)
    if isinstance(first, torch.Tensor) and constant(first) and name in _VIEWS:
        for t in pytree.tree_leaves(result):
            if isinstance(t, torch.Tensor) and not constant(t):
                current().frozen[memory(t)] = "a tensor from outside of the function"
                current().keep.append(t)
    return result


def _to_tensor(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    value = args[0]
    if not holds_traced(value):
        return f(*args, **kwargs)
    if isinstance(value, Array) and name != "tensor":
        tensor = value.tensor
        value.alive[0] = False  # the tensor shares memory with the array and may be written to
    elif isinstance(value, Number):
        tensor = value.beside(None)
    elif isinstance(value, Array):
        tensor = value.tensor.clone()
    else:
        parts = [x if isinstance(x, torch.Tensor) else _to_tensor(torch.tensor, "tensor", (x,), {}) for x in value]
        tensor = torch.stack([p.to(functools.reduce(torch.promote_types, [q.dtype for q in parts])) for p in parts])
    dtype = kwargs.get("dtype", args[1] if len(args) > 1 else None)
    return tensor if dtype is None else tensor.to(dtype)


def _numpy(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    if isinstance(f, type) and issubclass(f, np.generic):
        if args and holds_traced(args):
            return Array(Array.of(args[0]).astype(f).tensor, scalar=True)
        return f(*args, **kwargs)
    if name in MAKERS and holds_traced((args, kwargs)):
        return MAKERS[name](*args, **kwargs)
    args, kwargs = tuple(map(converted, args)), {k: converted(v) for k, v in kwargs.items()}
    if name not in _OF_SEQUENCES:  # NumPy's dispatch doesn't look for arrays in lists
        count = 2 if isinstance(f, np.ufunc) else 1
        listed = [Array.of(x) if isinstance(x, list | tuple) and holds_traced(x) else x for x in args[:count]]
        args = (*listed, *args[count:])
    tensors = any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves((args, kwargs)))
    if not tensors:
        return constants(f(*args, **kwargs))
    plain = pytree.tree_map(lambda x: Array(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))
    result = constants(f(*plain[0], **plain[1]))
    # An element function of a tensor gives a tensor, as Tensor.__array_wrap__ does.
    return result.tensor if isinstance(f, np.ufunc) and isinstance(result, Array) else result


def _math(f: Any, name: str, args: Any) -> Any:
    first = as_number(args[0], float)
    return math_function(name, first, args[1:]) if isinstance(first, Number) else f(first, *args[1:])


def _array_method(f: Any, args: Any, kwargs: Any) -> Any:
    return hits.follow(f.__self__, f.__name__, f(*args, **kwargs))


@helper_function
def attribute(owner: Any, name: str) -> Any:
    """`owner.name`."""
    current().reads.attribute(owner, name)
    found = inspect.getattr_static(type(owner), name, None)
    if isinstance(found, property) and of_user(found.fget):
        current().reads.attribute(type(owner), name)
        return call(found.fget, owner)
    if isinstance(owner, torch.Tensor) and name in ("data", "grad"):
        refuse(f".{name}", "isn't supported in a compiled function")
    if isinstance(owner, torch.Tensor) and not constant(owner):
        if name in _MEMORY:
            refuse(f".{name}", "is about where a tensor lies in memory, which a compiled function can't know")
        if name in _STRIDES:
            current().depend_on_strides(owner, f".{name}")
        if name in GRADIENTS:
            current().reads.facts.add(name)
    value = _POW if owner is math and name == "pow" else getattr(owner, name)
    if isinstance(owner, torch.Tensor) and constant(owner) and isinstance(value, torch.Tensor) and not constant(value):
        current().frozen[memory(value)] = "a tensor from outside of the function"
        current().keep.append(value)
    if isinstance(value, list | dict | set) and not isinstance(owner, torch.Tensor | Array):
        current().outside.setdefault(id(value), (value, name))
    return outside(value, name)


@helper_function
def new(value: Any) -> Any:
    """Registers a list, dict or set that the function creates."""
    return owned(value)


@helper_function
def shown(value: Any) -> Any:
    """A value inside an f-string."""
    if isinstance(value, Array) and value.known is not None:
        return value.known
    if isinstance(value, Number | Array) or (isinstance(value, torch.Tensor) and not constant(value)):
        refuse("a text", "can't hold values that depend on tensors")
    return value

"""Calls, attributes and containers while a function is traced.

The user's functions are rewritten when they are called; NumPy's get arrays that use NumPy's dispatch; others run as
they are. What can't be compiled is refused with its line.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cuvil_hw.frontend.python import flow, hits, libraries
from cuvil_hw.frontend.python.arrays import Array, constants
from cuvil_hw.frontend.python.changes import MUTATING, change, container
from cuvil_hw.frontend.python.conditions import TRUE
from cuvil_hw.frontend.python.creation import MAKERS
from cuvil_hw.frontend.python.modules import loops, rewritten_loops
from cuvil_hw.frontend.python.number import Number, math_function, number
from cuvil_hw.frontend.python.outside import outside
from cuvil_hw.frontend.python.rewrite import rewritten
from cuvil_hw.frontend.python.source import Function, of_user, read, rebuilt
from cuvil_hw.frontend.python.trace import current, memory, refuse
from cuvil_hw.frontend.python.values import Cond, constant, truth
from cuvil_hw.frontend.torch.conversions import keep_types

_DEPTH = 64  # calls of one function inside each other, each under a condition on tensors
_POW = math.pow  # torch.export puts a function of its own in its place while it traces
_depth: dict[types.CodeType, int] = {}
_VIEWS = frozenset([
    "view", "reshape", "t", "transpose", "permute", "squeeze", "unsqueeze", "expand", "expand_as", "flatten",
    "narrow", "select", "split", "chunk", "unbind", "diagonal", "view_as", "detach", "contiguous", "to",
    "float", "double", "half", "int", "long", "bool", "swapaxes", "movedim", "unflatten",
])  # fmt: skip
_DATA_SHAPE = frozenset(["unique", "unique_consecutive", "tolist", "bincount"])


# Functions of NumPy that take arrays in a list.
_OF_SEQUENCES = frozenset([
    "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "block", "select", "choose",
    "multi_dot", "lexsort", "ix_", "broadcast_arrays", "meshgrid", "concat", "ones", "zeros", "empty", "einsum",
])  # fmt: skip


def made(function: Any, name: str = "<lambda>") -> Any:
    """Mark a function that belongs to rewritten code, so that it isn't rewritten again."""
    if isinstance(function, Function):
        function.__name__ = name
        function.__dict__["__cuvil__"] = True
    return function


def converted(function: Any) -> Any:
    """The rewritten form of a user's function; anything else unchanged."""
    wrapped = getattr(function, "__cuvil_wrapped__", None)
    if wrapped is not None:
        return converted(wrapped)
    if isinstance(function, types.MethodType):
        inner = converted(function.__func__)
        return function if inner is function.__func__ else types.MethodType(inner, function.__self__)
    if isinstance(function, functools.partial):
        return functools.partial(call, function.func, *function.args, **function.keywords)
    if not of_user(function) or function.__dict__.get("__cuvil__"):
        return function
    return made_of(function)


def made_of(function: Function) -> Any:
    """The rewritten form of any function, the user's or not."""
    from cuvil_hw.frontend.python import helpers

    current().reads.function(function)
    source = read(function)
    return made(rebuilt(function, source, rewritten(source.node), helpers), function.__name__)


def call(f: Any, /, *args: Any, **kwargs: Any) -> Any:
    wrapped = getattr(f, "__cuvil_wrapped__", None)
    if wrapped is not None:
        return call(wrapped, *args, **kwargs)
    special = _SPECIAL.get(f) if isinstance(f, types.BuiltinFunctionType | type) else None
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
        return _owned(f(*map(converted, args), **{k: converted(v) for k, v in kwargs.items()}))
    root = libraries.root(f)
    if root == "numpy":
        return _numpy(f, name, args, kwargs)
    if root == "math" and any(isinstance(a, torch.Tensor | Array | Number) for a in args):
        return _math(f, name, args)
    if root == "torch" or isinstance(f, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return _torch(f, name, args, kwargs, args[0] if args else None)
    if isinstance(owner, str) and _traced((args, kwargs)):
        refuse(f"str.{name}", "a text can't hold values that depend on tensors")
    result = f(*map(converted, args), **{k: converted(v) for k, v in kwargs.items()})
    if isinstance(f, type):
        current().reads.born(result)
    return _owned(result)


def _owned(value: Any) -> Any:
    if isinstance(value, list | dict | set):
        current().owned.setdefault(id(value), (value, current().mask))
    return value


def _traced(values: Any) -> bool:
    return any(isinstance(x, torch.Tensor | Array | Number) for x in pytree.tree_leaves(values))


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
    if bound and name == "item":
        return _item(f.__self__)
    if bound and name == "numpy":
        return Array(f.__self__)
    if kwargs.get("out") is not None:
        refuse(name, "out= isn't supported; assign the result")
    args, kwargs = tuple(map(converted, args)), {k: converted(v) for k, v in kwargs.items()}
    inplace = (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace") is True
    if inplace and isinstance(first, torch.Tensor):
        return change(first, lambda: f(*args, **kwargs), f"{name}()")
    result = hits.follow(first, name, f(*args, **kwargs))
    if isinstance(first, torch.Tensor) and constant(first) and name in _VIEWS:
        for t in pytree.tree_leaves(result):
            if isinstance(t, torch.Tensor) and not constant(t):
                current().frozen[memory(t)] = "a tensor from outside of the function"
                current().keep.append(t)
    return result


def _item(tensor: torch.Tensor) -> Any:
    if constant(tensor):
        return tensor.item()
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    kind: type = bool if tensor.dtype == torch.bool else float if tensor.is_floating_point() else int
    return number(Number(tensor.reshape(()), float), kind) if kind is float else _whole(tensor.reshape(()), kind)


def _whole(tensor: torch.Tensor, kind: type) -> Number:
    return Number(tensor if kind is bool else tensor.to(torch.int64), kind)


def _to_tensor(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    value = args[0]
    if not _traced(value):
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
        if args and _traced(args):
            return Array(Array.of(args[0]).astype(f).tensor, scalar=True)
        return f(*args, **kwargs)
    if name in MAKERS and _traced((args, kwargs)):
        return MAKERS[name](*args, **kwargs)
    args, kwargs = tuple(map(converted, args)), {k: converted(v) for k, v in kwargs.items()}
    if name not in _OF_SEQUENCES:  # NumPy's dispatch doesn't look for arrays in lists
        count = 2 if isinstance(f, np.ufunc) else 1
        listed = [Array.of(x) if isinstance(x, list | tuple) and _traced(x) else x for x in args[:count]]
        args = (*listed, *args[count:])
    tensors = any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves((args, kwargs)))
    if not tensors:
        return constants(f(*args, **kwargs))
    plain = pytree.tree_map(lambda x: Array(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))
    result = constants(f(*plain[0], **plain[1]))
    # An element function of a tensor gives a tensor, as Tensor.__array_wrap__ does.
    return result.tensor if isinstance(f, np.ufunc) and isinstance(result, Array) else result


def _math(f: Any, name: str, args: Any) -> Any:
    first = _as_number(args[0], float)
    return math_function(name, first, args[1:]) if isinstance(first, Number) else f(first, *args[1:])


def _array_method(f: Any, args: Any, kwargs: Any) -> Any:
    return hits.follow(f.__self__, f.__name__, f(*args, **kwargs))


def _as_number(value: Any, kind: type) -> Any:
    """int() or float() of a traced value."""
    if isinstance(value, Array):
        value = value.item()
    elif isinstance(value, torch.Tensor):
        value = _item(value)
    if not isinstance(value, Number):
        return kind(value)
    if kind is bool:
        return flow.as_value(Cond(truth(value)))
    if kind is int and value.kind is float:
        return Number(torch.trunc(value.tensor).to(torch.int64), int)
    return number(value, kind)


def _range(*args: Any) -> Any:
    plain = [_as_number(a, int) if isinstance(a, torch.Tensor | Array | Number) else a for a in args]
    if not any(isinstance(a, Number) for a in plain):
        return range(*plain)
    start, stop = plain[0] if len(plain) > 1 else 0, plain[min(len(plain), 2) - 1]
    step = plain[2] if len(plain) > 2 else 1
    if isinstance(step, Number):
        refuse("range", "its step is read from a tensor")
    return flow.TracedRange(start, stop, step)


def _extreme(better: Callable[[Any, Any], Any], name: str) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        values = list(args[0]) if len(args) == 1 else list(args)
        if kwargs or not _traced(values):
            if _traced(values):
                refuse(name, "with key= or default= of values that depend on tensors; use torch's or NumPy's function")
            return getattr(builtins, name)(*args, **{k: converted(v) for k, v in kwargs.items()})
        best = values[0]
        for value in values[1:]:
            pair = (value, best)
            best = flow.choose(better(value, best), lambda pair=pair: pair[0], lambda pair=pair: pair[1])  # type: ignore
        return best

    return apply


def _any(values: Any) -> Any:
    return flow.as_value(flow.any_of(*(lambda v=v: v for v in list(values))))


def _all(values: Any) -> Any:
    return flow.as_value(flow.all_of(*(lambda v=v: v for v in list(values))))


def _sorted(values: Any, /, **kwargs: Any) -> Any:
    values = list(values)
    if _traced(values) and "key" not in kwargs:
        refuse("sorted", "orders values that depend on tensors; use torch.sort or np.sort")
    return _owned(sorted(values, **{k: converted(v) for k, v in kwargs.items()}))


def _filter(function: Any, values: Any) -> Any:
    return iter([v for v in values if flow.static(v if function is None else call(function, v))])


def _map(function: Any, *values: Any) -> Any:
    return iter([call(function, *v) for v in zip(*values, strict=False)])


def _isinstance(value: Any, kinds: Any) -> bool:
    return any(issubclass(_type(value), k) for k in (kinds if isinstance(kinds, tuple) else (kinds,)))


def _type(value: Any, *rest: Any) -> Any:
    if isinstance(value, Array):
        return value.dtype.type if value.scalar else np.ndarray
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        return torch.Tensor
    return value.kind if isinstance(value, Number) else type(value)


def _container(kind: type) -> Callable[..., Any]:
    return lambda *args, **kwargs: _owned(kind(*args, **kwargs))


def _text(kind: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: kind(*map(shown, args), **kwargs)


def _refused(name: str, reason: str) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        refuse(name, reason)

    return apply


def _round(value: Any, digits: Any = None) -> Any:
    if isinstance(value, Array):
        return value.round(digits) if digits is not None else _as_number(value.round(), int)
    if isinstance(value, torch.Tensor):
        return torch.round(value) if digits is None else torch.round(value, decimals=digits)
    if not isinstance(value, Number):
        return round(value) if digits is None else round(value, digits)
    if digits is not None:
        refuse("round", "to digits, of a number read from a tensor; use torch.round")
    return Number(torch.round(number(value, float).tensor).to(torch.int64), int)


_SPECIAL: dict[Any, Callable[..., Any]] = {
    range: _range,
    int: lambda *a, **k: _as_number(a[0], int) if a and _traced(a[0]) else int(*a, **k),
    float: lambda *a: _as_number(a[0], float) if a and _traced(a[0]) else float(*a),
    bool: lambda *a: flow.as_value(Cond(truth(a[0]))) if a else False,
    max: _extreme(lambda a, b: a > b, "max"),
    min: _extreme(lambda a, b: a < b, "min"),
    any: _any,
    all: _all,
    sorted: _sorted,
    filter: _filter,
    map: _map,
    round: _round,
    isinstance: _isinstance,
    type: _type,
    list: _container(list),
    dict: _container(dict),
    set: _container(set),
    str: _text(str),
    repr: _text(repr),
    format: _text(format),
    getattr: lambda o, n, *d: attribute(o, n) if _has(o, n) or not d else d[0],
    hasattr: lambda o, n: _has(o, n),
    setattr: _refused("setattr", "a compiled function can't change attributes; return the new value"),
    print: _refused("print", "a compiled program can't print; return the value"),
    open: _refused("open", "a compiled program can't read or write files; pass the data as an argument"),
    input: _refused("input", "a compiled program can't ask; pass the value as an argument"),
    eval: _refused("eval", "code in a text can't be compiled"),
    exec: _refused("exec", "code in a text can't be compiled"),
}


def _has(owner: Any, name: str) -> bool:
    current().reads.attribute(owner, name)
    return hasattr(owner, name)


def attribute(owner: Any, name: str) -> Any:
    """`owner.name`."""
    current().reads.attribute(owner, name)
    found = inspect.getattr_static(type(owner), name, None)
    if isinstance(found, property) and of_user(found.fget):
        current().reads.attribute(type(owner), name)
        return call(found.fget, owner)
    if isinstance(owner, torch.Tensor) and name in ("data", "grad"):
        refuse(f".{name}", "isn't supported in a compiled function")
    value = _POW if owner is math and name == "pow" else getattr(owner, name)
    if isinstance(owner, torch.Tensor) and constant(owner) and isinstance(value, torch.Tensor) and not constant(value):
        current().frozen[memory(value)] = "a tensor from outside of the function"
        current().keep.append(value)
    if isinstance(value, list | dict | set) and not isinstance(owner, torch.Tensor | Array):
        current().outside.setdefault(id(value), (value, name))
    return outside(value, name)


def new(value: Any) -> Any:
    """Registers a list, dict or set that the function creates."""
    return _owned(value)


def shown(value: Any) -> Any:
    """A value inside an f-string."""
    if isinstance(value, Array) and value.known is not None:
        return value.known
    if isinstance(value, Number | Array) or (isinstance(value, torch.Tensor) and not constant(value)):
        refuse("a text", "can't hold values that depend on tensors")
    return value

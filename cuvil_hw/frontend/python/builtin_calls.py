"""Python's own functions (`range`, `max`, `isinstance`, …) on values that depend on tensors."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cuvil_hw.frontend.python import flow, hits
from cuvil_hw.frontend.python.arrays import Array
from cuvil_hw.frontend.python.helpers import helpers
from cuvil_hw.frontend.python.number import Number, number
from cuvil_hw.frontend.python.rewriting import converted
from cuvil_hw.frontend.python.trace import current, refuse
from cuvil_hw.frontend.python.values import Cond, holds_traced, item, owned, truth


def as_number(value: Any, kind: type) -> Any:
    """int() or float() of a traced value."""
    if isinstance(value, Array):
        value = value.item()
    elif isinstance(value, torch.Tensor):
        value = item(value)
    if not isinstance(value, Number):
        return kind(value)
    if kind is bool:
        return flow.as_value(Cond(truth(value)))
    if kind is int and value.kind is float:
        return Number(torch.trunc(value.tensor).to(torch.int64), int)
    return number(value, kind)


def _range(*args: Any) -> Any:
    plain = [as_number(a, int) if isinstance(a, torch.Tensor | Array | Number) else a for a in args]
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
        if kwargs or not holds_traced(values):
            if holds_traced(values):
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
    if holds_traced(values) and "key" not in kwargs:
        refuse("sorted", "orders values that depend on tensors; use torch.sort or np.sort")
    return owned(sorted(values, **{k: converted(v) for k, v in kwargs.items()}))


def _filter(function: Any, values: Any) -> Any:
    return iter([v for v in values if flow.static(v if function is None else helpers.call(function, v))])


def _map(function: Any, *values: Any) -> Any:
    return iter([helpers.call(function, *v) for v in zip(*values, strict=False)])


def _isinstance(value: Any, kinds: Any) -> bool:
    return any(issubclass(_type(value), k) for k in (kinds if isinstance(kinds, tuple) else (kinds,)))


def _type(value: Any, *rest: Any) -> Any:
    if isinstance(value, Array):
        return value.dtype.type if value.scalar else np.ndarray
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        return torch.Tensor
    return value.kind if isinstance(value, Number) else type(value)


def _container(kind: type) -> Callable[..., Any]:
    return lambda *args, **kwargs: owned(kind(*args, **kwargs))


def _text(kind: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: kind(*map(helpers.shown, args), **kwargs)


def _refused(name: str, reason: str) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        refuse(name, reason)

    return apply


def _round(value: Any, digits: Any = None) -> Any:
    if isinstance(value, Array):
        return value.round(digits) if digits is not None else as_number(value.round(), int)
    if isinstance(value, torch.Tensor):
        return torch.round(value) if digits is None else torch.round(value, decimals=digits)
    if not isinstance(value, Number):
        return round(value) if digits is None else round(value, digits)
    if digits is not None:
        refuse("round", "to digits, of a number read from a tensor; use torch.round")
    return Number(torch.round(number(value, float).tensor).to(torch.int64), int)


BUILTINS: dict[Any, Callable[..., Any]] = {
    range: _range,
    int: lambda *a, **k: as_number(a[0], int) if a and holds_traced(a[0]) else int(*a, **k),
    float: lambda *a: as_number(a[0], float) if a and holds_traced(a[0]) else float(*a),
    bool: lambda *a: flow.as_value(Cond(truth(a[0]))) if a else False,
    max: _extreme(lambda a, b: a > b, "max"),
    min: _extreme(lambda a, b: a < b, "min"),
    any: _any,
    all: _all,
    sorted: _sorted,
    filter: _filter,
    map: _map,
    zip: lambda *a, strict=False: hits.beside(lambda: zip(*a, strict=strict), *a),
    enumerate: lambda v, start=0: hits.beside(lambda: enumerate(v, start), itertools.count(start), v),
    len: lambda x: x.shape[0] if isinstance(x, torch.Tensor) and x.ndim else len(x),
    round: _round,
    isinstance: _isinstance,
    type: _type,
    list: _container(list),
    dict: _container(dict),
    set: _container(set),
    str: _text(str),
    repr: _text(repr),
    format: _text(format),
    getattr: lambda o, n, *d: helpers.attribute(o, n) if _has(o, n) or not d else d[0],
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

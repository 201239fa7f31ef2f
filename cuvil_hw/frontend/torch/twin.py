"""A module's twin: modules of its own that hold the same parameters and buffers, for traces that must leave the
user's module alone."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch

_SHARED = ("_parameters", "_buffers")
_HOOKED = "_output_capturing_hooks_installed"


def twin_of(module: torch.nn.Module, kind: type[Any] | None = None) -> Any:
    """A copy of `module`, as an instance of `kind`, and of every module in it. Flags, hooks and plain attributes are
    its own, the dicts of parameters and buffers those of the originals, so that replaced weights are seen, too.

    What transformers records outputs through (hidden states, attentions) is installed in it: it does that under a lock
    when they are first asked for, which no trace can follow, and would do it in the user's model."""
    made: dict[int, Any] = {}
    for m in module.modules():
        made[id(m)] = m if isinstance(m, torch.jit.ScriptModule) else object.__new__(type(m))
    for m in module.modules():
        if made[id(m)] is not m:
            _fill(made[id(m)], m, made)
    result = made[id(module)]
    if kind is not None:
        result.__class__ = kind
    _prepare_capture(result)
    return result


def _fill(copy: torch.nn.Module, m: torch.nn.Module, made: Mapping[int, Any]) -> None:
    for name, value in vars(m).items():
        if name == "_modules":
            value = {n: made.get(id(c)) for n, c in value.items()}
        elif name.endswith("_hooks") and isinstance(value, dict):
            value = value.copy()
        elif name not in _SHARED:
            value = _moved(value, made)
        vars(copy)[name] = value


def _moved(value: Any, made: Mapping[int, Any], depth: int = 4) -> Any:
    """A plain attribute; where it refers to modules of the tree, to their twins."""
    if isinstance(value, torch.nn.Module):
        return made.get(id(value), value)
    if isinstance(value, MethodType) and id(value.__self__) in made:
        return MethodType(value.__func__, made[id(value.__self__)])
    if depth and type(value) in (list, tuple, dict):
        parts = list(value.values()) if isinstance(value, dict) else list(value)
        moved = [_moved(p, made, depth - 1) for p in parts]
        if all(map(operator.is_, parts, moved)):
            return value
        return dict(zip(value, moved, strict=True)) if isinstance(value, dict) else type(value)(moved)
    return value


def _prepare_capture(module: torch.nn.Module) -> None:
    """Hooks for recording, in every model inside that takes part; they do nothing until outputs are asked for. Those
    that are there stay as they are: transformers itself would install them again with those of a model around."""
    capturing: Any = sys.modules.get("transformers.utils.output_capturing")
    if capturing is None:
        return
    if not isinstance(capturing._active_collector, _Collectors):
        capturing._active_collector = _Collectors(capturing._active_collector)
    for model in module.modules():
        takes_part = hasattr(model, "_can_record_outputs") and _records(type(model), str(capturing.__file__))
        if takes_part and not getattr(model, _HOOKED, False):
            with _hooks_kept(model):
                capturing.maybe_install_capturing_hooks(model)


class _Collectors:
    """What models of transformers put collectors of outputs into, one inside another also in a trace: transformers' own
    there keeps one, forgets it when the model inside ends, and asks a ContextVar, which no trace can follow. Outside of
    traces `original` does the work."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.traced: list[Any] = []

    def get(self) -> Any:
        if self.traced:
            return self.traced[-1]
        return None if torch.compiler.is_compiling() else self.original.get()

    def set(self, value: Any) -> Any:
        if self.traced or torch.compiler.is_compiling():
            self.traced.append(value)
            return None
        return self.original.set(value)

    def reset(self, token: Any) -> None:
        if token is None and self.traced:
            self.traced.pop()
        else:
            self.original.reset(token)


def _records(kind: type[Any], file: str) -> bool:
    """Whether a method of the class asks for recorded outputs: the decorator that does it is a function of `file`."""
    return any(
        any(f.__code__.co_filename == file for f in _unwrapped(method))
        for base in kind.__mro__
        for method in vars(base).values()
        if callable(method)
    )


def _unwrapped(method: Any) -> Iterator[Any]:
    seen = 0
    while method is not None and seen < 16:
        if hasattr(method, "__code__"):
            yield method
        method, seen = getattr(method, "__wrapped__", None), seen + 1


@contextmanager
def _hooks_kept(model: torch.nn.Module) -> Iterator[None]:
    """Models inside that have their hooks already keep exactly those."""
    inside = [m for top in model.modules() if top is not model and getattr(top, _HOOKED, False) for m in top.modules()]
    before = [(m, m._forward_hooks.copy()) for m in inside]
    try:
        yield
    finally:
        for m, hooks in before:
            m._forward_hooks = hooks


__all__ = ["twin_of"]

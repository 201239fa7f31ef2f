"""Plain attributes that a forward changes: torch.export would take what they were while tracing for ever.

A cache of what each call would compute anyway does no harm; state does, and has to be a buffer. Which it is, two calls
of a copy tell.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from cuvil_hw.contract.signature import Scalar
from cuvil_hw.errors import CuvilError

_OWN = frozenset(vars(torch.nn.Module()))
_ABSENT = object()


@dataclass(frozen=True)
class _Kept:
    """One attribute: its value, and what the containers in it held."""

    module: torch.nn.Module
    path: str
    name: str
    value: Any
    contents: tuple[tuple[Any, Any], ...]


@contextmanager
def attributes_kept(module: torch.nn.Module) -> Iterator[list[str]]:
    """Whatever happens meanwhile, attributes are afterwards what they were; the list names those that a forward
    changed.

    They are looked at when the forward ends: torch.export puts some of them back, and copies of others."""
    before, changed = _snapshot(module), list[str]()

    def look(*call: Any) -> None:
        changed.extend(name for name in _changes(module, before) if name not in changed)

    hook = module.register_forward_hook(look)
    try:
        yield changed
    finally:
        hook.remove()
        _restore(module, before)


def refuse_hidden_state(
    module: torch.nn.Module, args: tuple[Any, ...], named: dict[str, Any], changed: list[str]
) -> None:
    """Raises CuvilError when the attributes `changed` make the second call differ from the first."""
    if not changed:
        return
    names = ", ".join(changed)
    with torch.no_grad():
        try:
            twin = copy.deepcopy(module)
            buffers = {name: b.clone() for name, b in twin.named_buffers()}
            calls = [_result(twin, args, named, buffers) for _ in range(2)]
        except Exception as e:  # the user's code, on made-up numbers
            raise CuvilError(
                f"the forward of {type(module).__name__} changes {names}, and whether that is state can't be found out "
                f"({type(e).__name__}: {e}); keep state in buffers (register_buffer)"
            ) from e
    if not _equal(*calls):
        raise CuvilError(
            f"the forward of {type(module).__name__} changes {names}, and later calls depend on it; a program keeps "
            "state only in buffers: register_buffer, and write into the buffer"
        )


def _result(module: torch.nn.Module, args: Any, named: Any, buffers: Mapping[str, torch.Tensor]) -> list[Any]:
    """Of a call on numbers that aren't all equal, buffers being what they were."""
    draw = torch.Generator().manual_seed(0)

    def varied(v: Any) -> Any:
        floats = isinstance(v, torch.Tensor) and v.is_floating_point()
        return torch.rand(v.shape, generator=draw).to(v.dtype) if floats else copy.deepcopy(v)

    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    given, named = pytree.tree_map(varied, (args, named))
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in pytree.tree_leaves(module(*given, **named))]


def _equal(first: list[Any], second: list[Any]) -> bool:
    if len(first) != len(second):
        return False
    for a, b in zip(first, second, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or not torch.equal(a.nan_to_num(), b.nan_to_num()):
                return False
        elif isinstance(a, Scalar) and a != b:
            return False
    return True


def _snapshot(module: torch.nn.Module) -> list[_Kept]:
    return [
        _Kept(m, path, name, value, tuple(_contents(value)))
        for path, m in module.named_modules()
        if not isinstance(m, torch.fx.GraphModule)
        for name, value in vars(m).items()
        if name not in _OWN
    ]


def _contents(value: Any, depth: int = 4) -> Iterator[tuple[Any, Any]]:
    if depth and isinstance(value, list | dict | set):
        yield value, copy.copy(value)
    if depth and isinstance(value, list | dict | set | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _contents(part, depth - 1)


def _changes(module: torch.nn.Module, before: list[_Kept]) -> Iterator[str]:
    for kept in before:
        now = vars(kept.module).get(kept.name, _ABSENT)
        if not _same(now, kept.value) or not all(_alike(*pair) for pair in kept.contents):
            yield _shown(kept.path, kept.name)
    for path, _, name in _added(module, before):
        yield _shown(path, name)


def _restore(module: torch.nn.Module, before: list[_Kept]) -> None:
    for kept in before:
        vars(kept.module)[kept.name] = kept.value
        for container, content in kept.contents:
            if not _alike(container, content):
                container.clear()
                container.extend(content) if isinstance(container, list) else container.update(content)
    for _, m, name in list(_added(module, before)):
        del vars(m)[name]


def _added(module: torch.nn.Module, before: list[_Kept]) -> Iterator[tuple[str, torch.nn.Module, str]]:
    known = {(id(k.module), k.name) for k in before}
    for path, m in module.named_modules():
        if not isinstance(m, torch.fx.GraphModule):
            for name in vars(m):
                if name not in _OWN and (id(m), name) not in known:
                    yield path, m, name


def _shown(path: str, name: str) -> str:
    return ".".join(["self", *([path] if path else []), name])


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, Scalar) and bool(a == b or a != a))


def _alike(container: Any, content: Any) -> bool:
    if len(container) != len(content):
        return False
    if isinstance(container, dict):
        return all(k in content and _same(v, content[k]) for k, v in container.items())
    if isinstance(container, set):
        return bool(container == content)
    return all(_same(a, b) for a, b in zip(container, content, strict=True))

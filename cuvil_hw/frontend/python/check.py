"""Finds everything that can't be compiled in a function and the functions that it names, before anything runs."""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cuvil_hw.errors import CuvilError, Refusal, Unsupported
from cuvil_hw.frontend.python import libraries
from cuvil_hw.frontend.python.changes import MUTATING
from cuvil_hw.frontend.python.matching import refusal
from cuvil_hw.frontend.python.source import Definition, Function, captured, of_user, read
from cuvil_hw.frontend.python.syntax import assigned

_Found = tuple[str, int, str, str]  # file, line, what, reason

_NODES: dict[type[ast.AST], tuple[str, str]] = {
    ast.Yield: ("yield", "a compiled function gives all its results at once; return a list or a tuple"),
    ast.YieldFrom: ("yield from", "a compiled function gives all its results at once; return a list or a tuple"),
    ast.Await: ("await", "a compiled function can't wait; do it outside of the function"),
    ast.AsyncFunctionDef: ("async def", "a compiled function can't wait; write a plain def"),
    ast.AsyncFor: ("async for", "a compiled function can't wait; write a plain for"),
    ast.AsyncWith: ("async with", "a compiled function can't wait; write a plain with"),
    ast.Global: ("global", "a compiled function can't change global variables; return the new value"),
    ast.Nonlocal: ("nonlocal", "a compiled function can't change variables around it; return the new value"),
    ast.TryStar: ("except*", "isn't compiled; write it with except"),
    ast.ClassDef: ("class", "a class can't be defined in a compiled function; define it outside"),
}


def check(function: Function) -> None:
    """Raises Unsupported with every refusal, by file and line; CuvilError when a source can't be read."""
    found: dict[_Found, None] = {}
    _function(function, found, set(), True)
    if found:
        ordered = sorted(found)
        refusals = [Refusal(what, reason, where=(f"{Path(file).name}:{line}",)) for file, line, what, reason in ordered]
        raise Unsupported(refusals, f"function {function.__qualname__}")


def _function(function: Function, found: dict[_Found, None], seen: set[types.CodeType], first: bool = False) -> None:
    if function.__code__ in seen:
        return
    seen.add(function.__code__)
    try:
        source = read(function)
    except CuvilError:
        if first:
            raise
        return  # said when it is called, if it is
    scope = {**vars(builtins), **function.__globals__, **captured(function)}
    _definition(source.node, source.file, scope, found, seen)


def _definition(
    node: Definition, file: str, scope: dict[str, Any], found: dict[_Found, None], seen: set[types.CodeType]
) -> None:
    if isinstance(node, ast.AsyncFunctionDef):
        found[(file, node.lineno, *_NODES[ast.AsyncFunctionDef])] = None
    body: list[ast.stmt] = node.body if isinstance(node.body, list) else [ast.Expr(node.body)]
    local = set(assigned(body)) | {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    for n in _inside(body):
        if isinstance(n, ast.Lambda | ast.FunctionDef) and n is not node:
            local |= {a.arg for a in ast.walk(n.args) if isinstance(a, ast.arg)}
            local |= set(assigned(n.body)) if isinstance(n, ast.FunctionDef) else set()
        if isinstance(n, ast.comprehension):
            local |= {t.id for t in ast.walk(n.target) if isinstance(t, ast.Name)}
    for n in _inside(body):
        for what, reason in _refusals(n):
            found[(file, n.lineno, what, reason)] = None  # type: ignore[attr-defined]
        if isinstance(n, ast.Attribute | ast.Name) and isinstance(n.ctx, ast.Load):
            target = _resolve(n, scope, local)
            if isinstance(target, types.MethodType):
                target = target.__func__
            target = getattr(target, "__cuvil_wrapped__", target)
            if of_user(target):
                _function(target, found, seen)
        changed = _captured_change(n, scope, local)
        if changed is not None:
            found[(file, n.lineno, *changed)] = None  # type: ignore[attr-defined]
        if isinstance(n, ast.Call):
            target = _resolve(n.func, scope, local)
            why = libraries.reason(target) if target is not _UNKNOWN and callable(target) else None
            if why is not None:
                found[(file, n.lineno, ast.unparse(n.func), why)] = None


def _inside(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def _refusals(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What is wrong with a syntax node independently of values."""
    kind = type(node)
    if kind in _NODES:
        yield _NODES[kind]
    if isinstance(node, ast.pattern) and (why := refusal(node)):
        yield "match", why
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.comprehension):
        targets = [node.target]
    for target in targets:
        for part in _flat(target):
            if isinstance(part, ast.Attribute):
                yield (
                    f"{ast.unparse(part)} = …",
                    "a compiled function can't change attributes of objects; return the new value",
                )
    if isinstance(node, ast.For) and any(isinstance(p, ast.Subscript) for p in _flat(node.target)):
        yield ("for x[i] in …", "assign the item to a variable first")
    lazy: list[ast.expr] = []
    if isinstance(node, ast.BoolOp):
        lazy = node.values
    elif isinstance(node, ast.IfExp):
        lazy = [node.body, node.orelse]
    elif isinstance(node, ast.Compare) and len(node.ops) > 1:
        lazy = node.comparators
    if any(isinstance(n, ast.NamedExpr) for part in lazy for n in ast.walk(part)):
        yield (":=", "inside and, or, a chained comparison or a conditional expression; assign before")
    if isinstance(node, ast.comprehension) and node.is_async:
        yield ("async for", "a compiled function can't wait; write a plain for")


def _captured_change(node: ast.AST, scope: dict[str, Any], local: set[str]) -> tuple[str, str] | None:
    """An in-place change of an object in a global or in a variable of an enclosing scope."""
    owners: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        owners = [p.value for t in node.targets for p in _flat(t) if isinstance(p, ast.Subscript)]
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        owners = [node.target.value]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING:
        owners = [node.func.value]
    for owner in owners:
        value = _resolve(owner, scope, local)
        if value is not _UNKNOWN and not isinstance(value, types.ModuleType | type | types.FunctionType):
            return ast.unparse(node).splitlines()[0], _CHANGES
    return None


_CHANGES = "changes what is from outside of the function; copy it first, or return what should change"


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _flat(part)
    elif isinstance(target, ast.Starred):
        yield from _flat(target.value)
    else:
        yield target


_UNKNOWN = object()


def _resolve(node: ast.expr, scope: dict[str, Any], local: set[str]) -> Any:
    """The object that a name or a chain of attributes of modules means, if it is fixed."""
    if isinstance(node, ast.Name):
        return _UNKNOWN if node.id in local else scope.get(node.id, _UNKNOWN)
    if isinstance(node, ast.Attribute):
        owner = _resolve(node.value, scope, local)
        if isinstance(owner, types.ModuleType):
            return getattr(owner, node.attr, _UNKNOWN)
        if owner is not _UNKNOWN and isinstance(owner, type):
            return getattr(owner, node.attr, _UNKNOWN)
    return _UNKNOWN

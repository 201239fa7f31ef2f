"""Functions that loop over positions that nonzero found; see `hits`."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from typing import Any

from cuvil_hw.errors import CuvilError
from cuvil_hw.frontend.python.source import Function, read

_FINDS = frozenset(["nonzero", "argwhere"])


def loops(function: Any) -> bool:
    """Whether a function, or one that it wraps, loops over what nonzero found."""
    return any(has_loop(f) for f in _within(function))


def _within(function: Any, depth: int = 3) -> Iterator[Function]:
    if isinstance(function, Function):
        yield function
        for cell in function.__closure__ or () if depth else ():
            yield from _within(content(cell), depth - 1)


def content(cell: types.CellType) -> Any:
    """What a cell of a closure holds; None for an empty one."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


_found: dict[types.CodeType, bool] = {}


def has_loop(function: Function) -> bool:
    """Whether the function itself has such a loop."""
    code = function.__code__
    if code not in _found:
        _found[code] = bool(_FINDS & set(code.co_names)) and _loops_over_positions(function)
    return _found[code]


def _loops_over_positions(function: Function) -> bool:
    try:
        node = read(function).node
    except CuvilError:
        return False
    names = {
        target.id
        for s in ast.walk(node)
        if isinstance(s, ast.Assign) and _finds(s.value)
        for target in s.targets
        if isinstance(target, ast.Name)
    }
    iterated = [s.iter for s in ast.walk(node) if isinstance(s, ast.For)]
    return any(_finds(i) or (isinstance(i, ast.Name) and i.id in names) for i in iterated)


def _finds(value: ast.expr) -> bool:
    calls = [n.func for n in ast.walk(value) if isinstance(n, ast.Call)]
    return any(isinstance(f, ast.Attribute) and f.attr in _FINDS for f in calls)

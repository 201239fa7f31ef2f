"""A function's source: its syntax tree with the lines of its file, and a function made from a changed tree."""

from __future__ import annotations

import ast
import inspect
import linecache
import sysconfig
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuvil_hw.errors import CuvilError

# The name through which rewritten code reaches its helpers: a variable of the enclosing scope.
HELPERS = "__cuvil"
_BODY = "__cuvil_body"

Function = types.FunctionType
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Source:
    """`node`: the definition, lines counted as in `file`; `first`: its first line."""

    file: str
    node: Definition

    @property
    def first(self) -> int:
        return self.node.lineno


def place(function: Function) -> str:
    """`model.py:12`, where a function begins."""
    code = function.__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def of_user(function: Any) -> bool:
    """Whether a Python function is the user's: not of the standard library, an installed package or Cuvil itself."""
    if not isinstance(function, Function):
        return False
    return not is_library(function.__code__.co_filename)


def is_library(file: str) -> bool:
    """Whether code of a file is the standard library's, an installed package's, generated, or Cuvil's own."""
    shown = file.startswith(("<ipython", "<stdin", "<string"))
    return file.startswith(_LIBRARIES) or (file.startswith("<") and not shown)


_LIBRARIES = tuple(
    {
        str(Path(p)) + "/"
        for key in ("stdlib", "platstdlib", "purelib", "platlib")
        for p in [sysconfig.get_path(key)]
        if p
    }
    | {str(Path(__file__).resolve().parents[2]) + "/", "<frozen"}
)


def read(function: Function) -> Source:
    """The definition of a function. Raises CuvilError when its source can't be had."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise CuvilError(
            f"{function.__qualname__} ({place(function)}) has no source to read: a function is compiled from its file; "
            "write it in a .py file or a notebook cell, not in exec, eval or python -c"
        )
    try:
        tree = _parsed(lines, code)
    except (SyntaxError, OSError, IndexError) as e:
        raise CuvilError(f"{function.__qualname__} ({place(function)}): its source can't be read: {e}") from e
    found: list[Any] = [n for n in ast.walk(tree) if _defines(n, code)]
    if code.co_name == "<lambda>" and len(found) > 1:
        # Of several on one line: the innermost whose body holds all of the code.
        found = sorted((n for n in found if _holds(n, code)), key=lambda n: n.col_offset, reverse=True)
    if not found:
        raise CuvilError(
            f"{function.__qualname__} isn't at {place(function)} any more: the file changed after it was imported; "
            "start Python again"
        )
    node = found[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    return Source(code.co_filename, node)


def _holds(node: ast.AST, code: types.CodeType) -> bool:
    assert isinstance(node, ast.Lambda)
    body = node.body
    start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    for line, last, column, last_column in code.co_positions():
        if line is None or last is None or column is None or last_column is None or last_column == 0:
            continue
        if (line, column) < start or (last, last_column) > end:
            return False
    return True


def _parsed(lines: list[str], code: types.CodeType) -> ast.AST:
    """The whole file; where it is no valid Python as a whole (cells with magic commands), the function's block."""
    try:
        return ast.parse("".join(lines))
    except SyntaxError:
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
        tree = ast.parse(textwrap.dedent("".join(block)))
        return ast.increment_lineno(tree, code.co_firstlineno - 1)


def _defines(node: ast.AST, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != code.co_name:
        return False
    return min([node.lineno, *(d.lineno for d in node.decorator_list)]) == code.co_firstlineno


def rebuilt(function: Function, source: Source, body: ast.FunctionDef, helpers: Any) -> Function:
    """`function` with the code of `body`: same globals, same cells of its closure, `helpers` under HELPERS."""
    names = [*function.__code__.co_freevars, HELPERS]
    # Under its own name, the function would hide the global of that name from itself.
    body = ast.copy_location(ast.FunctionDef(_BODY, body.args, body.body, [], None, None), body)
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    outer = ast.FunctionDef("__outer", arguments, [body], [], None, None)
    module = ast.fix_missing_locations(ast.Module([outer], []))
    code = _nested(_nested(compile(module, source.file, "exec"), "__outer"), _BODY)
    code = _forward(code)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[HELPERS] = types.CellType(helpers)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = Function(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _forward(code: types.CodeType) -> types.CodeType:
    """The same code, called "forward": torch.export keeps the lines of frames of that name only."""
    inner = tuple(_forward(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_name="forward", co_consts=inner)


def _nested(code: types.CodeType, name: str) -> types.CodeType:
    return next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)


def captured(function: Function) -> dict[str, Any]:
    """Variables of enclosing scopes that a function reads; a cell that is still empty is left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found

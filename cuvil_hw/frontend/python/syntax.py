"""Questions about syntax trees, and the small pieces that rewritten code is made of."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence

from cuvil_hw.frontend.python.source import HELPERS

# Variables of rewritten code that are used up at once; their names begin so.
TEMPORARY = "__cv"
GUARD = "__match"  # flags: whether a case of a match holds, its guard too


def assigned(statements: Iterable[ast.stmt]) -> list[str]:
    """Names that statements bind in their own scope, in the order met."""
    found: dict[str, None] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = None
            return
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found[node.id] = None
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name is not None:
            found[node.name] = None
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                found[(alias.asname or alias.name).partition(".")[0]] = None
        for child in ast.iter_child_nodes(node):
            visit(child)

    for statement in statements:
        visit(statement)
    return [n for n in found if not n.startswith(TEMPORARY)]


def jumps(node: ast.AST) -> set[type[ast.stmt]]:
    """Which of Return, Break, Continue may leave a statement, loops inside it aside."""
    if isinstance(node, ast.Return | ast.Break | ast.Continue):
        return {type(node)}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return set()
    found: set[type[ast.stmt]] = set()
    if isinstance(node, ast.For | ast.While):
        for statement in node.body:
            found |= jumps(statement) & {ast.Return}
        for statement in node.orelse:
            found |= jumps(statement)
        return found
    for child in ast.iter_child_nodes(node):
        found |= jumps(child)
    return found


def ends(statements: Sequence[ast.stmt]) -> bool:
    """Whether a block never goes on after its last statement."""
    for s in statements:
        if isinstance(s, ast.Return | ast.Raise | ast.Break | ast.Continue):
            return True
        if isinstance(s, ast.If) and ends(s.body) and ends(s.orelse):
            return True
        if isinstance(s, ast.With) and ends(s.body):
            return True
        forever = isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and bool(s.test.value)
        if forever and not any(ast.Break in jumps(child) for child in s.body):  # type: ignore[attr-defined]
            return True
    return False


def parameters(args: ast.arguments) -> list[str]:
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return [a.arg for a in every if a is not None]


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def helper(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(load(HELPERS), name, ast.Load()), list(args), [])


class Ready(ast.Call):
    """A call that is rewritten already."""

    @staticmethod
    def of(call: ast.Call) -> Ready:
        return Ready(call.func, call.args, call.keywords)


def later(value: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def tuple_of(names: Sequence[str], make: Callable[[str], ast.Name]) -> ast.Tuple:
    return ast.Tuple([make(n) for n in names], ast.Load() if make is load else ast.Store())

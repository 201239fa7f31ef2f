"""`match` as `if` and `elif`, before a function is rewritten.

match x:                               __cvm1 = x
    case (a, 0): f(a)                  if sequence(__cvm1, 2, True) and __cvm1[1] == 0: a = __cvm1[0]; f(a)
    case k if k > 1: g()               else: __match1 = False
                                             if True: k = __cvm1; __match1 = k > 1
                                             if __match1: g()
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from functools import reduce

from cuvil_hw.frontend.python.syntax import GUARD, TEMPORARY, Ready, helper, load, store

Bindings = list[ast.stmt]


def without_match(node: ast.FunctionDef) -> ast.FunctionDef:
    """The definition with each `match` replaced; itself where it has none. Every node keeps its line."""
    if not any(isinstance(n, ast.Match) for n in ast.walk(node)):
        return node
    made = _Matches().visit(copy.deepcopy(node))
    assert isinstance(made, ast.FunctionDef)
    return made


class _Matches(ast.NodeTransformer):
    def __init__(self) -> None:
        self.count = 0

    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        self.count += 1
        number, subject = self.count, f"{TEMPORARY}m{self.count}"
        self.generic_visit(node)
        rest: list[ast.stmt] = []
        for i, case in reversed(list(enumerate(node.cases))):
            rest = _case(case, load(subject), f"{GUARD}{number}_{i}", rest)
        made: list[ast.stmt] = [ast.Assign([store(subject)], node.subject), *rest]
        for statement in made:
            for part in ast.walk(statement):
                if isinstance(part, ast.stmt | ast.expr) and not hasattr(part, "lineno"):
                    ast.copy_location(part, node)
        return made


def _case(case: ast.match_case, subject: ast.expr, flag: str, rest: list[ast.stmt]) -> list[ast.stmt]:
    tests: list[ast.expr] = []
    bound: Bindings = []
    _pattern(case.pattern, subject, tests, bound)
    test = ast.BoolOp(ast.And(), tests) if len(tests) > 1 else tests[0] if tests else ast.Constant(True)
    made: list[ast.stmt]
    if case.guard is None:
        made = [ast.If(test, [*bound, *case.body], rest)]
    else:
        found = ast.If(test, [*bound, ast.Assign([store(flag)], case.guard)], [])
        made = [ast.Assign([store(flag)], ast.Constant(False)), found, ast.If(load(flag), case.body, rest)]
    for statement in made:
        for part in ast.walk(statement):
            if isinstance(part, ast.stmt | ast.expr) and not hasattr(part, "lineno"):
                ast.copy_location(part, case.pattern)
    return made


def _pattern(pattern: ast.pattern, subject: ast.expr, tests: list[ast.expr], bound: Bindings) -> None:
    """Adds what must hold, in order, and what is bound then."""
    match pattern:
        case ast.MatchValue(value=value):
            tests.append(ast.Compare(subject, [ast.Eq()], [value]))
        case ast.MatchSingleton(value=value):
            tests.append(ast.Compare(subject, [ast.Is()], [ast.Constant(value)]))
        case ast.MatchAs(pattern=inner, name=name):
            if inner is not None:
                _pattern(inner, subject, tests, bound)
            if name is not None:
                bound.append(ast.Assign([store(name)], subject))
        case ast.MatchOr(patterns=patterns):
            tests.append(ast.BoolOp(ast.Or(), [_alone(p, subject) for p in patterns]))
        case ast.MatchSequence(patterns=patterns):
            _sequence(patterns, subject, tests, bound)
        case ast.MatchClass(cls=kind):
            tests.append(ast.Call(load("isinstance"), [subject, kind], []))
        case _:
            raise AssertionError(f"check.py refuses {type(pattern).__name__}")


def _alone(pattern: ast.pattern, subject: ast.expr) -> ast.expr:
    tests: list[ast.expr] = []
    _pattern(pattern, subject, tests, [])
    return reduce(lambda a, b: ast.BoolOp(ast.And(), [a, b]), tests) if tests else ast.Constant(True)


def _sequence(patterns: Sequence[ast.pattern], subject: ast.expr, tests: list[ast.expr], bound: Bindings) -> None:
    star = next((i for i, p in enumerate(patterns) if isinstance(p, ast.MatchStar)), None)
    least = len(patterns) - (star is not None)
    length = [ast.Constant(least), ast.Constant(star is None)]
    tests.append(Ready.of(helper("sequence", subject, *length)))
    for i, pattern in enumerate(patterns):
        if isinstance(pattern, ast.MatchStar):
            if pattern.name is not None:
                ends = [ast.Constant(i), ast.Constant(least - i)]
                bound.append(ast.Assign([store(pattern.name)], Ready.of(helper("starred", subject, *ends))))
            continue
        at = i if star is None or i < star else i - len(patterns)
        _pattern(pattern, ast.Subscript(subject, ast.Constant(at), ast.Load()), tests, bound)


def refusal(pattern: ast.AST) -> str:
    """Why a pattern isn't compiled; empty where it is."""
    if isinstance(pattern, ast.MatchMapping):
        return "on a mapping isn't compiled; write it with if and elif"
    if isinstance(pattern, ast.MatchClass) and (pattern.patterns or pattern.kwd_patterns):
        return "on attributes of a class isn't compiled; write it with isinstance"
    if isinstance(pattern, ast.MatchOr):
        named = (isinstance(p, ast.MatchAs | ast.MatchStar) and p.name is not None for p in ast.walk(pattern))
        if any(named):
            return "that binds names inside | isn't compiled; write one case for each"
    return ""

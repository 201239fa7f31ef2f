"""Rules between dimensions in Python's syntax: "S <= 2*B", "H % 4 == 0 and H != 8".

Text is parsed with `ast` into a small grammar and never evaluated as code: integers, names, + - * // %, min(), max(),
comparisons (also chained), and, or, not.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.polynomial import Polynomial, symbol, whole

_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
LONGEST = 1000  # characters


@dataclass(frozen=True)
class Compare:
    """`op` is one of == != < <= > >=."""

    op: str
    a: Polynomial
    b: Polynomial

    def holds(self, sizes: Mapping[str, int]) -> bool:
        a, b = self.a.value(sizes), self.b.value(sizes)
        return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[self.op]

    @property
    def symbols(self) -> frozenset[str]:
        return self.a.symbols | self.b.symbols

    def negated(self) -> Compare:
        return Compare(OPPOSITE[self.op], self.a, self.b)

    def __str__(self) -> str:
        return f"{self.a} {self.op} {self.b}"


@dataclass(frozen=True)
class Logic:
    """`op` is "and", "or" or "not" (of one part)."""

    op: str
    parts: tuple[Rule, ...]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        found = [p.holds(sizes) for p in self.parts]
        return not found[0] if self.op == "not" else all(found) if self.op == "and" else any(found)

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset().union(*(p.symbols for p in self.parts))

    def __str__(self) -> str:
        if self.op == "not":
            return f"not ({self.parts[0]})"
        return f" {self.op} ".join(f"({p})" if isinstance(p, Logic) else str(p) for p in self.parts)


Rule = Compare | Logic


@dataclass(frozen=True)
class Constraint:
    """A rule that sizes must satisfy: `Constraint("S <= 2*B")`. Raises CuvilError that shows the place in the text."""

    text: str
    rule: Rule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", parse_rule(self.text))

    def __str__(self) -> str:
        return self.text


def parse_rule(text: str) -> Rule:
    """Raises CuvilError."""
    return _rule(_tree(text), text)


def parse_expr(text: str) -> Polynomial:
    """An extent: "2*S + 1". Raises CuvilError."""
    return _expr(_tree(text), text)


def _tree(text: str) -> ast.expr:
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise CuvilError(f"a constraint is text of 1 to {LONGEST} characters such as 'S <= 2*B', not {text!r:.60}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        column = (getattr(e, "offset", None) or 1) - 1
        raise _error(text.strip(), column, getattr(e, "msg", str(e))) from e


def _error(text: str, column: int, why: str) -> CuvilError:
    mark = " " * column + "^"
    return CuvilError(f"constraint {text!r}, column {column + 1}: {why}\n  {text}\n  {mark}")


def _fail(node: ast.expr, text: str, why: str) -> CuvilError:
    source = text.strip()
    # ast counts columns in bytes of UTF-8.
    return _error(source, len(source.encode()[: node.col_offset].decode("utf-8", "ignore")), why)


def _rule(node: ast.expr, text: str) -> Rule:
    match node:
        case ast.BoolOp(op=op, values=values):
            return Logic("and" if isinstance(op, ast.And) else "or", tuple(_rule(v, text) for v in values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Logic("not", (_rule(operand, text),))
        case ast.Compare(left=left, ops=ops, comparators=rights):
            sides = [left, *rights]
            parts: list[Rule] = []
            for a, compares, b in zip(sides, ops, rights, strict=False):
                if type(compares) not in _COMPARE:
                    raise _fail(b, text, "only == != < <= > >= compare sizes")
                parts.append(Compare(_COMPARE[type(compares)], _expr(a, text), _expr(b, text)))
            return parts[0] if len(parts) == 1 else Logic("and", tuple(parts))
    raise _fail(node, text, "a comparison is expected, such as S <= 2*B")


def _expr(node: ast.expr, text: str) -> Polynomial:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            if abs(number) >= 1 << 62:
                raise _fail(node, text, "the number is too large")
            return whole(number)
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_expr(operand, text)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _expr(left, text), _expr(right, text)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv() | ast.Mod():
                    if b.constant is None or b.constant <= 0:
                        raise _fail(right, text, "the divisor must be a positive number")
                    return a // b if isinstance(op, ast.FloorDiv) else a % b
            raise _fail(node, text, "only + - * // % compute sizes")
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args, keywords=[]) if len(args) >= 2:
            values = [_expr(a, text) for a in args]
            return reduce(lambda a, b: a.smallest(b) if name == "min" else a.largest(b), values)
    raise _fail(node, text, "only integers, dimensions, + - * // %, min() and max() are allowed")

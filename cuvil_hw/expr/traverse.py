"""Visits, rewrites and prints expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace

from cuvil_hw.expr.nodes import (
    Apply,
    Const,
    Expr,
    Iter,
    Load,
    Lookup,
    Reduce,
    Select,
    State,
    Whole,
    cast,
    index_op,
    lookup,
    select,
)


def walk(e: Expr, children: Callable[[Expr], tuple[Expr, ...]] = lambda node: node.children()) -> Iterator[Expr]:
    """Every distinct node once, children after parents (an expression is a DAG). `children`: gives the children of a
    node to visit, if not all."""
    seen: set[int] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack.extend(reversed(children(node)))


def rewrite(e: Expr, leaf: Callable[[Expr], Expr | None], memo: dict[int, Expr] | None = None) -> Expr:
    """Rebuild `e`, replacing every node for which `leaf` returns another one; index arithmetic is simplified again."""
    memo = {} if memo is None else memo
    if id(e) in memo:
        return memo[id(e)]
    new = leaf(e)
    if new is None:

        def go(x: Expr) -> Expr:
            return rewrite(x, leaf, memo)

        match e:
            case Load() | Whole():
                new = replace(e, index=tuple(map(go, e.index)))
            case Lookup():
                new = lookup(e.values, go(e.index), e.dtype)
            case Apply(dtype="index", op="cast"):
                new = replace(e, args=(go(e.args[0]),))
            case Apply(dtype="index"):
                new = index_op(e.op, go(e.args[0]), go(e.args[1]))
            case Apply():
                new = replace(e, args=tuple(map(go, e.args)))
            case Select():
                new = select(go(e.cond), go(e.then), go(e.other))
            case Reduce():
                iters = tuple(i for x in e.iters if isinstance(i := go(x), Iter))
                new = replace(e, iters=iters, init=tuple(map(go, e.init)), update=tuple(map(go, e.update)))
            case _:
                new = e
    memo[id(e)] = new
    return new


def retype(e: Expr, old: str, new: str) -> Expr:
    """Every node of dtype `old` in `new`: exact when `new` is wider and nothing overflows in `old`."""

    def leaf(x: Expr) -> Expr | None:
        match x:
            case Const() | State() if x.dtype == old:
                return replace(x, dtype=new)
            case Lookup() if x.dtype == old:
                return lookup(x.values, x.index, new)
            case Load() if x.dtype == old:
                return cast(x, new)
            case Select() if x.dtype == old:
                return select(x.cond, go(x.then), go(x.other))
            case Apply(op="bitcast") if x.dtype == old:
                return cast(x, new)
            case Apply(args=args) if x.dtype == old:
                return cast(args[0], new) if x.op == "cast" else replace(x, dtype=new, args=tuple(map(go, args)))
        return None

    def go(x: Expr) -> Expr:
        return rewrite(x, leaf)

    return go(e)


def substitute(e: Expr, values: Mapping[Iter, Expr]) -> Expr:
    """Replace iterators by expressions."""
    return rewrite(e, lambda x: values.get(x) if isinstance(x, Iter) else None)


def show(e: Expr) -> str:
    """A short, readable form for error texts and reports."""
    match e:
        case Const():
            return str(e.value)
        case Iter():
            return e.name
        case Load():
            return f"{e.buffer}[{', '.join(map(show, e.index))}]"
        case Apply():
            name = f"{e.op}<{e.dtype}>" if e.op in ("cast", "bitcast", "saturate") else e.op
            return f"{name}({', '.join(map(show, e.args))})"
        case Select():
            return f"({show(e.cond)} ? {show(e.then)} : {show(e.other)})"
        case Lookup():
            return f"table{len(e.values)}[{show(e.index)}]"
        case State():
            return f"s{e.k}"
        case Reduce():
            return f"{e.kind}[{', '.join(f'{i.name}<{i.extent}' for i in e.iters)}]({', '.join(map(show, e.update))})"
    return type(e).__name__ + str(tuple(getattr(e, f.name) for f in fields(e)))

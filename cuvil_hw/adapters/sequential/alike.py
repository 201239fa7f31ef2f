"""Kernels that compute the same on other buffers: equal layers of a model are lowered, written and compiled once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from xdsl.dialects.func import FuncOp

from cuvil_hw.expr.nodes import Expr
from cuvil_hw.ir.annotations import Comment, Kernels, annotate, noted, text_of
from cuvil_hw.schedule.kernel import Kernel


def form_of(kernel: Kernel) -> Hashable:
    """What a kernel computes, its buffers numbered in the order of `inputs`: equal forms, equal loops.

    Types of buffers are part of it, their names, roles and what constants hold aren't. Numbers count by how they are
    written, as -0.0 and 0.0, or 1 and True, are different constants."""
    numbers = {name: n for n, name in enumerate(kernel.inputs)}
    nodes: dict[Hashable, int] = {}
    memo: dict[int, int] = {}
    root = _node(kernel.body, numbers, nodes, memo)
    types = tuple(b.type for b in kernel.operands)
    return types, kernel.type, kernel.iterators, tuple(nodes), root


def _node(e: Expr, numbers: Mapping[str, int], nodes: dict[Hashable, int], memo: dict[int, int]) -> int:
    """The number of a node among the distinct ones, children before parents."""
    if id(e) not in memo:
        parts = [type(e).__name__]
        for field in fields(e):
            value: Any = getattr(e, field.name)
            if field.name == "buffer":
                value = numbers[value]
            elif isinstance(value, Expr):
                value = _node(value, numbers, nodes, memo)
            elif isinstance(value, tuple) and value and isinstance(value[0], Expr):
                value = tuple(_node(v, numbers, nodes, memo) for v in value)
            parts.append(repr(value))
        memo[id(e)] = nodes.setdefault(tuple(parts), len(nodes))
    return memo[id(e)]


def share(function: FuncOp, kernels: Sequence[str]) -> None:
    """Say in the IR, and in the comment above the source, which kernels run `function`."""
    annotate(function, Kernels(tuple(kernels)))
    if len(kernels) > 1 and (comment := text_of(function, Comment)):
        annotate(function, Comment(f"{comment}\nalso: {', '.join(kernels[1:])}"))


def shared_by(function: FuncOp) -> tuple[str, ...]:
    """Names of the kernels that run `function`."""
    names = noted(function, Kernels)
    return names.data if names is not None else ()

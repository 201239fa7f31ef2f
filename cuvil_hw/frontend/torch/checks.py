"""A model's own checks of values that only a run knows, such as how many places of a text an image takes.

In Dynamo's graph such a check reads a number (`item`), compares it and asserts. Nothing else may be done with a number
that is read, but a check can as well compare tensors: it becomes a guard of the program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from cuvil_hw.frontend.torch.errors import way_to

_COMPARES: dict[Any, Callable[..., Any]] = {
    **{op: op for op in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)},
    torch.sym_not: torch.logical_not,
    torch.sym_ite: torch.where,
}
_ASSERT = torch.ops.aten._assert_scalar.default


def checks(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes that read, compare and assert numbers, and do nothing else."""
    found: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        reads = node.op == "call_method" and node.target == "item"
        compares = node.op == "call_function" and node.target in _COMPARES
        served = bool(node.users) and all(u in found for u in node.users)
        if node.target is _ASSERT or ((reads or compares) and served):
            found.add(node)
    return found


def checked(node: torch.fx.Node, args: tuple[Any, ...]) -> Any:
    """What one of these nodes gives, on tensors instead of numbers."""
    if node.op == "call_method":
        return args[0].reshape(()).to(torch.float64 if args[0].is_floating_point() else args[0].dtype)
    assert callable(node.target)
    if not isinstance(args[0], torch.Tensor):
        return node.target(*args)
    if node.target is _ASSERT:
        return torch._assert_async(args[0], way_to(node))
    return _COMPARES[node.target](*args)


__all__ = ["checked", "checks"]

"""Python numbers among a graph's inputs that change from call to call, such as how much of a cache is filled."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

# Arithmetic that means the same for numbers and for tensors of no dimension.
_ARITHMETIC = {
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, torch.sym_max,
    torch.sym_min,
}  # fmt: skip
# What a tensor may be asked beside a number.
_WITH_TENSORS = {
    operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul, operator.lt, operator.le,
    operator.gt, operator.ge, operator.eq, operator.ne,
}  # fmt: skip
EXTREMES: dict[Any, Callable[..., Any]] = {torch.sym_max: torch.maximum, torch.sym_min: torch.minimum}


@dataclass(frozen=True)
class Counted:
    """The output is arithmetic on the number inputs, such as a counter's next value."""

    node: torch.fx.Node

    def of(self, inputs: Mapping[str, Any]) -> Any:
        """`inputs`: the graph's, by name of the placeholder."""
        return _value(self.node, inputs)


def _value(node: Any, inputs: Mapping[str, Any]) -> Any:
    if not isinstance(node, torch.fx.Node):
        return node
    if node.op == "placeholder":
        return inputs[node.name]
    assert callable(node.target)
    return node.target(*(_value(a, inputs) for a in node.args))


def counts(node: torch.fx.Node) -> bool:
    """Whether a node is arithmetic on numbers alone."""
    plain = node.op == "call_function" and node.target in _ARITHMETIC and not node.kwargs
    if isinstance(node.meta.get("example_value"), torch.Tensor) or not (plain or node.op == "placeholder"):
        return False
    return all(counts(a) for a in node.all_input_nodes)


def followed(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> dict[int, bool]:
    """Whole-number inputs that no shape and no other choice depends on, by position: whether tensors are computed with
    them. One program serves all their values; any other number is compiled in."""
    found: dict[int, bool] = {}
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    for i, (node, example) in enumerate(zip(placeholders, examples, strict=True)):
        if isinstance(example, int | torch.SymInt) and not isinstance(example, bool):
            reaches = _reaches_tensors(node)
            if reaches is not None:
                found[i] = reaches
    return found


def _reaches_tensors(node: torch.fx.Node) -> bool | None:
    """None where something else than arithmetic is done with the number."""
    reaches = False
    for user in node.users:
        if user.op == "output":
            continue
        if user.op != "call_function" or user.kwargs:
            return None
        if isinstance(user.meta.get("example_value"), torch.Tensor):
            if user.target not in _WITH_TENSORS:
                return None
            reaches = True
        elif user.target in _ARITHMETIC:
            beyond = _reaches_tensors(user)
            if beyond is None:
                return None
            reaches |= beyond
        else:
            return None
    return reaches


def extreme(target: Any, args: Sequence[Any]) -> Any:
    """sym_max or sym_min of which one side is a tensor that stands for a number."""
    return EXTREMES[target](*(torch.as_tensor(a) for a in args))


__all__ = ["EXTREMES", "Counted", "counts", "extreme", "followed"]

"""Values that depend on tensors: variables that differ between branches, and Python numbers read from tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from cuvil_hw.frontend.python.arrays import Array, as_tensor
from cuvil_hw.frontend.python.conditions import FALSE, TRUE
from cuvil_hw.frontend.python.helpers import helpers
from cuvil_hw.frontend.python.number import Number, kind_of, number
from cuvil_hw.frontend.python.trace import Merge, current, refuse, wrong


class _Mark:
    """A variable without a value. `UNSET`: not assigned yet; `NEVER`: the result of a function that hasn't returned
    yet."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


UNSET, NEVER = _Mark("UNSET"), _Mark("NEVER")
helpers.UNSET, helpers.NEVER = UNSET, NEVER


@dataclass
class Phi:
    """The content of a variable after a branch: `then` where `node` holds, else `other`. Resolved when it is read,
    since the condition may be known by then."""

    node: int
    then: Any
    other: Any
    settled: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cond:
    """The truth of an expression."""

    node: int

    def __bool__(self) -> bool:
        if self.node > TRUE:
            refuse("a condition", "depends on the values of tensors, and decides something that must be fixed")
        return self.node == TRUE


def truth(value: Any, seen: dict[int, int] | None = None) -> int:
    """The condition that a value is true, as a node. `seen`: results for choices visited so far, by id, since choices
    share parts."""
    if isinstance(value, Cond):
        return value.node
    if isinstance(value, Phi):
        seen = {} if seen is None else seen
        if id(value) not in seen:
            sides = truth(value.then, seen), truth(value.other, seen)
            seen[id(value)] = current().conditions.choose(value.node, *sides)
        return seen[id(value)]
    if isinstance(value, Array) and value.known is not None:
        return TRUE if bool(value.known) else FALSE
    if isinstance(value, torch.SymInt | torch.SymBool):
        value = sized(value)
    if isinstance(value, torch.Tensor | Array | Number):
        tensor = value if isinstance(value, torch.Tensor) else value.tensor
        if tensor.numel() != 1:
            wrong(
                f"the truth of an array of shape {tuple(tensor.shape)} is asked for; "
                "say which: torch.any, torch.all or a reduction"
            )
        if constant(tensor):
            return TRUE if bool(tensor) else FALSE
        return current().conditions.atom(_flag(tensor))
    current().reads.used(value)
    return TRUE if value else FALSE


def sized(value: Any) -> Any:
    """How many elements a mask selects, or what such numbers are compared to, as a tensor; other sizes as they are."""
    if not free_unbacked_symbols(value):
        return value
    key = (str(value.node.expr), -1)
    flags = current().flags
    if key not in flags:
        as_int: Any = torch.sym_ite  # which torch doesn't declare
        count = torch.scalar_tensor(
            as_int(value, 1, 0) if isinstance(value, torch.SymBool) else value, dtype=torch.int64
        )
        flags[key] = (count, count)
    return flags[key][1]


def constant(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are known: it existed before the trace."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not isinstance(tensor, FakeTensor)


def _flag(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor != 0` without dimensions, the same one each time that the same unchanged tensor is asked for."""
    if tensor.dtype == torch.bool and tensor.ndim == 0 and tensor._version == 0:
        return tensor
    flags = current().flags
    key = (id(tensor), tensor._version)
    if key not in flags:
        flat = tensor.reshape(())
        flags[key] = (tensor, flat.clone() if tensor.dtype == torch.bool else flat != 0)
    return flags[key][1]


def is_flag(value: Any) -> bool:
    """Whether a value is a single truth, traced or not."""
    if isinstance(value, torch.Tensor):
        return value.dtype == torch.bool and value.ndim == 0
    if isinstance(value, Array):
        return value.dtype == bool and value.ndim == 0
    return isinstance(value, bool) or (isinstance(value, Number) and value.kind is bool)


def settle(value: Any, name: str) -> Any:
    """The value of a variable under what is known here."""
    if not isinstance(value, Phi):
        if value is UNSET:
            raise UnboundLocalError(f"{name} is read before it is assigned")
        return value
    return _settle(value, current().mask, name)


def _settle(value: Any, mask: int, name: str) -> Any:
    if not isinstance(value, Phi):
        if value is UNSET:
            wrong(
                f"{name!r} may have no value here: it is assigned on some ways only, and which is known at run time; "
                "assign it before the branch"
            )
        return value
    if mask in value.settled:
        return value.settled[mask]
    conditions = current().conditions
    yes, no = conditions.both(mask, value.node), conditions.both(mask, conditions.negate(value.node))
    if no == FALSE:
        found = _settle(value.then, yes, name)
    elif yes == FALSE:
        found = _settle(value.other, no, name)
    else:
        then, other = _settle(value.then, yes, name), _settle(value.other, no, name)
        found = select(value.node, then, other, name)
    value.settled[mask] = found
    return found


def merged(node: int, then: Any, other: Any) -> Any:
    """A variable after a branch."""
    same_number = type(then) is type(other) and isinstance(then, bool | int | str) and then == other
    return then if then is other or same_number else Phi(node, then, other)


def select(node: int, then: Any, other: Any, name: str) -> Any:
    """`then` where `node` holds, else `other`, as one value. Raises CuvilError if the two are of different kinds."""
    if then is other or other is NEVER:
        return then
    if then is NEVER:
        return other
    then, other = (Array.of(x) if isinstance(x, np.ndarray | np.generic) else x for x in (then, other))
    kinds = (torch.Tensor, Array, Number)
    if isinstance(then, kinds) or isinstance(other, kinds):
        return _select_tensors(node, then, other, name)
    if isinstance(then, bool | int | float) and isinstance(other, bool | int | float):
        if _equal(then, other):
            return then
        return _select_numbers(node, then, other, name)
    if type(then) is type(other) and isinstance(then, tuple | list) and len(then) == len(other):
        parts = [select(node, a, b, f"{name}[{i}]") for i, (a, b) in enumerate(zip(then, other, strict=True))]
        return type(then)(*parts) if hasattr(then, "_fields") else type(then)(parts)
    if type(then) is type(other) is dict and list(then) == list(other):
        return {k: select(node, then[k], other[k], f"{name}[{k!r}]") for k in then}
    if type(then) is type(other) and isinstance(then, str | bytes | complex | range | slice) and then == other:
        return then
    wrong(
        f"{name} is {_described(then)} on one way and {_described(other)} on the other, "
        "and which is known at run time; give both ways a value of the same kind"
    )


def _equal(a: bool | int | float, b: bool | int | float) -> bool:
    """Indistinguishable: 0.0 isn't -0.0, 1 isn't True."""
    return type(a) is type(b) and ((a == b and str(a) == str(b)) or (a != a and b != b))


def _select_numbers(node: int, then: Any, other: Any, name: str) -> Any:
    kinds = kind_of(then), kind_of(other)
    if kinds[0] is not kinds[1]:
        wrong(
            f"{name} is the {kinds[0].__name__} {_described(then)} on one way and "
            f"the {kinds[1].__name__} {_described(other)} on the other, and which is known at run time; "
            "give both the same type"
        )
    a, b = number(then, kinds[0]).tensor, number(other, kinds[0]).tensor
    return Number(torch.where(current().conditions.tensor(node), a, b), kinds[0])


def _select_tensors(node: int, then: Any, other: Any, name: str) -> Any:
    if not isinstance(then, torch.Tensor | Array) and not isinstance(other, torch.Tensor | Array):
        return _select_numbers(node, then, other, name)
    model = then if isinstance(then, torch.Tensor | Array) else other
    a, b = _like(then, model), _like(other, model)
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        wrong(
            f"{name} is {_described(then)} on one way and {_described(other)} on the other, "
            "and which is known at run time; give both ways the same shape and dtype"
        )
    trace = current()
    key = (node, id(a), id(b))
    if key not in trace.selected:
        trace.selected[key] = Merge(node, a, b, torch.where(trace.conditions.tensor(node), a, b))
        trace.merges.append(trace.selected[key])
    result = trace.selected[key].result
    if isinstance(model, torch.Tensor):
        return result
    scalar = all(x.scalar if isinstance(x, Array) else True for x in (then, other))
    return Array(result, scalar=scalar)


def _like(value: Any, model: torch.Tensor | Array) -> torch.Tensor | None:
    """`value` as a tensor beside `model`; numbers only where no dimension and no digit is lost."""
    tensor = model if isinstance(model, torch.Tensor) else model.tensor
    if isinstance(value, torch.Tensor):
        return value if isinstance(model, torch.Tensor) else None
    if isinstance(value, Array | np.ndarray | np.generic):
        return None if isinstance(model, torch.Tensor) else as_tensor(value)
    if not isinstance(value, bool | int | float | Number) or tensor.ndim:
        return None
    kind = kind_of(value)
    if kind is bool and tensor.dtype != torch.bool:
        return None
    if kind is int and tensor.dtype == torch.bool:
        return None
    if kind is float and not tensor.dtype.is_floating_point:
        return None
    return number(value, kind).tensor.to(tensor.dtype)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor | Array):
        tensor = value if isinstance(value, torch.Tensor) else value.tensor
        what = "a tensor" if isinstance(value, torch.Tensor) else "an array"
        return f"{what} of {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if isinstance(value, Number):
        return f"a {value.kind.__name__}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def owned(value: Any) -> Any:
    """Registers a list, dict or set as the function's own, which it may change."""
    if isinstance(value, list | dict | set):
        current().owned.setdefault(id(value), (value, current().mask))
        current().reads.born(value)
    return value


def holds_traced(values: Any) -> bool:
    """Whether a tensor, an array or a number read from one is among nested values."""
    return any(isinstance(x, torch.Tensor | Array | Number) for x in pytree.tree_leaves(values))


def item(tensor: torch.Tensor) -> Any:
    """`tensor.item()`. Raises RuntimeError, as torch does, for more than one element."""
    if constant(tensor):
        return tensor.item()
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    kind: type = bool if tensor.dtype == torch.bool else float if tensor.is_floating_point() else int
    return number(Number(tensor.reshape(()), float), kind) if kind is float else _whole(tensor.reshape(()), kind)


def listed(tensor: torch.Tensor) -> Any:
    """`tensor.tolist()`."""
    if constant(tensor):
        return tensor.tolist()
    if any(map(free_unbacked_symbols, tensor.shape)):
        refuse("tolist", "of what a mask selects, of which only a run knows how many there are; go through the tensor")
    return [listed(part) for part in tensor] if tensor.ndim else item(tensor)


def _whole(tensor: torch.Tensor, kind: type) -> Number:
    return Number(tensor if kind is bool else tensor.to(torch.int64), kind)

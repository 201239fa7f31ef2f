"""In-place changes while a function is traced: they take effect only where Python would run the code, and only on
memory that belongs to the function."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cuvil_hw.frontend.python import hits, indexing
from cuvil_hw.frontend.python.arrays import Array
from cuvil_hw.frontend.python.conditions import FALSE, TRUE
from cuvil_hw.frontend.python.helpers import helper_function
from cuvil_hw.frontend.python.number import Number
from cuvil_hw.frontend.python.outside import outside
from cuvil_hw.frontend.python.trace import current, memory, refuse
from cuvil_hw.frontend.python.values import constant

_INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.iadd,
    "Sub": operator.isub,
    "Mult": operator.imul,
    "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv,
    "Mod": operator.imod,
    "Pow": operator.ipow,
    "MatMult": operator.imatmul,
    "BitAnd": operator.iand,
    "BitOr": operator.ior,
    "BitXor": operator.ixor,
    "LShift": operator.ilshift,
    "RShift": operator.irshift,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
    "MatMult": operator.matmul,
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "BitXor": operator.xor,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
}
MUTATING = frozenset(
    [
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "popitem",
        "add",
        "discard",
        "difference_update",
        "intersection_update",
        "symmetric_difference_update",
        "__setitem__",
        "__delitem__",
        "appendleft",
        "popleft",
        "extendleft",
        "rotate",
    ]
)


def change(tensor: torch.Tensor, action: Callable[[], Any], what: str) -> Any:
    """Run `action`, which changes `tensor` in place; it takes effect only where Python would run this code."""
    trace = current()
    _own(tensor, what)
    if trace.mask == TRUE:
        result = action()
    else:
        old = tensor.clone()
        result = action()
        tensor.copy_(torch.where(trace.conditions.tensor(trace.mask), tensor, old))
    _spread(memory(tensor), what)
    return result


def _own(tensor: torch.Tensor, what: str) -> None:
    """Raises Unsupported for memory that doesn't belong to the function."""
    if constant(tensor):
        refuse(what, "changes a tensor from outside of the function; copy it first (x = x.clone())")
    if memory(tensor) in current().frozen:
        refuse(what, f"changes {current().frozen[memory(tensor)]}; copy it first")


def _spread(changed: int, what: str) -> None:
    """Apply a change to the other tensors as well: in Python, a tensor selected from two *is* one of them, so a change
    of either is a change of the other."""
    trace = current()
    chosen = next((m.result for m in trace.merges if memory(m.result) == changed), None)
    touched = {changed}
    for root, node in _roots(chosen).values() if chosen is not None else ():
        assert chosen is not None
        if not trace.never(node):
            _own(root, what)
            root.copy_(torch.where(trace.conditions.tensor(node), chosen, root))
            touched.add(memory(root))
    for merge in trace.merges:
        roots = _roots(merge.result).values()
        if merge.result is not chosen and any(not constant(r) and memory(r) in touched for r, _ in roots):
            merge.result.copy_(torch.where(trace.conditions.tensor(merge.node), merge.then, merge.other))


def _roots(tensor: torch.Tensor) -> dict[int, tuple[torch.Tensor, int]]:
    """The tensors that this one may be in Python, by id, each with its condition."""
    trace = current()
    if id(tensor) not in trace.roots:
        merge = next((m for m in trace.merges if m.result is tensor), None)
        found = {id(tensor): (tensor, TRUE)}
        if merge is not None:
            found, conditions = {}, trace.conditions
            for side, node in ((merge.then, merge.node), (merge.other, conditions.negate(merge.node))):
                for key, (root, when) in _roots(side).items():
                    before = found[key][1] if key in found else FALSE
                    found[key] = root, conditions.either(before, conditions.both(node, when))
        trace.roots[id(tensor)] = found
    return trace.roots[id(tensor)]


def container(value: Any, what: str) -> None:
    """Allow a change of a list, dict or set. Raises Unsupported if it doesn't belong to the function, or if the change
    would happen only under a condition."""
    trace = current()
    if isinstance(trace.outside.get(id(value), (None, None))[1], str):
        refuse(what, "changes a container from outside of the function; return what should change instead")
    if trace.mask == TRUE:
        return
    _, born = trace.owned.get(id(value), (None, TRUE))
    if not trace.conditions.implies(born, trace.mask):
        refuse(
            what,
            "under a condition that depends on tensors: the length or content would be known at run time only; "
            "use arrays and where, or build a new container on both ways",
        )


@helper_function
def augment(name: str, old: Any, value: Any) -> Any:
    """`old += value`."""
    if isinstance(old, torch.Tensor):
        other = value.tensor if isinstance(value, Array) else value
        return change(old, lambda: _INPLACE[name](old, other), "an assignment such as +=")
    if isinstance(old, Array):
        if old.scalar:
            return _BINARY[name](old, value)
        known = old.known
        fixed = known is not None and current().mask == TRUE and not isinstance(value, torch.Tensor | Number)
        if fixed and isinstance(value, Array):
            fixed, value = (False, value) if value.known is None else (True, value)
        result = change(old.tensor, lambda: _INPLACE[name](old, value), "an assignment such as +=")
        if fixed and isinstance(known, np.ndarray):
            _INPLACE[name](known, value.known if isinstance(value, Array) else value)
            old.alive[0] = True
        return result
    if isinstance(old, list | dict | set):
        container(old, "an assignment such as +=")
    return _INPLACE[name](old, value)


@helper_function
def set_item(owner: Any, index: Any, value: Any) -> None:
    """`owner[index] = value`."""
    what = "an assignment to a subscript"
    if isinstance(owner, Array):
        if owner.scalar:
            raise TypeError(f"'numpy.{owner.dtype}' object does not support item assignment")
        change(owner.tensor, lambda: indexing.set_(owner, index, value), what)
    elif isinstance(owner, torch.Tensor):
        given = value.tensor if isinstance(value, Array | Number) else value
        parts = index if isinstance(index, tuple) else (index,)
        taken, _ = indexing.torch_index(parts, tuple(owner.shape), backwards=False)
        change(owner, lambda: indexing.put(owner, taken, given), what)
    elif isinstance(owner, np.ndarray):
        refuse(what, "changes an array from outside of the function; copy it first (np.array(x))")
    else:
        container(owner, what)
        owner[index] = value


@helper_function
def augment_item(name: str, owner: Any, index: Any, later: Callable[[], Any]) -> None:
    """`owner[index] += value`."""
    old = get_item(owner, index)
    value = later()
    if isinstance(old, Array | torch.Tensor) and isinstance(owner, Array | torch.Tensor):
        set_item(owner, index, _BINARY[name](old, value))
    else:
        set_item(owner, index, augment(name, old, value))


@helper_function
def get_item(owner: Any, index: Any) -> Any:
    """`owner[index]`."""
    if isinstance(owner, torch.Tensor):
        parts = index if isinstance(index, tuple) else (index,)
        taken, _ = indexing.torch_index(parts, tuple(owner.shape), backwards=False)
        result = hits.part(owner, index, indexing.take(owner, taken))
        if constant(owner):
            current().frozen[memory(result)] = "a tensor from outside of the function"
            current().keep.append(result)
        return result
    if isinstance(owner, np.ndarray):
        owner = outside(owner, "an array")
    if isinstance(owner, Array):
        return hits.part(owner, index, indexing.get(owner, index))
    if isinstance(index, Number | torch.Tensor) or (isinstance(index, Array) and index.known is None):
        if isinstance(owner, list | tuple):
            refuse("a subscript", f"chooses from a {type(owner).__name__} by a value read from tensors; stack it first")
        refuse("a subscript", f"looks up a value read from tensors in a {type(owner).__name__}")
    current().reads.used(owner)
    return outside(owner[index], "")


@helper_function
def del_item(owner: Any, index: Any) -> None:
    container(owner, "del")
    del owner[index]

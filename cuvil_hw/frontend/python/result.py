"""Outputs of a program → what the function returns, and how the program is called as the function is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cuvil_hw.contract import signature
from cuvil_hw.contract.device import Array
from cuvil_hw.frontend.python.load import Arguments, ResultValue, Traced, is_array
from cuvil_hw.ir.program import Program
from cuvil_hw.runtime.inputs import to_tensor


def rebuilt(traced: Traced, outputs: Sequence[Any], arrays: Sequence[Any] | None = None) -> Any:
    """The function's result. `outputs`: the visible outputs of the program, in order. `arrays`: the array arguments of
    the call, one of which may be the result itself."""
    kept = traced.program.calling.kept_outputs
    dtypes = [kind.dtype for name, kind in traced.program.outputs if name not in kept]
    return pytree.tree_unflatten([_leaf(leaf, outputs, dtypes, arrays) for leaf in traced.leaves], traced.spec)


def _leaf(leaf: ResultValue, outputs: Sequence[Any], dtypes: Sequence[str], arrays: Sequence[Any] | None) -> Any:
    if leaf.kind == "fixed":
        return leaf.value
    if leaf.given is not None and arrays is not None:
        return arrays[leaf.given]
    if leaf.kind == "tensor" and isinstance(outputs[leaf.index], torch.Tensor):
        return outputs[leaf.index]
    array: Array = np.asarray(outputs[leaf.index])
    if leaf.kind == "tensor":
        return to_tensor(array, dtypes[leaf.index])
    if leaf.kind == "scalar":
        return array[()]
    return array.item() if leaf.kind == "number" else array


def called_as(function: Callable[..., Any], given: Arguments, traced: Traced) -> Program:
    """The program, called with the function's own arguments and giving its own result; with flat arguments and outputs
    where these hold something that can't be stored."""
    ports = dict(zip(map(id, given.arrays), given.names, strict=True))
    args, kwargs = pytree.tree_unflatten(list(given.leaves), given.spec)
    declared = inspect.signature(function)
    bound = declared.bind(*args, **kwargs).arguments
    try:
        parameters = tuple(_parameter(p, bound, ports) for p in declared.parameters.values())
        result = _tree(pytree.tree_unflatten(list(traced.leaves), traced.spec), {})
    except _NotPlainError:
        return traced.program
    names = [n for n, _ in traced.program.outputs]

    def rebuild(made: Mapping[str, Any]) -> Any:
        return rebuilt(traced, [made[n] for n in names if n in made])

    calling = replace(traced.program.calling, signature=signature.Signature(parameters, result), rebuild=rebuild)
    return replace(traced.program, calling=calling)


class _NotPlainError(Exception):
    """Raised for something that a signature can't express."""


_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "either",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
}


def _parameter(p: inspect.Parameter, bound: Mapping[str, Any], ports: Mapping[int, str]) -> signature.Parameter:
    if p.kind not in _KINDS:
        raise _NotPlainError
    tree = _tree(bound[p.name], ports) if p.name in bound else None
    plain = p.default is None or isinstance(p.default, bool | int | float | str)
    default = signature.FixedValue(p.default) if plain and p.default is not p.empty else None
    return signature.Parameter(p.name, _KINDS[p.kind], tree, default)


def _tree(value: Any, ports: Mapping[int, str]) -> signature.Tree:
    if isinstance(value, ResultValue):
        return signature.Leaf(f"out{value.index}") if value.kind != "fixed" else _tree(value.value, ports)
    if is_array(value):
        return signature.Leaf(ports[id(value)])
    if value is None or type(value) in (bool, int, float, str):
        return signature.FixedValue(value)
    if type(value) is dict and all(isinstance(k, str | int) for k in value):
        return signature.Branch("dict", tuple(_tree(v, ports) for v in value.values()), tuple(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = tuple(_tree(v, ports) for v in value)
        return signature.Branch("namedtuple", parts, tuple(value._fields), type(value).__name__)
    if type(value) in (tuple, list):
        return signature.Branch(type(value).__name__, tuple(_tree(v, ports) for v in value))
    raise _NotPlainError

"""The call of a PyTorch model: example inputs → what torch.export takes; its pytrees → a Signature."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from cuvil_hw.contract.signature import Branch, FixedValue, Leaf, Parameter, Scalar, Signature, Tree
from cuvil_hw.errors import CuvilError, InputError

Call = tuple[tuple[Any, ...], dict[str, Any]]


def example_call(module: torch.nn.Module, examples: Any) -> Call:
    """(positional, keyword) arguments for `module`, arrays as tensors.

    `examples`: a tensor or array, a tuple or list with one entry per positional argument, or a mapping by names of
    parameters. Entries are tensors, arrays, Python values, or containers of them. Raises CuvilError."""
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    if isinstance(examples, Mapping):
        named = {str(name): value for name, value in examples.items()}
    elif isinstance(examples, tuple | list) and not hasattr(examples, "_fields"):
        args = tuple(examples)
    else:
        args = (examples,)
    try:
        bound = inspect.signature(module.forward).bind(*args, **named)
    except TypeError as e:
        hint = "; a dict that is one argument goes into a tuple: ({...},)" if named else ""
        raise CuvilError(f"example inputs don't fit {type(module).__name__}.forward: {e}{hint}") from e
    except ValueError:  # a forward in C
        return _tensors(args), _tensors(named)
    # In the order of the parameters, whatever the order in which they were given.
    return _tensors(bound.args), _tensors(bound.kwargs)


def _tensors(examples: Any) -> Any:
    leaves, spec = pytree.tree_flatten(examples)
    for i, value in enumerate(leaves):
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.kind not in "biufc" or value.dtype.itemsize > 8 * (1 + (value.dtype.kind == "c")):
                raise CuvilError(f"example input {'.'.join(paths_of(spec)[i])} has dtype {value.dtype}; give numbers")
            value = torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
        leaves[i] = value.detach() if isinstance(value, torch.Tensor) else value
        if not isinstance(value, torch.Tensor | Scalar):
            at = ".".join(paths_of(spec)[i])
            raise CuvilError(
                f"example input {at} is a {type(value).__name__}; give tensors, NumPy arrays or Python numbers, in "
                "tuples, lists, dicts or classes registered as pytrees (torch.export.register_dataclass)"
            )
    return pytree.tree_unflatten(leaves, spec)


def paths_of(spec: pytree.TreeSpec) -> list[tuple[str, ...]]:
    """For each leaf its keys, names of fields or positions, from the outside in."""
    return _paths(spec, pytree.tree_unflatten([torch.empty(0)] * spec.num_leaves, spec))


def _paths(spec: pytree.TreeSpec, instance: Any) -> list[tuple[str, ...]]:
    if spec.is_leaf():
        return [()]
    parts = _flat(instance)
    keys = _keys(instance, len(parts))
    branches = zip(keys, spec.children(), parts, strict=True)
    return [(key, *path) for key, child, part in branches for path in _paths(child, part)]


def signature_of(
    exported: ExportedProgram, forward: Callable[..., Any] | None, inputs: Sequence[Tree], outputs: Sequence[Tree]
) -> tuple[Signature, Callable[[Mapping[str, Any]], Any]] | None:
    """The signature, and what rebuilds the model's own classes; None when the program doesn't say how it is called.

    Args:
        forward: of the module, for names and defaults.
        inputs, outputs: a leaf or fixed value for each leaf of the flattened arguments and results.
    """
    ins, outs = exported.call_spec.in_spec, exported.call_spec.out_spec
    if ins is None or outs is None or ins.num_leaves != len(inputs) or outs.num_leaves != len(outputs):
        return None
    branch = _tree(ins, iter(inputs), pytree.tree_unflatten(_stand_ins(inputs), ins))
    assert isinstance(branch, Branch)
    positional, named = branch.items
    assert isinstance(positional, Branch)
    assert isinstance(named, Branch)
    known, given = _parameters(forward), dict(zip(map(str, named.keys), named.items, strict=True))
    slots = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = [*slots[len(positional.items) :], *(p for p in known if p.kind == p.KEYWORD_ONLY)]
    parameters = [_parameter(slot, tree) for slot, tree in zip(slots, positional.items, strict=False)]
    for i, tree in enumerate(positional.items[len(slots) :], len(slots)):
        starred = [f"{p.name}{i - len(slots)}" for p in known if p.kind == p.VAR_POSITIONAL]
        parameters.append(Parameter(*((starred[0], "positional") if starred else (_name(exported, i), "either")), tree))
    parameters += [_parameter(p, given.pop(p.name, None)) for p in others]
    parameters += [Parameter(name, "keyword", tree) for name, tree in given.items()]
    result = _tree(outs, iter(outputs), pytree.tree_unflatten(_stand_ins(outputs), outs))

    def rebuild(values: Mapping[str, Any]) -> Any:
        leaves = [values[leaf.port] if isinstance(leaf, Leaf) else getattr(leaf, "value", None) for leaf in outputs]
        return pytree.tree_unflatten(leaves, outs)

    return Signature(tuple(parameters), result), rebuild


def _stand_ins(leaves: Sequence[Tree]) -> list[Any]:
    """Leaves that constructors of the user's classes take."""
    return [leaf.value if isinstance(leaf, FixedValue) else torch.empty(0) for leaf in leaves]


def _parameters(forward: Callable[..., Any] | None) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(forward).parameters.values()) if forward is not None else []
    except ValueError:
        return []


def _name(exported: ExportedProgram, i: int) -> str:
    called = exported.module_call_graph[0].signature if exported.module_call_graph else None
    names = called.forward_arg_names if called is not None else None
    return names[i] if names and i < len(names) else f"argument{i}"


def _parameter(parameter: inspect.Parameter, tree: Tree | None) -> Parameter:
    kinds = {"POSITIONAL_ONLY": "positional", "KEYWORD_ONLY": "keyword"}
    default = parameter.default
    plain = default is not parameter.empty and isinstance(default, Scalar)
    return Parameter(
        parameter.name, kinds.get(parameter.kind.name, "either"), tree, FixedValue(default) if plain else None
    )


def _tree(spec: pytree.TreeSpec, leaves: Iterator[Tree], instance: Any) -> Tree:
    """`instance`: the container that `spec` describes, with any leaves."""
    if spec.is_leaf():
        return next(leaves)
    kind, children = type(instance), spec.children()
    items = [_tree(child, leaves, part) for child, part in zip(children, _flat(instance), strict=True)]
    if kind in (tuple, list):
        return Branch(kind.__name__, tuple(items))
    if issubclass(kind, dict) and not dataclasses.is_dataclass(kind):
        keys = list(instance)
        if not all(isinstance(k, str | int) for k in keys):
            raise InputError(f"keys of dicts must be strings or integers, not {keys}")
        return Branch("dict", tuple(items), tuple(keys), kind.__name__)
    if hasattr(instance, "_fields"):
        return Branch("namedtuple", tuple(items), tuple(instance._fields), type(instance).__name__)
    keys = _keys(instance, len(items))
    if dataclasses.is_dataclass(instance) and not isinstance(instance, Mapping):  # fields that are None are no children
        found = dict(zip(keys, items, strict=True))
        keys = [f.name for f in dataclasses.fields(instance) if f.name in found or getattr(instance, f.name, 0) is None]
        items = [found.get(key, FixedValue(None)) for key in keys]
    return Branch("object", tuple(items), tuple(keys), kind.__name__)


def _flat(instance: Any) -> list[Any]:
    """The children of one container."""
    children, _ = pytree.tree_flatten(instance, is_leaf=lambda x: x is not instance)
    return list(children)


def _keys(instance: Any, count: int) -> list[str]:
    """Names of the children of a container: keys of a mapping, fields, positions; of another class as registered."""
    if isinstance(instance, Mapping):
        return [str(k) for k in instance]
    if hasattr(instance, "_fields"):
        return [str(name) for name in instance._fields]
    try:
        paths, _ = pytree.tree_flatten_with_path(instance, is_leaf=lambda x: x is not instance)
    except ValueError:  # registered without names
        return [str(i) for i in range(count)]
    keys = [path[0] for path, _ in paths]
    return [str(getattr(k, "name", getattr(k, "key", getattr(k, "idx", i)))) for i, k in enumerate(keys)]

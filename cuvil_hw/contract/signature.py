"""How a model is called by its author's definition: parameters, nested inputs and outputs, fixed values.

A program has a flat list of ports. A signature maps each leaf of the model's arguments and results to a port, so that a
program is called like the model and returns the same structure. It is data, stored in the artifact, and can be applied
without the framework.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil_hw.contract.device import Port
from cuvil_hw.errors import InputError

Scalar = bool | int | float | str | None
KINDS = ("tuple", "list", "dict", "namedtuple", "object")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A place in the structure that is filled by the array of one port."""

    port: str


@dataclass(frozen=True, slots=True)
class FixedValue:
    """A value that the program was compiled for."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Branch:
    """A container. `keys`: of a dict, or field names of a namedtuple or object (a dataclass, or any class registered as
    a pytree). `name`: of the class."""

    kind: str
    items: tuple[Tree, ...]
    keys: tuple[str | int, ...] = ()
    name: str = ""


Tree = Leaf | FixedValue | Branch


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the model's forward.

    Attributes:
        kind: "positional" (only), "keyword" (only) or "either".
        tree: structure of its value; None if the example call left it out.
        default: None if it has none, or one that isn't a plain value.
    """

    name: str
    kind: str
    tree: Tree | None
    default: FixedValue | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    parameters: tuple[Parameter, ...]
    result: Tree

    @property
    def plain(self) -> bool:
        """Whether every argument is one array or a fixed value."""
        return not any(isinstance(p.tree, Branch) for p in self.parameters)


def is_flat(signature: Signature, inputs: Sequence[Port], outputs: Sequence[Port]) -> bool:
    """Whether the model is called with one array for each input, in their order, and returns the outputs as a program
    without a signature does."""
    first, more = signature.parameters[: len(inputs)], signature.parameters[len(inputs) :]
    given = tuple(p.tree for p in first if p.kind != "keyword") == tuple(Leaf(p.name) for p in inputs)
    rest = all(p.default is not None and p.tree in (None, p.default) for p in more)
    leaves = tuple(Leaf(p.name) for p in outputs)
    whole = leaves[0] if len(leaves) == 1 else Branch("tuple", leaves)
    return given and rest and signature.result == whole


def take(signature: Signature, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Values by port, from arguments bound as Python binds them. Raises InputError that names the argument."""
    found: dict[str, Any] = {}
    for parameter, value in _bind(signature.parameters, args, named):
        if parameter.tree is not None:
            _flatten(parameter.tree, value, parameter.name, found)
        elif parameter.default is None or not _same(parameter.default.value, value):
            raise InputError(
                f"argument {parameter.name!r} was left at its default when the model was compiled; "
                "compile it with this argument among the example inputs"
            )
    return found


def flat_calls(signature: Signature, calls: Any, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Each call as one value per port of `names`. A call is a tuple of positional arguments, a mapping by name, or the
    only argument. Raises InputError."""
    if not isinstance(calls, Iterable):
        raise InputError(f"calls of a model with nested arguments are an iterable, not a {type(calls).__name__}")
    keywords = {p.name for p in signature.parameters}
    for call in calls:
        by_name = isinstance(call, Mapping) and set(call) <= keywords
        args = () if by_name else call if isinstance(call, tuple) and not hasattr(call, "_fields") else (call,)
        found = take(signature, args, call if by_name else {})
        yield tuple(found[name] for name in names)


def _bind(
    parameters: Sequence[Parameter], args: Sequence[Any], named: Mapping[str, Any]
) -> Iterator[tuple[Parameter, Any]]:
    positional = [p for p in parameters if p.kind != "keyword"]
    listed = ", ".join(p.name for p in parameters)
    if len(args) > len(positional):
        raise InputError(f"{len(args)} arguments given by position, the model takes {len(positional)}: {listed}")
    bound = dict(zip((p.name for p in positional), args, strict=False))
    keywords = {p.name for p in parameters if p.kind != "positional"}
    for name, value in named.items():
        if name not in keywords:
            raise InputError(f"there is no argument {name!r}; the model takes {listed}")
        if name in bound:
            raise InputError(f"argument {name!r} is given by position and by name; give it once")
        bound[name] = value
    for parameter in parameters:
        if parameter.name in bound:
            yield parameter, bound[parameter.name]
        elif parameter.default is not None:
            yield parameter, parameter.default.value
        elif parameter.tree is not None:
            raise InputError(f"argument {parameter.name!r} is missing; the model takes {listed}")


def _flatten(tree: Tree, value: Any, at: str, found: dict[str, Any]) -> None:
    match tree:
        case Leaf(port):
            if value is None:
                raise InputError(f"argument {at}: None given, an array expected; the model was compiled with one there")
            found[port] = value
        case FixedValue(expected):
            if not _same(expected, value):
                raise InputError(
                    f"argument {at}: the model was compiled for the value {expected!r}, {_shown(value)} was given; "
                    "compile it again for that one"
                )
        case Branch(kind, items):
            for child, part, key in zip(items, _parts(tree, value, at), tree.keys or range(len(items)), strict=True):
                name = f"{at}.{key}" if kind in ("namedtuple", "object") else f"{at}[{key!r}]"
                _flatten(child, part, name, found)


def _parts(tree: Branch, value: Any, at: str) -> list[Any]:
    if tree.kind in ("tuple", "list", "namedtuple"):
        if not isinstance(value, list if tree.kind == "list" else tuple) or len(value) != len(tree.items):
            size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
            what = tree.name or tree.kind
            raise InputError(
                f"argument {at}: a {type(value).__name__}{size} given, a {what} of {len(tree.items)} expected"
            )
        return list(value)
    if isinstance(value, Mapping):
        missing = [k for k in tree.keys if k not in value and not _none(tree, k)]
        extra = [k for k in value if k not in tree.keys]
        if missing or extra:
            wrong = f"{missing[0]!r} is missing" if missing else f"there is no {extra[0]!r}"
            raise InputError(f"argument {at}: {wrong}; its keys are {', '.join(map(repr, tree.keys))}")
        return [value.get(k) for k in tree.keys]
    absent = object()
    parts = [getattr(value, str(k), absent) for k in tree.keys] if tree.kind == "object" else [absent]
    if any(p is absent for p in parts):
        keys = ", ".join(map(repr, tree.keys))
        raise InputError(
            f"argument {at}: a {type(value).__name__} given, {tree.name or 'dict'} or dict with {keys} expected"
        )
    return parts


def _none(tree: Branch, key: str | int) -> bool:
    return tree.items[tree.keys.index(key)] == FixedValue(None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"


def _same(expected: Scalar, value: Any) -> bool:
    """Whether two values are equal and of one type: a model can tell 2, 2.0 and True apart."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is not type(expected):
        return False
    if isinstance(value, float) and isinstance(expected, float) and math.isnan(expected):
        return math.isnan(value)
    return bool(value == expected)


def give(tree: Tree, values: Mapping[str, Any]) -> Any:
    """Values by port → the model's result in Python's own containers: an object becomes a dict, a namedtuple one with
    the same name and fields."""
    match tree:
        case Leaf(port):
            return values[port]
        case FixedValue(value):
            return value
        case Branch(kind, items, keys, name):
            parts = [give(item, values) for item in items]
            if kind == "namedtuple":
                return _named(name, keys)(*parts)
            return dict(zip(keys, parts, strict=True)) if kind in ("dict", "object") else _MAKE[kind](parts)


_MAKE: Mapping[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "list": list}


def _named(name: str, keys: Sequence[str | int]) -> Any:
    return namedtuple(name, [str(k) for k in keys])


def ports(tree: Tree | None) -> Iterator[str]:
    """The ports of all leaves, in order."""
    if isinstance(tree, Leaf):
        yield tree.port
    elif isinstance(tree, Branch):
        for item in tree.items:
            yield from ports(item)


def to_json(signature: Signature) -> dict[str, Any]:
    parameters = [
        {
            "name": p.name,
            "kind": p.kind,
            "tree": None if p.tree is None else _tree_json(p.tree),
            "default": None if p.default is None else _tree_json(p.default),
        }
        for p in signature.parameters
    ]
    return {"parameters": parameters, "result": _tree_json(signature.result)}


def _tree_json(tree: Tree) -> dict[str, Any]:
    match tree:
        case Leaf(port):
            return {"port": port}
        case FixedValue(value):
            return {"value": value}
        case Branch(kind, items, keys, name):
            return {"kind": kind, "items": [_tree_json(i) for i in items], "keys": list(keys), "name": name}


def from_json(data: Any) -> Signature:
    """The inverse of `to_json`. Raises ValueError."""
    try:
        return Signature(tuple(_parameter(p) for p in data["parameters"]), _tree(data["result"]))
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"signature: malformed ({type(e).__name__}: {e})") from e


def _parameter(data: Any) -> Parameter:
    tree = None if data["tree"] is None else _tree(data["tree"])
    default = None if data["default"] is None else _tree(data["default"])
    if data["kind"] not in ("positional", "keyword", "either") or not isinstance(default, FixedValue | None):
        raise ValueError(f"signature: parameter {data['name']!r} is malformed")
    return Parameter(str(data["name"]), data["kind"], tree, default)


def _tree(data: Any) -> Tree:
    if "port" in data:
        return Leaf(str(data["port"]))
    if "value" in data:
        if not isinstance(data["value"], Scalar):
            raise ValueError(f"signature: {data['value']!r} is no plain value")
        return FixedValue(data["value"])
    items, keys = tuple(_tree(i) for i in data["items"]), tuple(data["keys"])
    kind, name = data["kind"], str(data["name"])
    if kind not in KINDS or not all(isinstance(k, str | int) for k in keys):
        raise ValueError(f"signature: container {kind!r} is malformed")
    if len(keys) != (0 if kind in ("tuple", "list") else len(items)):
        raise ValueError(f"signature: a {kind} of {len(items)} with {len(keys)} keys")
    if kind == "namedtuple":
        _named(name, keys)  # raises ValueError for names that aren't identifiers
    return Branch(kind, items, keys, name)

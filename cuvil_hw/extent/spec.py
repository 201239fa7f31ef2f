"""What a user says of open shapes → the extents of each input, and the domain of their dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.constraint import Constraint
from cuvil_hw.extent.dim import Dim, Open
from cuvil_hw.extent.domain import Domain, Shape, as_expr

# By input: every extent, or the open ones by axis. By name of a dimension in an ONNX file: one extent.
Given = Mapping[str | int, Sequence[Any] | Mapping[int, Any] | Dim | Open]


def is_open(shapes: Any) -> bool:
    """Whether `shapes` has a dimension in it, anywhere."""
    if isinstance(shapes, Dim | Open):
        return True
    if isinstance(shapes, Mapping):
        return any(map(is_open, shapes.values()))
    return isinstance(shapes, list | tuple) and any(map(is_open, shapes))


def domain_of(shapes: Any, constraints: Iterable[str | Constraint], known: Sequence[Dim] = ()) -> Domain:
    """Every dimension in `shapes`, in order, after the `known` ones. Raises CuvilError if one name is used for two
    different dimensions."""
    dims: dict[str, Dim] = {d.name: d for d in known}
    for dim in _dims(shapes):
        if dims.setdefault(dim.name, dim) != dim:
            raise CuvilError(f"two different dimensions are called {dim.name}: {dims[dim.name]} and {dim}")
    rules = tuple(c if isinstance(c, Constraint) else Constraint(c) for c in _listed(constraints))
    if rules and not dims:
        raise CuvilError(f"constraint {rules[0]}: no shape has an open dimension; give shapes={{'input': (Dim, …)}}")
    return Domain(tuple(dims.values()), rules)


def _listed(constraints: Any) -> Iterable[str | Constraint]:
    return (constraints,) if isinstance(constraints, str | Constraint) else constraints


def _dims(shapes: Any) -> Iterable[Dim]:
    match shapes:
        case Dim():
            yield shapes
        case Open(dims=dims):
            yield from dims
        case Mapping():
            for value in shapes.values():
                yield from _dims(value)
        case list() | tuple():
            for value in shapes:
                yield from _dims(value)


def shape_of(given: Any, shape: Sequence[int], what: str) -> Shape:
    """Extents of an input whose example or file has `shape`. Raises CuvilError that says which one is wrong."""
    extents: list[Any] = list(shape)
    if isinstance(given, Mapping):
        for axis, extent in given.items():
            if not isinstance(axis, int) or not -len(extents) <= axis < len(extents):
                raise CuvilError(f"{what}: there is no axis {axis!r}; it has {len(extents)} dimensions")
            extents[axis] = extent
    elif isinstance(given, list | tuple):
        extents = list(given)
    else:
        raise CuvilError(f"{what}: give every extent, as in (B, 3, 32, 32), or the open ones by axis, as in {{0: B}}")
    if len(extents) != len(shape):
        raise CuvilError(f"{what}: {len(extents)} extents given, the input has {len(shape)} dimensions: {tuple(shape)}")
    found = []
    for axis, (extent, number) in enumerate(zip(extents, shape, strict=True)):
        wanted = as_expr(Open.of(extent).expr)
        if isinstance(wanted, int) and wanted != number:
            raise CuvilError(f"{what}: axis {axis} is {wanted}, the model's example or file has {number}")
        found.append(wanted)
    return tuple(found)

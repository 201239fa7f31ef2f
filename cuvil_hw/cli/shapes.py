"""`--shape`, `--dim` and `--constraint` of the command line → shapes and constraints of `cuvil.compile`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any

import typer

from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.constraint import parse_expr
from cuvil_hw.extent.dim import Dim, Open

FEW = 8  # programs
_BY_AXIS = re.compile(r"(.+)\[(\d+)\]\Z")


def parse_shapes(shape: Sequence[str], dim: Sequence[str]) -> dict[Any, Any]:
    """`--shape x=1,3,H,2*W` and `--dim`: `H=32:64` (a dimension of the file, or of a --shape), `x[0]=1:8` (an axis of
    an input), `batch=1:64:1,8` (with the sizes to compile ahead). Raises BadParameter."""
    named = few_listed(dict(map(_dim, dim)))
    if len(named) != len(dim):
        raise typer.BadParameter("--dim gives one name twice")
    used: set[str] = set()
    shapes: dict[Any, Any] = dict(_shape(text, named, used) for text in shape)
    for name, opened in named.items():
        at = _BY_AXIS.match(name)
        if at is not None:
            shapes.setdefault(at[1], {})
            if not isinstance(shapes[at[1]], dict):
                raise typer.BadParameter(f"--dim {name}: the input's --shape is given, too; name the dimension there")
            shapes[at[1]][int(at[2])] = opened
        elif name not in used:
            shapes[name] = opened
    return shapes


def few_listed(dims: dict[str, Dim]) -> dict[str, Dim]:
    """All sizes of dimensions without a list, if they are few together: an artifact only runs sizes that were
    compiled."""
    every = {n: d.sizes or (range(d.min, d.max + 1) if d.max is not None else ()) for n, d in dims.items()}
    if not 0 < prod(map(len, every.values())) <= FEW:
        return dims
    return {n: replace(d, sizes=tuple(every[n])) for n, d in dims.items()}


def _dim(text: str) -> tuple[str, Dim]:
    name, _, rest = text.rpartition("=")
    bounds, _, sizes = rest.partition(":")[2].partition(":")
    low = rest.partition(":")[0]
    try:
        listed = tuple(int(s) for s in sizes.split(",")) if sizes else ()
        if not name:
            raise ValueError
        # The name in the file may be none that a constraint could use.
        return name, Dim(re.sub(r"\W", "_", name.replace("]", "")), int(low), int(bounds) if bounds else None, listed)
    except ValueError:
        raise typer.BadParameter(
            f"--dim is {text!r}, expected name=min:max such as batch=1:64, or batch=1:64:1,8 to compile 1 and 8 ahead"
        ) from None
    except CuvilError as e:
        raise typer.BadParameter(f"--dim {text!r}: {e}") from e


def _shape(text: str, dims: dict[str, Dim], used: set[str]) -> tuple[str, tuple[Any, ...]]:
    """`name=1,3,224,224`; extents may compute with names of `dims`. Raises BadParameter."""
    name, _, extents = text.rpartition("=")
    try:
        exprs = [parse_expr(extent) for extent in extents.split(",")]
    except CuvilError:
        exprs = []
    if not name or not exprs:
        raise typer.BadParameter(f"--shape is {text!r}, expected name=extents such as input=1,3,224,224")
    found: list[Any] = []
    for expr in exprs:
        if unknown := sorted(expr.symbols - dims.keys()):
            raise typer.BadParameter(f"--shape {text!r}: give --dim {unknown[0]}=min:max, too")
        used |= expr.symbols
        parts = [Open.of(dims[s]) for s in sorted(expr.symbols)]
        opened = reduce(lambda a, b: Open(expr, (*a.dims, *b.dims)), parts, Open(expr, ()))
        found.append(expr.constant if expr.constant is not None else opened)
    return name, tuple(found)

"""The domain of a program: all sizes that it accepts. Dimensions with bounds, rules between them, and how inputs
determine them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from cuvil_hw.errors import CuvilError, InputError
from cuvil_hw.extent.constraint import Constraint
from cuvil_hw.extent.dim import Dim
from cuvil_hw.extent.polynomial import Polynomial, Whole, whole

Sizes = Mapping[str, int]
Shape = tuple[Whole, ...]
MOST_LISTED = 64


@dataclass(frozen=True)
class Domain:
    """`dims` in the order in which they are first used."""

    dims: tuple[Dim, ...]
    constraints: tuple[Constraint, ...] = ()

    def refusal(self, sizes: Sizes) -> str | None:
        """The rule that `sizes` break, in words; None if they break none."""
        for dim in self.dims:
            if not dim.holds(sizes[dim.name]):
                upper = "no upper bound" if dim.max is None else f"at most {dim.max}"
                return f"{dim.name} = {sizes[dim.name]} is outside its bounds: at least {dim.min}, {upper}"
        for constraint in self.constraints:
            if not constraint.rule.holds(sizes):
                given = ", ".join(f"{n} = {sizes[n]}" for n in sorted(constraint.rule.symbols))
                return f"the constraint {constraint} does not hold for {given}"
        return None

    def key(self, sizes: Sizes) -> str:
        """`B=8,S=64`: identifies sizes in file names and messages."""
        return ",".join(f"{d.name}={sizes[d.name]}" for d in self.dims)

    def listed(self, others: Sizes) -> tuple[dict[str, int], ...]:
        """The sizes to compile ahead: every combination of listed sizes that satisfies the rules. A dimension without a
        list gets its size in `others`. Raises CuvilError for too many combinations, or if none is left."""
        sizes = [d.sizes or (others[d.name],) for d in self.dims]
        count = prod(map(len, sizes))
        if count > MOST_LISTED:
            raise CuvilError(f"the listed sizes make {count} combinations; at most {MOST_LISTED} are compiled ahead")
        every = [dict(zip((d.name for d in self.dims), p, strict=True)) for p in product(*sizes)]
        kept = tuple(sizes for sizes in every if self.refusal(sizes) is None)
        if not kept:
            raise CuvilError(f"no combination of the listed sizes keeps the constraints: {self.refusal(every[0])}")
        return kept

    def __str__(self) -> str:
        bounds = [f"{d.min} ≤ {d.name}" + (f" ≤ {d.max}" if d.max is not None else "") for d in self.dims]
        return ", ".join([*bounds, *map(str, self.constraints)])


def show(shape: Sequence[Whole]) -> str:
    """`(B, 3, 2*S)`"""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def solvable(shapes: Mapping[str, Shape], domain: Domain) -> None:
    """Raises CuvilError unless the size of every dimension can be computed from the extents of the inputs."""
    found = {line[0] for shape in shapes.values() for e in shape if (line := whole(e).linear()) is not None}
    used = frozenset().union(*(whole(e).symbols for shape in shapes.values() for e in shape))
    for dim in domain.dims:
        if dim.name not in found:
            why = "no input has it" if dim.name not in used else "no input has it alone (as S, 2*S or S + 1)"
            raise CuvilError(f"dimension {dim.name} can't be told from the inputs: {why}")
    for constraint in domain.constraints:
        if unknown := sorted(constraint.rule.symbols - {d.name for d in domain.dims}):
            names = ", ".join(d.name for d in domain.dims)
            raise CuvilError(f"constraint {constraint}: there is no dimension {unknown[0]}; there are: {names}")


def bind(shapes: Mapping[str, Shape], given: Mapping[str, Sequence[int]], domain: Domain) -> dict[str, int]:
    """The size of every dimension, from the shapes of the inputs of one call.

    Raises InputError that names the input, the position, the extent and the rule that it breaks."""
    sizes: dict[str, int] = {}
    whence: dict[str, str] = {}
    for name, shape in shapes.items():
        if len(given[name]) != len(shape):
            raise InputError(f"input {name!r}: has shape {tuple(given[name])}, expected {show(shape)}")
        for at, (extent, wanted) in enumerate(zip(given[name], shape, strict=True)):
            line = whole(wanted).linear()
            if line is None or line[0] in sizes:
                continue
            symbol, a, b = line
            if (extent - b) % a:
                where = f"input {name!r}, dimension {at}"
                raise InputError(f"{where}: {extent} is not {wanted} for any {symbol}; shape {show(shape)}")
            sizes[symbol] = (extent - b) // a
            whence[symbol] = f"input {name!r}, dimension {at} ({wanted}) = {extent}"
    for name, shape in shapes.items():
        for at, (extent, wanted) in enumerate(zip(given[name], shape, strict=True)):
            expected = whole(wanted).value(sizes)
            if expected != extent:
                because = "; ".join(whence[s] for s in sorted(whole(wanted).symbols))
                raise InputError(
                    f"input {name!r}, dimension {at}: has {extent}, expected {expected}"
                    + (f" = {wanted}, as {because}" if because else f"; the shape is {show(shape)}")
                )
    refusal = domain.refusal(sizes)
    if refusal is not None:
        raise InputError(f"{refusal} ({'; '.join(whence[d.name] for d in domain.dims)})")
    return sizes


def concrete(shape: Sequence[Whole], sizes: Sizes) -> tuple[int, ...]:
    """The shape at these sizes."""
    return tuple(whole(e).value(sizes) for e in shape)


def as_expr(extent: Whole) -> Whole:
    """The extent; a plain int if its expression is constant."""
    if isinstance(extent, Polynomial) and extent.constant is not None:
        return extent.constant
    return extent

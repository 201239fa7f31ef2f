"""A model with open shapes: its inputs, and functions that examine it at given sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, StringAttr

from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.domain import Domain, Shape, Sizes, show
from cuvil_hw.extent.explore import Look
from cuvil_hw.ir.program import Program


@dataclass(frozen=True)
class OpenModel:
    """A model with open shapes, from any front end.

    Attributes:
        inputs: open shapes by name.
        look: examines the model at some sizes.
        program: its level1 program at sizes in the region of a look, made from that look's source.
        example: sizes of the example inputs, if there are any.
        plain: its level1 program at some sizes, imported with plain numbers; None if `program` already does that.
    """

    name: str
    inputs: Mapping[str, Shape]
    domain: Domain
    look: Callable[[Sizes], Look]
    program: Callable[[Sizes, Any], Program]
    example: Sizes | None = None
    plain: Callable[[Sizes], Program] | None = None


def symbolic_text(program: Program, inputs: Mapping[str, Shape], domain: Domain, sizes: Sizes) -> str:
    """Level1 text at `sizes`, with the open shapes as attributes: `dims` of the function, `shapes` of operations."""
    attributes = program.main.attributes
    bounds = [f"{d.min} <= {d.name}" + (f" <= {d.max}" if d.max is not None else "") for d in domain.dims]
    attributes["dims"] = ArrayAttr([StringAttr(rule) for rule in (*bounds, *(c.text for c in domain.constraints))])
    attributes["sizes"] = StringAttr(domain.key(sizes))
    attributes["shapes"] = ArrayAttr([StringAttr(show(inputs[n])) for n, _ in program.inputs])
    return program.text()


def refuse_state(program: Program) -> None:
    """Raises CuvilError for a program with state: each size has its own program, and they would not share it."""
    if program.calling.states:
        names = ", ".join(s.input for s in program.calling.states)
        raise CuvilError(f"{program.name} keeps state between calls ({names}); compile it with fixed shapes")

"""ONNX models with open shapes: the importer runs with extents that remember their dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.dim import Dim, Open
from cuvil_hw.extent.domain import Shape, Sizes, solvable
from cuvil_hw.extent.explore import Look
from cuvil_hw.extent.polynomial import whole
from cuvil_hw.extent.size import recording, sized
from cuvil_hw.extent.spec import Given, domain_of
from cuvil_hw.frontend.onnx.importer import load_onnx
from cuvil_hw.frontend.onnx.load import read
from cuvil_hw.frontend.shared.open_model import OpenModel, refuse_state, symbolic_text
from cuvil_hw.ir.program import Program


def open_onnx(
    model: Any,
    shapes: Given,
    constraints: Sequence[Any] = (),
    name: str | None = None,
    constants: Mapping[str, Any] | None = None,
    max_trips: int | None = None,
) -> OpenModel:
    """`shapes`: by name of an input, every extent or the open ones by axis; by name of a dimension in the file
    (dim_param), one extent. Raises CuvilError."""
    proto, label = read(model)
    title = name or (Path(model).stem if isinstance(model, str | Path) else proto.graph.name or "model")
    inputs = _shapes(proto, label, shapes, set(constants or ()))
    domain = domain_of(shapes, constraints)
    solvable(inputs, domain)

    def at(sizes: Sizes, open_: bool) -> Program:
        given = {
            n: tuple(sized(whole(e).value(sizes), e) if open_ else whole(e).value(sizes) for e in shape)
            for n, shape in inputs.items()
        }
        program = load_onnx(proto, shapes=given, constants=constants, max_trips=max_trips)
        refuse_state(program)
        return Program(program.module, program.constants, title, program.notes, program.calling)

    def look(sizes: Sizes) -> Look:
        with recording() as assumptions:
            program = at(sizes, True)
        outputs = tuple(
            (n, shape, kind.dtype) for (n, kind), shape in zip(program.outputs, program.notes["extents"], strict=True)
        )
        text = symbolic_text(program, inputs, domain, sizes)
        return Look(sizes, tuple(assumptions.found.values()), outputs, None, text)

    return OpenModel(title, inputs, domain, look, lambda sizes, _: at(sizes, False))


def _shapes(proto: onnx.ModelProto, label: str, shapes: Given, constants: set[str]) -> dict[str, Shape]:
    """Extents of every input, those that the file names replaced."""
    initialized = {t.name for t in proto.graph.initializer} | constants
    infos = {i.name: i.type.tensor_type for i in proto.graph.input if i.name not in initialized}
    params = {d.dim_param for t in infos.values() for d in t.shape.dim if d.dim_param}
    if unknown := [k for k in shapes if k not in infos and k not in params]:
        named = f"its named dimensions are {', '.join(sorted(params))}" if params else "it names no dimension"
        first = next(iter(infos), "x")
        hint = f"open one by its axis, as in shapes={{{first!r}: {{0: B}}}} or --dim '{first}[0]=1:8'"
        raise CuvilError(f"{label}: shapes= names {unknown[0]!r}; its inputs are {', '.join(infos)}, {named}; {hint}")
    found: dict[str, Shape] = {}
    for name, kind in infos.items():
        what = f"{label}: shapes[{name!r}]"
        declared: list[Any] = [_extent(d, shapes, set(infos), i) for i, d in enumerate(kind.shape.dim)]
        given = shapes.get(name)
        if given is None:
            wanted: list[Any] = declared
        elif isinstance(given, Mapping):
            wanted = list(declared)
            for axis, extent in given.items():
                if not isinstance(axis, int) or not -len(declared) <= axis < len(declared):
                    raise CuvilError(f"{what}: there is no axis {axis!r}; it has {len(declared)} dimensions")
                wanted[axis] = extent
        else:
            wanted = list(given) if isinstance(given, list | tuple) else []
            if kind.HasField("shape") and len(wanted) != len(declared):
                raise CuvilError(f"{what}: {len(wanted)} extents given, the input has {len(declared)} dimensions")
        if open_ := [i for i, e in enumerate(wanted) if e is None]:
            raise CuvilError(f"{what}: axis {open_[0]} is open in the file; give it an extent or a cuvil.Dim")
        shape = [Open.of(e).expr for e in wanted]
        for i, (e, number) in enumerate(zip(shape, declared or [None] * len(shape), strict=True)):
            # A batch that the file fixes, or that nobody names, may be another: shape rules tell what takes it.
            free = not isinstance(number, int) or (i == 0 and not kind.shape.dim[0].dim_param)
            if not free and e.constant != number:
                raise CuvilError(f"{what}: axis {i} is {e}, but the file fixes it to {number}")
        found[name] = tuple(e if e.constant is None else e.constant for e in shape)
    return found


def _extent(dim: Any, shapes: Given, inputs: set[str], axis: int) -> Any:
    """The extent from the file, or from the caller by the file's name for it; an unnamed open batch is 1, as with fixed
    shapes."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    if dim.dim_param in shapes and dim.dim_param not in inputs:
        given = shapes[dim.dim_param]
        return given if isinstance(given, Dim | Open | int) else None
    return 1 if axis == 0 and not dim.dim_param else None

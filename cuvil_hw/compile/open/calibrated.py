"""Calibration of programs with open shapes. Statistics are collected once, at the sizes of the data, and used for every
size, so that all programs have the same scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cuvil_hw.errors import InputError
from cuvil_hw.extent.domain import bind, show
from cuvil_hw.frontend.shared.open_model import OpenModel
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.quantize.calibrate import Statistics, digest


def sizes_of(calibration: Any, model: OpenModel) -> dict[str, int]:
    """The sizes of the calibration arrays: (N, *shape of one input), or one batch with the input's rank. Raises
    InputError."""
    names = list(model.inputs)
    if isinstance(calibration, Mapping):
        arrays = [calibration.get(n) for n in names]
    elif isinstance(calibration, tuple | list) and len(calibration) == len(names) and len(names) > 1:
        arrays = list(calibration)
    else:
        arrays = [calibration]
    shapes = [tuple(map(int, a.shape)) for a in arrays if a is not None and hasattr(a, "shape")]
    if len(shapes) != len(names):
        raise InputError(
            f"calibration of a program with open shapes is an array for each input ({', '.join(names)}), each "
            "(N, *shape of one input)"
        )
    ranks = [len(model.inputs[n]) for n in names]
    tries: list[list[tuple[int, ...]]] = []
    if all(len(s) == r + 1 for s, r in zip(shapes, ranks, strict=True)):
        tries.append([s[1:] for s in shapes])
    if [len(s) for s in shapes] == ranks:
        tries += [shapes, *([(k, *s[1:]) for s in shapes] for k in (1, 2))]
    problem: InputError | None = None
    for given in tries:
        try:
            return bind(model.inputs, dict(zip(names, given, strict=True)), model.domain)
        except InputError as e:
            problem = problem or e
    wanted = ", ".join(f"{n} {show(s)}" for n, s in model.inputs.items())
    raise InputError(f"calibration arrays of shapes {', '.join(map(str, shapes))} don't fit {wanted}: {problem}")


def moved(statistics: Statistics, first: Program, other: Program) -> Statistics:
    """The statistics of `first` for `other`, the same model at other sizes. Raises InputError if it has other ops."""
    if _outline(first) != _outline(other):
        raise InputError(
            f"{other.name}: at other sizes the model has other operations, so that its calibration can't be shared; "
            "compile each size with its own data"
        )
    return replace(statistics, program=digest(other))


def _outline(program: Program) -> Sequence[tuple[str, str]]:
    return [(op.name, level1.loc_of(op)) for op in program.ops()]

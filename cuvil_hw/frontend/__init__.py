"""Front ends: models → level1 programs. No framework is imported until a model of its kind is given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuvil_hw.contract.imported import imported_class, is_instance
from cuvil_hw.errors import CuvilError, ToolNotFound, pip_install

if TYPE_CHECKING:
    from cuvil_hw.frontend.shared.open_model import OpenModel
    from cuvil_hw.ir.program import Program

_ACCEPTED = (
    "a torch.nn.Module (with example inputs), a torch.export.ExportedProgram, an onnx.ModelProto "
    "or the path of an .onnx file"
)


def load(
    model: Any,
    example_inputs: Any = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    max_trips: int | None = None,
) -> Program:
    """Import a model as a level1 program.

    Args:
        model: a torch.nn.Module, ExportedProgram, onnx.ModelProto or the path of an .onnx file.
        example_inputs: for an nn.Module, a tensor or array, a tuple with one entry per positional argument of its
            forward, or a mapping by parameter name; entries may be nested. For ONNX, arrays that fix shapes left open.
        shapes: for ONNX files and ExportedPrograms, the shape of each input that the model leaves open.
        constants: for ONNX, numbers or arrays by input name; these inputs become constants of the program.
        max_trips: number of iterations compiled for loops whose end depends on values.

    Raises:
        Unsupported: parts of the model can't be compiled; lists all of them.
        ToolNotFound: the framework is not installed.
        CuvilError: any other kind of model, or wrong arguments.
    """
    check_max_trips(max_trips)
    kind = _kind(model)
    if kind == "program":
        return model  # type: ignore[no-any-return]
    if kind == "torch":
        if constants:
            raise CuvilError("constants is for ONNX models; give a torch module that holds the value itself")
        try:
            from cuvil_hw.frontend.torch.export import load_torch
        except ModuleNotFoundError as e:
            raise _missing(e, "torch", "import a PyTorch model") from e
        return load_torch(model, example_inputs, shapes=static_shapes(shapes), max_trips=max_trips)
    try:
        from cuvil_hw.frontend.onnx import load_onnx
        from cuvil_hw.frontend.onnx.example import example_shapes
    except ModuleNotFoundError as e:
        raise _missing(e, "onnx", "import an ONNX model") from e
    fixed = static_shapes(shapes)
    if example_inputs is not None:
        fixed = example_shapes(model, example_inputs, constants or ()) | fixed
    return load_onnx(model, shapes=fixed, constants=constants, max_trips=max_trips)


def check_max_trips(trips: Any) -> None:
    """Raises CuvilError unless `trips` is None or a positive int."""
    if trips is not None and (not isinstance(trips, int) or isinstance(trips, bool) or trips < 1):
        raise CuvilError(f"max_trips is {trips!r}; a loop's bound is a positive number of trips")


def static_shapes(shapes: Any) -> dict[str, tuple[int, ...]]:
    """`shapes` with every extent a plain int; {} for None. Raises CuvilError for anything but whole numbers by input
    name, such as text, fractions and truth values."""
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping):
        raise CuvilError(f"shapes is {shapes!r}; give a shape for each input, as in {{'input': (1, 3, 32, 32)}}")
    found = {}
    for name, shape in shapes.items():
        what = f"shapes[{name!r}] is {shape!r}"
        if not isinstance(name, str) or isinstance(shape, str | bytes | Mapping):
            raise CuvilError(f"{what}; give whole numbers by input name, as in {{'input': (1, 3, 32, 32)}}")
        try:
            extents = list(shape)
            if any(isinstance(e, bool) for e in extents):
                raise TypeError
            found[name] = tuple(map(index, extents))
        except TypeError:
            raise CuvilError(f"{what}; every extent is a whole number, as in (1, 3, 32, 32)") from None
    return found


def opens_shapes(model: Any, example_inputs: Any, shapes: Any, constraints: Any) -> bool:
    """Whether to compile for open shapes: `shapes` holds dimensions, constraints are given, or the model is an
    ExportedProgram with symbolic sizes that nothing fixes."""
    from cuvil_hw.extent.spec import is_open

    if is_open(shapes) or constraints:
        return True
    exported = is_instance(model, "torch.export", "ExportedProgram")
    return exported and bool(model.range_constraints) and example_inputs is None and not shapes


def load_open(
    model: Any,
    example_inputs: Any = None,
    shapes: Any = None,
    constraints: Any = (),
    name: str | None = None,
    constants: Mapping[str, Any] | None = None,
    max_trips: int | None = None,
) -> OpenModel:
    """Import a model with open shapes (cuvil.Dim). Arguments as in `load`, `constraints` and `name` as in
    `cuvil.compile`. Raises CuvilError for contradictory shapes, ToolNotFound."""
    if _kind(model) == "program":
        raise CuvilError("an imported Program has fixed shapes; open those of the model that it was imported from")
    if _kind(model) == "torch":
        if constants:
            raise CuvilError("constants is for ONNX models; give a torch module that holds the value itself")
        try:
            from cuvil_hw.frontend.torch.open import open_torch
        except ModuleNotFoundError as e:
            raise _missing(e, "torch", "import a PyTorch model") from e
        return open_torch(model, example_inputs, shapes or {}, constraints, name, max_trips)
    if example_inputs is not None:
        raise CuvilError("example inputs fix the shapes of an ONNX model; give those that stay open by name instead")
    try:
        from cuvil_hw.frontend.onnx.open import open_onnx
    except ModuleNotFoundError as e:
        raise _missing(e, "onnx", "import an ONNX model") from e
    return open_onnx(model, shapes or {}, constraints, name, constants, max_trips)


def _kind(model: Any) -> str:
    """ "torch" or "onnx". An object of a framework's class can only exist where the framework is imported already."""
    if is_instance(model, "cuvil_hw.ir.program", "Program"):
        return "program"
    if is_instance(model, "torch.nn", "Module") or is_instance(model, "torch.export", "ExportedProgram"):
        return "torch"
    if is_instance(model, "onnx", "ModelProto"):
        return "onnx"
    if isinstance(model, str | os.PathLike):
        suffix = Path(model).suffix
        if suffix == ".onnx":
            return "onnx"
        hint = ""
        if suffix in (".pt", ".pth", ".ckpt", ".bin"):
            hint = "; such a file holds weights: build the module in Python, load_state_dict, give the module"
        elif suffix == ".pt2":
            hint = "; give the result of torch.export.load(path), if you trust the file: loading may run what it holds"
        raise CuvilError(f"can't load {str(model)!r}: a model is {_ACCEPTED}{hint}")
    module = imported_class("torch.nn", "Module")
    if module is not None and isinstance(model, type) and issubclass(model, module):
        raise CuvilError(f"{model.__name__} is a class; give an instance: {model.__name__}(…)")
    raise CuvilError(f"can't load a {type(model).__name__}: a model is {_ACCEPTED}")


def _missing(error: ModuleNotFoundError, extra: str, purpose: str) -> ToolNotFound:
    """The error that says what to install for a missing package; an import error inside Cuvil itself is passed on as it
    is."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "cuvil_hw"):
        raise error
    extra = "compiler" if package in ("xdsl", "ortools") else extra
    return ToolNotFound(f"Python package {package}", purpose, pip_install(extra))


__all__ = ["check_max_trips", "load", "load_open", "opens_shapes"]

"""Static types of a model's inputs: what the file says, what the caller says, else a batch of 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from cuvil_hw.errors import CuvilError, Refusal, Unsupported
from cuvil_hw.frontend.onnx.node import DTYPES, element_name
from cuvil_hw.types import TensorType

Dim = int | str | None  # an extent, a named unknown, a nameless unknown


def input_types(
    graph: onnx.GraphProto, name: str, shapes: Mapping[str, Sequence[int]]
) -> tuple[tuple[tuple[str, TensorType], ...], tuple[str, ...]]:
    """((input name, type), …) and what had to be assumed, in words.

    Inputs that have an initializer are constants and not listed. `shapes` gives whole shapes by input name; a named
    dimension that it fixes holds for every input. Raises CuvilError when a dimension stays unknown.
    """
    constants = {t.name for t in graph.initializer}
    infos = [i for i in graph.input if i.name not in constants]
    dtypes = _element_types(infos, name)
    declared = {i.name: _dims(i) for i in infos}
    if unknown := [n for n in shapes if n not in declared]:
        names = [", ".join(map(repr, n)) for n in (unknown, declared)]
        raise CuvilError(f"{name}: shapes= names {names[0]}; the inputs are {names[1]}")
    symbols: dict[str, int] = {}
    fixed: dict[str, list[Dim]] = {}
    for input_name, stated in declared.items():
        given = shapes.get(input_name)
        fixed[input_name] = list(stated or []) if given is None else _merge(input_name, stated, given, symbols, name)
    assumed = []
    for input_name, dims in fixed.items():
        if dims and not isinstance(dims[0], int) and dims[0] not in symbols:
            symbol = dims[0]
            dims[0] = 1
            if symbol:
                symbols[symbol] = 1
            assumed.append(f"input {input_name!r}: dimension 0 ({symbol or 'unnamed'}) = 1")
    missing = []
    types: list[tuple[str, TensorType]] = []
    for input_name, dims in fixed.items():
        if declared[input_name] is None and input_name not in shapes:
            missing.append(f"{input_name!r} (no shape at all)")
            continue
        extents = [symbols.get(d) if isinstance(d, str) else d for d in dims]
        open_dims = [i for i, e in enumerate(extents) if e is None]
        missing += [f"{input_name!r} dimension {i} ({dims[i] or 'unnamed'})" for i in open_dims]
        types.append((input_name, TensorType(tuple(e or 0 for e in extents), dtypes[input_name])))
    if missing:
        hint = "pass shapes={input name: (extent, …)}"
        raise CuvilError(f"{name}: input extents are unknown: {', '.join(missing)}; {hint}")
    return tuple(types), tuple(assumed)


def _element_types(infos: Sequence[onnx.ValueInfoProto], name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    refusals = []

    def refuse(input_name: str, reason: str) -> None:
        refusals.append(Refusal("model input", reason, 1, (input_name,)))

    for info in infos:
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            refuse(info.name, f"its kind is {(kind or 'not given').removesuffix('_type')}; only tensors are supported")
        elif info.type.tensor_type.elem_type not in DTYPES:
            refuse(info.name, f"element type {element_name(info.type.tensor_type.elem_type)} is not supported")
        else:
            found[info.name] = DTYPES[info.type.tensor_type.elem_type]
    if refusals:
        raise Unsupported(refusals, name)
    return found


def _dims(info: onnx.ValueInfoProto) -> tuple[Dim, ...] | None:
    """None: the file doesn't even say the rank."""
    if not info.type.tensor_type.HasField("shape"):
        return None
    dims: list[Dim] = []
    for dim in info.type.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(int(dim.dim_value))
        else:  # some exporters write -1 for unknown
            dims.append(dim.dim_param or None)
    return tuple(dims)


def _merge(
    input_name: str, dims: Sequence[Dim] | None, given: Sequence[int], symbols: dict[str, int], name: str
) -> list[Dim]:
    """The caller's shape, checked against the file's; binds named dimensions."""
    shape = [int(g) for g in given]
    where = f"{name}: shapes[{input_name!r}] = {tuple(shape)}"
    if any(e < 0 for e in shape):
        raise CuvilError(f"{where}: extents can't be negative")
    if dims is not None and len(dims) != len(shape):
        raise CuvilError(f"{where}: the input has {len(dims)} dimensions: {_show(dims)}")
    for dim, extent in zip(dims or (), shape, strict=False):
        if isinstance(dim, int) and dim != extent:
            raise CuvilError(f"{where}: the model fixes it to {_show(dims or ())}")
        if isinstance(dim, str) and symbols.setdefault(dim, extent) != extent:
            raise CuvilError(f"{where}: dimension {dim!r} is already {symbols[dim]}")
    return list(shape)


def _show(dims: Sequence[Dim]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in dims) + ")"

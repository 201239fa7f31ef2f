"""Static types of a model's inputs, from the file and the caller; an open batch is taken as 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index

import numpy as np
import onnx

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError, Refusal, Unsupported
from cuvil_hw.frontend.onnx.node import DTYPES, Array, element_name
from cuvil_hw.types import TensorType

Dim = int | str | None  # an extent, a named unknown, a nameless unknown


def input_types(
    graph: onnx.GraphProto,
    name: str,
    shapes: Mapping[str, Sequence[int]],
    constants: Mapping[str, Array],
) -> tuple[tuple[tuple[str, TensorType], ...], tuple[str, ...]]:
    """((input name, type), …), and a list of assumptions in words.

    Inputs that have an initializer are constants and not listed. `shapes` gives whole shapes by input name, and so do
    the arrays of `constants`; a named dimension that they fix holds for every input. Raises CuvilError when a dimension
    stays unknown.
    """
    initialized = {t.name for t in graph.initializer}
    infos = [i for i in graph.input if i.name not in initialized]
    elements = _element_types(infos, name)
    declared = {i.name: _dims(i) for i in infos}
    for option, named in (("shapes", shapes), ("constants", constants)):
        if unknown := [n for n in named if n not in declared]:
            names = [", ".join(map(repr, n)) for n in (unknown, declared)]
            raise CuvilError(f"{name}: {option}= names {names[0]}; the inputs are {names[1]}")
    if twice := [n for n in constants if n in shapes]:
        raise CuvilError(f"{name}: input {twice[0]!r} is in shapes= and in constants=; an array has its own shape")
    given_shapes = {**{n: (s, "shapes") for n, s in shapes.items()},
                    **{n: (a.shape, "the shape of constants") for n, a in constants.items()}}  # fmt: skip
    symbols: dict[str, int] = {}
    fixed: dict[str, list[Dim]] = {}
    for input_name, stated in declared.items():
        given = given_shapes.get(input_name)
        if given is None:
            fixed[input_name] = list(stated or [])
        else:
            what = f"{name}: {given[1]}"
            fixed[input_name] = _merge(input_name, stated, given[0], symbols, what, input_name in shapes)
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
        if declared[input_name] is None and input_name not in given_shapes:
            missing.append(f"{input_name!r} (no shape at all)")
            continue
        extents = [symbols.get(d) if isinstance(d, str) else d for d in dims]
        open_dims = [i for i, e in enumerate(extents) if e is None]
        missing += [f"{input_name!r} dimension {i} ({dims[i] or 'unnamed'})" for i in open_dims]
        types.append((input_name, TensorType(tuple(e or 0 for e in extents), elements[input_name])))
    if missing:
        hint = "pass shapes={input name: (extent, …)}"
        raise CuvilError(f"{name}: input extents are unknown: {', '.join(missing)}; {hint}")
    return tuple(types), tuple(assumed)


def other_batch(
    graph: onnx.GraphProto, types: Sequence[tuple[str, TensorType]], shapes: Mapping[str, Sequence[int]], name: str
) -> tuple[int, int] | None:
    """(leading extent in the file, the caller's) if they differ. Raises CuvilError if another input with the file's
    extent keeps it, or if the caller's extents differ from one another."""
    declared = {i.name: dims[0] for i in graph.input if (dims := _dims(i))}
    changed = {n: (old, t.shape[0]) for n, t in types if isinstance(old := declared.get(n), int) and old != t.shape[0]}
    if not changed:
        return None
    if len(set(changed.values())) > 1:
        raise CuvilError(f"{name}: shapes= gives the fixed batch of {', '.join(changed)} different extents")
    (old, new), first = next(iter(changed.items()))[1], next(iter(changed))
    for n, t in types:
        if n not in shapes and t.rank and declared.get(n) == old:
            raise CuvilError(
                f"{name}: shapes= makes the batch of {first!r} {new}, where the file fixes {old}; give the shape of "
                f"{n!r}, too, whose leading extent is {old} as well"
            )
    return old, new


def known_inputs(
    types: Sequence[tuple[str, TensorType]], constants: Mapping[str, Array], name: str
) -> dict[str, Array]:
    """The arrays of `constants` in the containers of their inputs' dtypes. Floats are rounded; other numbers must be
    exact in the dtype. Raises CuvilError."""
    found = {}
    for input_name, kind in types:
        if input_name not in constants:
            continue
        array = constants[input_name]
        floats = dtypes.is_float(kind.dtype)
        if array.dtype.kind not in "bifu":
            raise CuvilError(f"{name}: constants[{input_name!r}] is not numbers but {array.dtype}")
        lo, hi = (-np.inf, np.inf) if floats else (0, 1) if kind.dtype == "bool" else dtypes.int_range(kind.dtype)
        if not floats and not all(v == v and lo <= v <= hi and v == int(v) for v in array.reshape(-1).tolist()):
            raise CuvilError(f"{name}: constants[{input_name!r}] has values that {kind.dtype}, its type, doesn't have")
        with np.errstate(over="ignore"):
            found[input_name] = dtypes.convert(array, kind.dtype)
        if (np.isinf(dtypes.numbers(found[input_name])) & np.isfinite(array)).any():
            raise CuvilError(f"{name}: constants[{input_name!r}] has values beyond the range of {kind.dtype}")
    return found


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
    """The extents in the file; None if it doesn't even state the rank."""
    if not info.type.tensor_type.HasField("shape"):
        return None
    dims: list[Dim] = []
    for dim in info.type.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(int(dim.dim_value))
        else:  # for unknown, some exporters write the extent -1, or one name for all of them: "?", "None", "-1"
            named = dim.dim_param != "None" and any(c.isalpha() for c in dim.dim_param)
            dims.append(dim.dim_param if named else None)
    return tuple(dims)


def _merge(
    input_name: str, dims: Sequence[Dim] | None, given: Sequence[int], symbols: dict[str, int], what: str, batch: bool
) -> list[Dim]:
    """The caller's shape, checked against the file's; binds named dimensions. `batch`: the leading extent may differ
    from the file's."""
    try:
        shape = [g if isinstance(g, int) else index(g) for g in given]  # index() would lose what a Size is
    except TypeError:
        raise CuvilError(f"{what}[{input_name!r}] = {given!r}: every extent is a whole number") from None
    where = f"{what}[{input_name!r}] = {tuple(shape)}"
    if any(e < 0 for e in shape):
        raise CuvilError(f"{where}: extents can't be negative")
    if dims is not None and len(dims) != len(shape):
        raise CuvilError(f"{where}: the input has {len(dims)} dimensions: {_show(dims)}")
    for axis, (dim, extent) in enumerate(zip(dims or (), shape, strict=False)):
        if isinstance(dim, int) and dim != extent and (axis or not batch):
            raise CuvilError(f"{where}: the model fixes it to {_show(dims or ())}")
        if isinstance(dim, str) and symbols.setdefault(dim, extent) != extent:
            raise CuvilError(f"{where}: dimension {dim!r} is already {symbols[dim]}")
    return list(shape)


def _show(dims: Sequence[Dim]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in dims) + ")"

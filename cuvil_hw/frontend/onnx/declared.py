"""Compares the shapes stated in an ONNX file with those that its operators give."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from cuvil_hw.errors import CuvilError
from cuvil_hw.frontend.onnx.node import DTYPES, Value, element_name


def contradictions(
    graph: onnx.GraphProto, values: Mapping[str, Value | None], batch: tuple[int, int] | None = None
) -> tuple[str, ...]:
    """Every output and intermediate value whose stated shape or element type differs from what its operator gives, in
    words. `batch`: (the leading extent fixed in the file, the one that the caller gave instead).

    Exporters leave outdated statements behind. No runtime needs them, but readers believe them.
    """
    found = []
    for info in [*graph.output, *graph.value_info]:
        value = values.get(info.name)
        if value is None or info.type.WhichOneof("value") != "tensor_type":
            continue
        stated = info.type.tensor_type
        if stated.elem_type and DTYPES.get(stated.elem_type, value.dtype) != value.dtype:
            found.append(f"{info.name!r} is stated to be {element_name(stated.elem_type)}, but is {value.dtype}")
        if not stated.HasField("shape"):
            continue
        dims = [d.dim_value if d.HasField("dim_value") else None for d in stated.shape.dim]
        if batch is not None and dims and value.rank and (dims[0], value.shape[0]) == batch:
            dims[0] = batch[1]
        same = len(dims) == value.rank and all(d in (None, e) for d, e in zip(dims, value.shape, strict=True))
        if not same:
            shown = ", ".join("?" if d is None else str(d) for d in dims)
            found.append(f"{info.name!r} is stated to be [{shown}], but is {list(value.shape)}")
    return tuple(dict.fromkeys(found))


def check_batch(graph: onnx.GraphProto, values: Mapping[str, Value | None], batch: tuple[int, int], name: str) -> None:
    """Raises CuvilError for an output that keeps the file's leading extent although the caller gave another one: an
    operator has it as a constant."""
    for info in graph.output:
        value, dims = values.get(info.name), info.type.tensor_type.shape.dim
        if value is None or not dims or not dims[0].HasField("dim_value") or dims[0].dim_value != batch[0]:
            continue
        if not value.rank or value.shape[0] != batch[1]:
            raise CuvilError(f"{name}: output {info.name!r} is {value.shape}: {fixed_batch(batch)}")


def fixed_batch(batch: tuple[int, int]) -> str:
    return (
        f"the file fixes the batch to {batch[0]} and {batch[1]} was asked for, but an operator, such as a Reshape to "
        "constant extents, has it as a constant; export the model with an open batch dimension"
    )

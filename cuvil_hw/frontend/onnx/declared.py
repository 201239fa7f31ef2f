"""Shapes that an ONNX file states beside those that its operators give."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from cuvil_hw.frontend.onnx.node import DTYPES, Value, element_name


def contradictions(graph: onnx.GraphProto, values: Mapping[str, Value | None]) -> tuple[str, ...]:
    """In words, every output and intermediate value whose stated shape or element type isn't what its operator gives.

    Exporters leave stale statements behind, and no runtime needs them; but a reader believes them.
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
        same = len(dims) == value.rank and all(d in (None, e) for d, e in zip(dims, value.shape, strict=True))
        if not same:
            shown = ", ".join("?" if d is None else str(d) for d in dims)
            found.append(f"{info.name!r} is stated to be [{shown}], but is {list(value.shape)}")
    return tuple(dict.fromkeys(found))

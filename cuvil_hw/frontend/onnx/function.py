"""Operators that ONNX itself defines by simpler ones: their function bodies, from the schemas of the onnx package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import onnx
from onnx import defs

from cuvil_hw.frontend.onnx.node import DTYPES, Value

_ELEMENT = {dtype: code for code, dtype in DTYPES.items()}


@cache
def missing(op_type: str, version: int) -> str | None:
    """Why ONNX's own domain has no such operator at this opset; None if it has one."""
    if defs.has(op_type, version, ""):
        return None
    since = [s.since_version for s in defs.get_all_schemas_with_history() if s.name == op_type and not s.domain]
    if not since:
        return "ONNX has no such operator"
    return f"opset {version} doesn't have it; ONNX has it since opset {min(since)}"


def body_of(
    node: onnx.NodeProto, domain: str, version: int, operands: Sequence[Value | None]
) -> onnx.FunctionProto | None:
    """The body that defines `node` at this opset, with its attributes filled in; None when the schema has none."""
    try:
        schema: Any = defs.get_schema(node.op_type, version, domain)  # its type stub knows no functions
    except defs.SchemaError:
        return None
    body = onnx.FunctionProto()
    if schema.has_function:
        known = [v for v in schema.function_opset_versions if v <= version]
        if not known:
            return None
        body.ParseFromString(schema.get_function_with_opset_version(max(known)))
    elif schema.has_context_dependent_function:
        known = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        if not known:
            return None
        types = [tensor_type(v).SerializeToString() for v in operands]
        text = schema.get_context_dependent_function_with_opset_version(max(known), node.SerializeToString(), types)
        if not text:
            return None
        body.ParseFromString(text)
    else:
        return None
    given = {a.name: a for a in node.attribute}
    defaults = {a.name: a.default_value for a in schema.attributes.values() if a.default_value.type}
    absent = {name for name, v in zip(body.input, [*operands, *[None] * len(body.input)], strict=False) if v is None}
    for inner in body.node:
        _fill(inner, {**defaults, **given}, absent)
    return body


def tensor_type(value: Value | None) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(_ELEMENT[value.dtype], value.shape)


def _fill(node: onnx.NodeProto, attributes: dict[str, onnx.AttributeProto], absent: set[str]) -> None:
    """References to attributes of the function become values, references to absent operands become absent."""
    for i, name in enumerate(node.input):
        if name in absent:
            node.input[i] = ""
    kept = []
    for a in node.attribute:
        if a.ref_attr_name:
            source = attributes.get(a.ref_attr_name)
            if source is None:
                continue
            filled = onnx.AttributeProto()
            filled.CopyFrom(source)
            filled.name = a.name
            kept.append(filled)
            continue
        for graph in ([a.g] if a.HasField("g") else []) + list(a.graphs):
            for inner in graph.node:
                _fill(inner, attributes, absent)
        kept.append(a)
    copies = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
    del node.attribute[:]
    node.attribute.extend(copies)

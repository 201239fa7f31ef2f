"""Reads ONNX files; whatever is wrong with one gives a CuvilError that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto
from onnx.external_data_helper import uses_external_data

from cuvil_hw.errors import CuvilError
from cuvil_hw.frontend.onnx.external import external_files, load_external
from cuvil_hw.frontend.onnx.function import missing

UNKNOWN = "unknown"  # a domain whose nodes the checker leaves alone
OLDEST_OPSET = 7  # older models are converted: they broadcast by attributes


def read(model: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """(checked model with its weights, name for messages). Raises CuvilError."""
    if isinstance(model, onnx.ModelProto):
        name = f"ONNX model {model.graph.name!r}"
        if external := [t.name for t in _tensors(model) if uses_external_data(t)]:
            raise CuvilError(f"{name}: weights {', '.join(external[:3])} lie in other files; pass the model's path")
        proto = model
    elif isinstance(model, str | Path):
        name = str(model)
        proto = _read_file(Path(model))
    else:
        raise CuvilError(f"an ONNX model is a path or an onnx.ModelProto, not {type(model).__name__}")
    _check(proto, name)
    return _modern(_inline(proto, name), name), name


def _read_file(path: Path) -> onnx.ModelProto:
    model = _parsed(path)
    load_external([t for t in _tensors(model) if uses_external_data(t)], path)
    return model


def _parsed(path: Path) -> onnx.ModelProto:
    if not path.exists():
        raise CuvilError(f"{path}: no such file")
    if not path.is_file():
        raise CuvilError(f"{path}: not a file; give the path of an .onnx file")
    try:
        data = path.read_bytes()
    except OSError as e:
        raise CuvilError(f"{path}: can't be read: {e.strerror}") from e
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as e:
        raise CuvilError(f"{path}: not an ONNX model, or a truncated one ({len(data)} bytes): {e}") from e
    if not model.ir_version or not model.HasField("graph"):
        raise CuvilError(f"{path}: not an ONNX model ({len(data)} bytes without IR version and graph)")
    return model


def files(path: Path) -> list[Path]:
    """The model's own file and those in which its weights lie. Raises CuvilError."""
    return [path, *external_files([t for t in _tensors(_parsed(path)) if uses_external_data(t)], path)]


def _tensors(model: onnx.ModelProto) -> list[TensorProto]:
    found: list[TensorProto] = []

    def visit(graph: onnx.GraphProto) -> None:
        found.extend(graph.initializer)
        for node in graph.node:
            for a in node.attribute:
                if a.HasField("t"):
                    found.append(a.t)
                found.extend(a.tensors)
                for inner in ([a.g] if a.HasField("g") else []) + list(a.graphs):
                    visit(inner)

    visit(model.graph)
    return found


def _check(model: onnx.ModelProto, name: str) -> None:
    texts = [s for n in model.graph.node for s in (n.name, n.op_type, n.domain, *n.input, *n.output)]
    texts += [i.name for part in (model.graph.input, model.graph.output, model.graph.initializer) for i in part]
    if broken := [s for s in texts if not isinstance(s, str)]:  # protobuf gives bytes where text isn't UTF-8
        raise CuvilError(f"{name}: damaged: the name {broken[0]!r} is not UTF-8 text")
    for opset in model.opset_import:
        if not 0 < opset.version < 1 << 31:
            raise CuvilError(f"{name}: damaged: opset {opset.version} of domain {opset.domain!r}; re-export the model")
    try:
        onnx.checker.check_model(_checkable(model))
    except onnx.checker.ValidationError as e:
        raise CuvilError(f"{name}: not a valid ONNX model: {str(e).strip()}") from e
    except ValueError as e:  # larger than protobuf can serialise: what the checker would say is found during import
        if model.ByteSize() < 1 << 31:
            raise CuvilError(f"{name}: onnx.checker can't read it: {e}") from e


def _checkable(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model for ONNX's checker, without four things that it rejects although they are harmless, or are
    reported better by the importer: inputs and outputs without a type, GroupNormalization-18 (deprecated in a later
    ONNX), foreign domains without an opset, and operators that ONNX doesn't have."""
    ends = [*model.graph.input, *model.graph.output]
    old_norm = any(n.op_type == "GroupNormalization" for n in model.graph.node) and any(
        not o.domain and 18 <= o.version < 21 for o in model.opset_import
    )
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None)
    nodes = list(_nodes(model.graph))
    foreign = {n.domain for n in nodes if not n.domain.startswith("ai.onnx")}
    foreign -= {"", *(o.domain for o in model.opset_import)}
    unknown = version is not None and any(_unknown(n, version) for n in nodes)
    if not old_norm and not foreign and not unknown and all(i.type.tensor_type.HasField("shape") for i in ends):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if unknown and version is not None:
        foreign.add(UNKNOWN)
        for node in _nodes(copy.graph):
            if _unknown(node, version):
                node.domain = UNKNOWN
    copy.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in sorted(foreign))
    for i in [*copy.graph.input, *copy.graph.output]:
        if i.type.WhichOneof("value") in (None, "tensor_type") and not i.type.tensor_type.HasField("shape"):
            i.type.tensor_type.elem_type = i.type.tensor_type.elem_type or TensorProto.FLOAT
            i.type.tensor_type.shape.SetInParent()
    for opset in copy.opset_import if old_norm else ():
        if not opset.domain:
            opset.version, copy.ir_version = 21, max(copy.ir_version, 10)
    return copy


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, including those of graphs inside nodes."""
    for node in graph.node:
        yield node
        for a in node.attribute:
            for inner in ([a.g] if a.HasField("g") else []) + list(a.graphs):
                yield from _nodes(inner)


def _unknown(node: onnx.NodeProto, version: int) -> bool:
    return node.domain in ("", "ai.onnx") and missing(node.op_type, version) is not None


def _modern(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model; converted to OLDEST_OPSET if it is older."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), OLDEST_OPSET)
    if opset >= OLDEST_OPSET:
        return model
    for node in model.graph.node:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if axis and any(a.name == "broadcast" and a.i for a in node.attribute):  # the converter aligns it wrongly
            where = f"{node.op_type} at {node.name or node.output[0]} broadcasts from axis {axis}"
            raise CuvilError(f"{name}: opset {opset} is older than {OLDEST_OPSET}: {where}; re-export the model")
    from onnx import version_converter

    try:
        return version_converter.convert_version(model, OLDEST_OPSET)
    except (RuntimeError, ValueError) as e:
        raise CuvilError(f"{name}: opset {opset} is older than {OLDEST_OPSET}, and can't be converted: {e}") from e


def _inline(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Replace calls of the model's own functions by their bodies."""
    if not model.functions:
        return model
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError) as e:
        raise CuvilError(f"{name}: its local functions can't be inlined: {e}") from e

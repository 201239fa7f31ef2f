"""Reading ONNX files: every way in which one can be wrong gives a CuvilError that names the file."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

from cuvil_hw.errors import CuvilError

OLDEST_OPSET = 7  # before it, broadcasting was an attribute of each op


def read(model: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """(checked model with its weights, name for messages). Raises CuvilError."""
    if isinstance(model, onnx.ModelProto):
        name = f"ONNX model {model.graph.name!r}"
        if external := [t.name for t in _tensors(model) if uses_external_data(t)]:
            raise CuvilError(f"{name}: weights {', '.join(external[:3])} lie in external files; pass the model's path instead")
        proto = model
    elif isinstance(model, str | Path):
        name = str(model)
        proto = _read_file(Path(model))
    else:
        raise CuvilError(f"an ONNX model is a path or an onnx.ModelProto, not {type(model).__name__}")
    _check(proto, name)
    return _inline(proto, name), name


def _read_file(path: Path) -> onnx.ModelProto:
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
    _load_external(model, path)
    return model


def _load_external(model: onnx.ModelProto, path: Path) -> None:
    """Read weights kept in other files; they must lie in the model's own folder."""
    folder = path.resolve().parent
    external = [t for t in _tensors(model) if uses_external_data(t)]
    for tensor in external:
        info = ExternalDataInfo(tensor)
        file = (folder / info.location).resolve()
        if not info.location or Path(info.location).is_absolute() or not file.is_relative_to(folder):
            raise CuvilError(f"{path}: weight {tensor.name!r} points outside the model's folder: {info.location!r}")
        if not file.is_file():
            raise CuvilError(f"{path}: weight {tensor.name!r} lies in {info.location!r}, which is not there")
        end = (info.offset or 0) + (info.length or 0)
        if end > file.stat().st_size:
            raise CuvilError(f"{path}: weight {tensor.name!r} ends at byte {end} of {info.location!r}, which has {file.stat().st_size}")
    if external:
        try:
            load_external_data_for_model(model, str(folder))
        except (OSError, ValueError, onnx.checker.ValidationError) as e:
            raise CuvilError(f"{path}: external weights can't be read: {e}") from e


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
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version < OLDEST_OPSET:
            raise CuvilError(
                f"{name}: opset {opset.version} is older than {OLDEST_OPSET}; convert it with onnx.version_converter.convert_version"
            )
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as e:
        raise CuvilError(f"{name}: not a valid ONNX model: {str(e).strip()}") from e
    except ValueError as e:  # larger than protobuf can serialise: what the checker would say is found during import
        if model.ByteSize() < 1 << 31:
            raise CuvilError(f"{name}: onnx.checker can't read it: {e}") from e


def _inline(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Replace calls of the model's own functions by their bodies."""
    if not model.functions:
        return model
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError) as e:
        raise CuvilError(f"{name}: its local functions can't be inlined: {e}") from e

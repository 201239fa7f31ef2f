"""Reads weights that an ONNX file keeps in other files, in its own folder or in the folder that it links to.

The ONNX file names them, so its fields are checked before a byte is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path, PurePosixPath

import onnx
from onnx import TensorProto

from cuvil_hw.errors import CuvilError

_NUMBER = re.compile(r"[0-9]{1,19}\Z", re.ASCII)


def load_external(tensors: Sequence[TensorProto], path: Path) -> None:
    """Read the data of `tensors` of the model at `path` into them. Raises CuvilError, which names model and weight."""
    for tensor in tensors:
        what = f"{path}: weight {tensor.name!r}"
        fields = {e.key: e.value for e in tensor.external_data}
        location = fields.get("location", "")
        file = _file(path, location, what)
        offset, length = (_number(fields.get(key, ""), key, what) for key in ("offset", "length"))
        needed = _bytes(tensor)
        if length is None:
            length = needed if needed is not None else file.stat().st_size - (offset or 0)
        if needed is not None and length != needed:
            raise CuvilError(f"{what}: {length} bytes in {location!r}, but shape {list(tensor.dims)} takes {needed}")
        end = (offset or 0) + length
        if end > file.stat().st_size:
            raise CuvilError(f"{what} ends at byte {end} of {location!r}, which has {file.stat().st_size}")
        try:
            with file.open("rb") as stream:
                stream.seek(offset or 0)
                tensor.raw_data = stream.read(max(length, 0))
        except OSError as e:
            raise CuvilError(f"{what}: {location!r} can't be read: {e.strerror}") from e
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def external_files(tensors: Sequence[TensorProto], path: Path) -> list[Path]:
    """The files in which `tensors` of the model at `path` lie, each once, by name. Raises CuvilError."""
    named = {e.value: t.name for t in tensors for e in t.external_data if e.key == "location"}
    return [_file(path, location, f"{path}: weight {named[location]!r}") for location in sorted(named)]


def _file(path: Path, location: str, what: str) -> Path:
    """The file at `location`: a plain relative path that doesn't leave the model's folder.

    Links are resolved first. They may lead to the folder that the model's own link leads to: in the cache of a model
    hub, `snapshots/REVISION/` holds links into `blobs/`. ONNX Runtime has the same rule.
    """
    parts = PurePosixPath(location).parts
    if not location or "\0" in location or location.startswith("/") or ".." in parts:
        raise CuvilError(f"{what} points outside the model's folder: {location!r}")
    try:
        file = (path.parent / location).resolve()
        inside = file.is_relative_to(path.parent.resolve()) or file.parent == path.resolve().parent
        regular = file.is_file()
    except (OSError, RuntimeError) as e:  # a name that is too long, a circle of links
        raise CuvilError(f"{what} lies in {location!r}, which can't be read: {e}") from e
    if not inside:
        raise CuvilError(f"{what} points outside the model's folder: {location!r} leads to {file}; copy that file here")
    if not regular:
        raise CuvilError(f"{what} lies in {location!r}, which is not there")
    return file


def _number(text: str, key: str, what: str) -> int | None:
    """A number of bytes; None when the field isn't there."""
    if not text:
        return None
    if not _NUMBER.match(text):
        raise CuvilError(f"{what}: its external data has the {key} {text!r}, expected a number of bytes, 0 or more")
    return int(text)


def _bytes(tensor: TensorProto) -> int | None:
    """The number of bytes of the tensor's shape; None for an element type of unknown size, which the importer refuses
    later."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError, TypeError):
        return None
    name = TensorProto.DataType.Name(tensor.data_type)
    bits = 4 if name.endswith(("INT4", "FLOAT4E2M1")) else 2 if name.endswith("INT2") else 8 * dtype.itemsize
    return None if name == "STRING" else -(-prod(tensor.dims) * bits // 8)

"""The `.cuvil` file: everything that one compiled model needs to run, verified before any of it is used.

It is a zip archive that any tool can list. So that equal content gives equal bytes, members are stored uncompressed
(the output of a compressor depends on its version), sorted by name, dated 1980-01-01, with mode 0644:

    manifest.json    what the program is; size and SHA-256 of every other member (runtime/manifest.py)
    level1.mlir      the IR that was compiled
    weights.json     name → dtype, shape, offset of each constant in weights.bin
    weights.bin      constants, little-endian, row-major, each at a multiple of 64 bytes
    sources/…        generated sources and whatever else the build plan holds
    products/…       what the tools made of them
    golden.json, golden.bin  where asked for: inputs x0, x1, … and what must come out, y0, y1, … (runtime/vectors.py)
    programs/…       of open shapes, one for each size; of an accelerated model, one for each call (runtime/bundle.py)
    report.json      the compiler's report

The archive's comment ends the file (runtime/trailer.py): signatures if there are some, then the digest of every byte
before it. A byte changed anywhere, a cut or an appended byte is therefore refused. The digest guards against damage,
not against an author who means harm; signatures do (runtime/trust.py). What an unsigned file could do when it is read
is bounded: nothing is unpickled, nothing is compressed, no name leaves its folder, members must be exactly those that
the manifest lists.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract import canonical
from cuvil_hw.contract.build import check_paths, write_files
from cuvil_hw.contract.device import Array
from cuvil_hw.contract.files import replace
from cuvil_hw.errors import ArtifactError, CuvilError
from cuvil_hw.runtime import trailer
from cuvil_hw.runtime.manifest import FORMAT, FORMAT_VERSION, Manifest, Member, from_json, to_json
from cuvil_hw.runtime.trust import Key, check

MANIFEST, LEVEL1, REPORT = "manifest.json", "level1.mlir", "report.json"
WEIGHTS, WEIGHT_INDEX = "weights.bin", "weights.json"
GOLDEN, GOLDEN_INDEX = "golden.bin", "golden.json"
SOURCES, PRODUCTS, PROGRAMS = "sources/", "products/", "programs/"
_FIXED = {LEVEL1, REPORT, WEIGHTS, WEIGHT_INDEX, GOLDEN, GOLDEN_INDEX}
MAX_BYTES = 16 << 30
MAX_MANIFEST_BYTES = 64 << 20
MAX_MEMBERS = 50_000

_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = (stat.S_IFREG | 0o644) << 16
_UNIX = 3
_ALIGN = 64
# What zipfile and the structures below it raise on malformed archives.
_MALFORMED = (zipfile.BadZipFile, ValueError, LookupError, struct.error, RuntimeError, EOFError, OSError, OverflowError)


@dataclass(frozen=True, slots=True)
class Artifact:
    """The manifest, and every other member of the archive by name ("level1.mlir", "sources/top.cpp", …)."""

    manifest: Manifest
    files: Mapping[str, bytes] = field(repr=False)

    @property
    def ir(self) -> str:
        """The text of the program's level1."""
        return self.files.get(LEVEL1, b"").decode("utf-8")

    def constants(self) -> dict[str, Array]:
        """The named arrays of weights.bin, read-only views."""
        return unpack_arrays(self.files)


def assemble(
    manifest: Manifest,
    *,
    level1: str,
    report: Mapping[str, Any],
    constants: Mapping[str, Array],
    sources: Mapping[str, bytes],
    products: Mapping[str, bytes],
) -> Artifact:
    """An artifact from its parts; `sources` and `products` by relative POSIX path, no path in both.

    Raises ArtifactError for a bad file name or a value that has no JSON form."""
    files = {LEVEL1: level1.encode("utf-8"), **pack_arrays(constants)}
    files.update({SOURCES + name: data for name, data in sources.items()})
    files.update({PRODUCTS + name: data for name, data in products.items()})
    try:
        check_paths([*sources, *products])
        files[REPORT] = canonical.dump(report)
    except (CuvilError, TypeError, ValueError) as e:
        raise ArtifactError(f"artifact of {manifest.model}: {e}") from e
    return Artifact(manifest, files)


def to_bytes(artifact: Artifact) -> bytes:
    """The file's content: equal artifacts give equal bytes. Raises ArtifactError for what no artifact may hold."""
    try:
        _check_names(artifact.files)
        members = {name: Member(len(data), _sha256(data)) for name, data in artifact.files.items()}
        content = {**artifact.files, MANIFEST: to_json(artifact.manifest, members)}
    except (TypeError, ValueError, CuvilError) as e:
        raise ArtifactError(f"artifact of {artifact.manifest.model}: {e}") from e
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(content):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = _UNIX, _MODE
            archive.writestr(info, content[name])
    return trailer.end(memoryview(buffer.getbuffer())[:-2], FORMAT)


def write(path: str | os.PathLike[str], artifact: Artifact) -> None:
    """Write the file, or leave an existing one unchanged: it is replaced in one step, after the new bytes are on the
    disk.

    Raises ArtifactError when it can't be written (disk full, no permission, a folder of that name).
    """
    data = to_bytes(artifact)
    target = os.fspath(path)  # as given: Path would drop the "/" of a folder
    try:
        replace(target, data, durable=True)
    except (OSError, ValueError) as e:  # ValueError: a path that no file can have
        kept = "; the file that was there is unchanged" if os.path.isfile(target) else ""
        raise ArtifactError(
            f"{target}: could not be written ({len(data)} bytes): {getattr(e, 'strerror', None) or e}{kept}; "
            "free space or choose another place"
        ) from e


def read(
    path: str | os.PathLike[str],
    *,
    trust: Iterable[Key] | Key | None = None,
    min_release: int = 0,
    max_bytes: int = MAX_BYTES,
) -> Artifact:
    """The artifact in a file, every byte verified. With `trust`, its signature is checked before anything of it is
    parsed (`trust.check`). Raises ArtifactError with the path, the member and what to do."""
    data = read_bytes(path, max_bytes=max_bytes)
    if trust is not None:
        check(data, trust, min_release, os.fspath(path))
    elif min_release:
        raise CuvilError("min_release is read from signatures: give trust, the public keys of those who may sign")
    return from_bytes(data, os.fspath(path))


def read_bytes(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> bytes:
    """A file's bytes, unread. Raises ArtifactError for what can't be read, is no regular file or is too large."""
    try:
        return _read_file(path, max_bytes)
    except OSError as e:
        raise ArtifactError(f"{os.fspath(path)}: could not be read: {e.strerror or e}; check the path") from e


def from_bytes(data: bytes, origin: str = "artifact") -> Artifact:
    """The inverse of `to_bytes`; `origin` names the data in errors. Raises ArtifactError."""
    _check_trailer(data, origin)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _unpack(archive, len(data), origin)
    except _MALFORMED as e:
        raise ArtifactError(f"{origin}: malformed archive ({e}); make it again with cuvil.compile") from e


def extract(artifact: Artifact, folder: Path) -> None:
    """Write sources and products below `folder` (which exists), without "sources/" and "products/"; only the owner may
    read them. Raises CuvilError when that can't be done."""
    for prefix, mode in ((SOURCES, 0o600), (PRODUCTS, 0o700)):
        files = {n.removeprefix(prefix): data for n, data in artifact.files.items() if n.startswith(prefix)}
        write_files(folder, files, mode=mode)


def pack_arrays(
    arrays: Mapping[str, Array], blob_name: str = WEIGHTS, index_name: str = WEIGHT_INDEX
) -> dict[str, bytes]:
    """weights.bin and weights.json, or other members of their form, of named arrays."""
    index: dict[str, Any] = {}
    parts: list[bytes | memoryview] = []
    end = 0
    for name in sorted(arrays):
        array = arrays[name]
        dtype = dtypes.from_numpy(array.dtype)
        raw = np.ascontiguousarray(array, dtypes.to_numpy(dtype).newbyteorder("<"))
        padding = -end % _ALIGN
        index[name] = {"dtype": dtype, "shape": list(array.shape), "offset": end + padding, "size": raw.nbytes}
        parts += [bytes(padding), raw.reshape(-1).view(np.uint8).data]  # joined below: large weights are copied once
        end += padding + raw.nbytes
    return {blob_name: b"".join(parts), index_name: canonical.dump(index)}


def unpack_arrays(
    files: Mapping[str, bytes], blob_name: str = WEIGHTS, index_name: str = WEIGHT_INDEX
) -> dict[str, Array]:
    """The inverse of `pack_arrays`: read-only views into the bytes. Raises ArtifactError for a wrong index."""
    blob, arrays = files.get(blob_name, b""), {}
    try:
        index = canonical.parse(files[index_name]) if index_name in files else {}
        for name, entry in index.items():
            if set(entry) != {"dtype", "shape", "offset", "size"}:
                raise ValueError(f"{name} has other entries than dtype, shape, offset and size")
            dtype = dtypes.to_numpy(entry["dtype"]).newbyteorder("<")
            shape, offset, size = entry["shape"], entry["offset"], entry["size"]
            if not all(type(n) is int and 0 <= n <= MAX_BYTES for n in (*shape, offset, size)):
                raise ValueError(f"{name} has an extent, offset or size that is none")
            if offset % _ALIGN or offset + size > len(blob) or prod(shape) * dtype.itemsize != size:
                raise ValueError(f"{name} lies outside {blob_name}, or has another size than its shape")
            stored = np.frombuffer(memoryview(blob)[offset : offset + size], dtype) if size else np.empty(0, dtype)
            array = stored.reshape(shape).astype(dtype.newbyteorder("="), copy=False)
            array.flags.writeable = False
            arrays[name] = array
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise ArtifactError(f"{index_name}: {e}; make the artifact again with cuvil.compile") from e
    return arrays


def _read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    # Not blocking, so that a pipe or a device by that name is refused and not waited for.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as f:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError(f"{os.fspath(path)}: not a regular file")
        if status.st_size > max_bytes:
            raise ArtifactError(
                f"{os.fspath(path)}: {status.st_size} bytes, more than the limit of {max_bytes}; "
                "pass max_bytes to cuvil_hw.runtime.artifact.read to allow it"
            )
        return f.read()


def _check_trailer(data: bytes, origin: str) -> None:
    version = trailer.read(data, origin).format
    if version > FORMAT_VERSION:
        raise ArtifactError(
            f"{origin}: written by a newer Cuvil (format {version}, this one reads {FORMAT_VERSION}); "
            "upgrade cuvil-hw, or compile with this version"
        )
    if version < FORMAT_VERSION:
        raise ArtifactError(f"{origin}: unknown format {version}; recompile with this version")


def _unpack(archive: zipfile.ZipFile, file_bytes: int, origin: str) -> Artifact:
    infos = {info.filename: info for info in archive.infolist()}
    if len(infos) != len(archive.infolist()) or len(infos) > MAX_MEMBERS:
        raise ArtifactError(f"{origin}: a member is there twice, or there are more than {MAX_MEMBERS}; recompile")
    for name, info in infos.items():
        _check_member(info, name, origin)
    if sum(info.file_size for info in infos.values()) > file_bytes:
        raise ArtifactError(f"{origin}: members are larger than the file that holds them; refused")
    if MANIFEST not in infos or infos[MANIFEST].file_size > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{origin}: {MANIFEST} is missing or larger than {MAX_MANIFEST_BYTES} bytes; recompile")
    try:
        manifest, members = from_json(archive.read(MANIFEST))
        _check_names(members)
    except (ValueError, CuvilError) as e:
        raise ArtifactError(f"{origin}: {MANIFEST}: {e}; recompile with this version") from e
    odd = set(infos).symmetric_difference([*members, MANIFEST])
    if odd:
        raise ArtifactError(f"{origin}: {min(odd)}: in the archive but not in its manifest, or the reverse; recompile")
    files = {}
    for name, member in members.items():
        content = archive.read(name)
        if len(content) != member.size or _sha256(content) != member.sha256:
            raise ArtifactError(f"{origin}: {name}: differs from its digest in the manifest; recompile")
        files[name] = content
    return Artifact(manifest, files)


def _check_member(info: zipfile.ZipInfo, name: str, origin: str) -> None:
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise ArtifactError(f"{origin}: {name}: is compressed, which Cuvil never does; recompile")
    if info.flag_bits or info.comment or info.date_time != _DATE:
        raise ArtifactError(f"{origin}: {name}: is encrypted or has fields that Cuvil does not write; recompile")
    if info.create_system != _UNIX or info.external_attr != _MODE:
        raise ArtifactError(f"{origin}: {name}: is not a regular file of mode 0644 (a link or a folder?); refused")


def _check_names(names: Mapping[str, Any]) -> None:
    check_paths(names)
    for name in names:
        if name not in _FIXED and not name.startswith((SOURCES, PRODUCTS, PROGRAMS)):
            raise CuvilError(f"{name}: no such member; files go below {SOURCES}, {PRODUCTS} or {PROGRAMS}")
    check_paths([n.partition("/")[2] for n in names if n not in _FIXED])


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()

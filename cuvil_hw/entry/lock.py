"""cuvil.lock: all that a compilation depends on, by digest and version, so that a change of any of it is named.

    {"schema": "cuvil-lock/1",
     "model": {"file", "sha256", "weights"}, "target": {"name", "sha256"}, "options": {…},
     "data": {name: sha256} of calibration, examples and constants, "tools": {name: version},
     "asked": {…}, the command line, so that `cuvil lock --strict` can ask again; not compared}

"weights" is the digest of a PyTorch model's state, "" for others. Of a Python file that defines a model, the file
itself is covered and its weights; modules of your own that it imports aren't.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from cuvil_hw import data
from cuvil_hw.compile.pack import profile_data
from cuvil_hw.contract import canonical
from cuvil_hw.errors import CuvilError
from cuvil_hw.report.file import write_bytes
from cuvil_hw.runtime.compilers import CCompiler
from cuvil_hw.target.profile import Profile
from cuvil_hw.version import VERSION

SCHEMA = "cuvil-lock/1"
_SECTIONS = ("model", "target", "options", "data", "tools")
_PACKAGES = ("numpy", "PyYAML", "xdsl", "ortools", "z3-solver", "numba")  # that compile every model
_DATA = ("targets", "hls", "rtl", "bitstreams", "sim")
_MOST = 16 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """What differs from the lock: `name` as in "tools.numpy", and the values, "" where there is none."""

    name: str
    locked: str
    now: str

    def __str__(self) -> str:
        return f"{self.name}: locked {self.locked or 'nothing'}, now {self.now or 'nothing'}"


class LockDrift(CuvilError):
    """What is compiled differs from its lock. `drift`: each difference, as {"name", "locked", "now"}."""

    def __init__(self, lock: Path, changes: Sequence[Change]) -> None:
        self.drift = [{"name": c.name, "locked": c.locked, "now": c.now} for c in changes]
        listed = "\n".join(f"  - {c}" for c in changes)
        super().__init__(f"{lock}: {len(changes)} change(s) since it was locked; undo them, or lock again\n{listed}")


def record(
    model: Any, files: Sequence[Path], profile: Profile, options: Mapping[str, Any], inputs: Mapping[str, Path]
) -> dict[str, Any]:
    """The lock of one compilation. `model`: as cuvil.compile takes it, read from `files`, its own one first;
    `options`: those given, JSON values; `inputs`: files of arrays by what they are for. Raises CuvilError for a file
    that can't be read."""
    file, onnx = files[0], files[0].suffix == ".onnx"
    return {
        "schema": SCHEMA,
        "model": {"file": file.name, "sha256": _digest_of(files), "weights": "" if onnx else _state(model)},
        "target": {"name": profile.name, "sha256": hashlib.sha256(canonical.dump(profile_data(profile))).hexdigest()},
        "options": dict(options),
        "data": {name: _digest_of([path]) for name, path in inputs.items()},
        "tools": tools(profile, "onnx" if onnx else "torch"),
    }


def tools(profile: Profile, framework: str) -> dict[str, str]:
    """Versions of what compiles for this profile; cuvil-hw's with a digest of its own files."""
    found = {"cuvil-hw": f"{VERSION} sha256:{own_digest()}", "python": platform.python_version()}
    for name in (*_PACKAGES, framework):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if profile.adapter == "cpu":  # the one target whose product is made by a tool of the system
        found["cc"] = _version(CCompiler.of(profile.setting("cc", "cc")).command)
    return dict(sorted(found.items()))


def own_digest() -> str:
    """SHA-256 over the compiler's own sources and data, which say more than its version in a checkout."""
    package = Path(data.__file__).resolve().parent
    found = {}
    for root in (package, *map(data.folder, _DATA)):
        for path in root.rglob("*"):
            parts = path.relative_to(root).parts
            # In a wheel the data folders lie inside the package.
            if path.is_file() and "__pycache__" not in parts and (root != package or parts[0] != "data"):
                found[f"{root.name}/{'/'.join(parts)}"] = path
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0{hashlib.sha256(found[name].read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def changes(locked: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Every difference between two locks."""
    before, after = dict(_flat(locked)), dict(_flat(now))
    names = sorted({*before, *after})
    return [Change(n, before.get(n, ""), after.get(n, "")) for n in names if before.get(n) != after.get(n)]


def check(path: Path, now: Mapping[str, Any]) -> None:
    """Raises LockDrift where `now` isn't what the lock at `path` says; CuvilError for a file that is no lock."""
    found = changes(read(path), now)
    if found:
        raise LockDrift(path, found)


def read(path: Path) -> dict[str, Any]:
    """Raises CuvilError for a file that can't be read or is no lock."""
    try:
        with open(path, "rb") as f:
            found = canonical.parse(f.read(_MOST))
    except OSError as e:
        raise CuvilError(f"{path}: could not be read: {e.strerror or e}; `cuvil lock` writes it") from e
    except ValueError as e:
        raise CuvilError(f"{path}: is no lock ({e}); `cuvil lock` writes it") from e
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise CuvilError(f"{path}: is no lock of schema {SCHEMA}; `cuvil lock` writes it")
    if set(found) != {"schema", "asked", *_SECTIONS} or not all(isinstance(found[s], dict) for s in _SECTIONS):
        raise CuvilError(f"{path}: has other parts than asked, {', '.join(_SECTIONS)}; `cuvil lock` writes it anew")
    return found


def write(path: Path, lock: Mapping[str, Any]) -> None:
    """Raises CuvilError when the file can't be written."""
    write_bytes(path, canonical.dump(lock))


def _flat(lock: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section in _SECTIONS:
        for name, value in lock[section].items():
            yield f"{section}.{name}", value if isinstance(value, str) else canonical.dump(value).decode().strip()


def _digest_of(files: Iterable[Path]) -> str:
    """Of one file, its SHA-256; of several, that of their digests in order."""
    digests = []
    for path in files:
        try:
            with open(path, "rb") as f:
                digests.append(hashlib.file_digest(f, "sha256").hexdigest())
        except OSError as e:
            raise CuvilError(f"{path}: could not be read: {e.strerror or e}; check the path") from e
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _state(model: Any) -> str:
    """SHA-256 over name, dtype, shape and bytes of all that a PyTorch model keeps."""
    import torch

    state = model.state_dict  # a method of a module, a property of an ExportedProgram
    digest = hashlib.sha256()
    for name, tensor in sorted((state() if callable(state) else state).items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _version(command: Sequence[str]) -> str:
    """The first line that a tool says of its version; "" where it isn't there."""
    found = shutil.which(command[0])
    if found is None:
        return ""
    try:
        done = subprocess.run(
            [found, *command[1:], "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip()

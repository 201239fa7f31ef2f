"""Programs of an accelerated model in a file, so that another process need not compile them again."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cuvil_hw import api
from cuvil_hw.adapters.target_check import adapter_for
from cuvil_hw.compile import collecting, numbers
from cuvil_hw.compile.pack import profile_data
from cuvil_hw.contract import canonical
from cuvil_hw.errors import ArtifactError, CuvilError
from cuvil_hw.ir.program import Program
from cuvil_hw.passes.quantize.calibrate import Statistics
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime import bundle
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.bundle import ACCELERATED
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.inputs import is_tensor
from cuvil_hw.runtime.manifest import calling_json
from cuvil_hw.target.profile import Profile, load_profile
from cuvil_hw.version import VERSION

LOG = logging.getLogger("cuvil")
UNKNOWN = (
    "the calibration can't be recognized in another process, so programs made with it are neither saved nor taken; "
    "give arrays, tensors, or tuples and mappings of them, or saved Statistics"
)


class SavedPrograms:
    """Compiles as `cuvil.compile` does, and reuses programs that were compiled or read before. A program is reused for
    the same imported model (its level1 text with the digests of its weights), target, precision, calibration, interface
    and version."""

    def __init__(self, model: str, target: Any, calibration: Any, path: str | os.PathLike[str] | None) -> None:
        """`path`: a file written by `save`; every byte is verified, none executed. Raises ArtifactError for a damaged
        file, CuvilError for a file of another target and for calibration data that can't be compared by content."""
        self._model, self._path = model, path
        self._calibration = _content(calibration)
        self._programs: dict[str, Artifact] = {}
        if path is not None:
            if self._calibration is None:
                raise CuvilError(UNKNOWN)
            self._programs = _read(path, load_profile(target).name)

    def compile(
        self,
        model: Any,
        target: str | Path | Profile,
        *,
        example_inputs: Any,
        calibration: Any,
        precision: str | None,
        interface: str | None,
        name: str | None,
    ) -> Executable:
        """A program for fixed shapes. A warning says when the file has none. Raises as `cuvil.compile` does."""
        with collecting.collecting_later():
            profile = load_profile(target)
            adapter = adapter_for(profile, interface)
            program = api.import_model(model, example_inputs, None, name)
            key = self._key(program, profile, precision, interface)
            if key in self._programs:
                return Executable(self._programs[key], interface)
            if self._path is not None:
                LOG.warning(
                    "%s: compiled, as %s has no program of this version for this kind of call with these weights, "
                    "precision and calibration; save the model again to keep it",
                    self._model,
                    os.fspath(self._path),
                )
            numbers.simplify(program)
            made = api.compile_program(program, profile, adapter, calibration, precision, interface, lambda step: None)
            self._programs[key] = made.artifact
            return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write every program that was compiled or read. Raises CuvilError when there is none, or when the calibration
        couldn't be recognized; ArtifactError when the file can't be written."""
        if self._calibration is None:
            raise CuvilError(UNKNOWN)
        if not self._programs:
            raise CuvilError(f"{self._model} has no program to save yet; call it once for each kind of call")
        container.write(path, bundle.pack(self._model, dict(self._programs), ACCELERATED, {}))

    def _key(self, program: Program, profile: Profile, precision: str | None, interface: str | None) -> str:
        plain = program.clone()
        for operation in plain.module.walk():  # where the model's source lies changes nothing
            operation.attributes.pop("loc", None)
        facts = {
            "version": VERSION,
            "level1": plain.text(),
            "calling": calling_json(program.calling),
            "profile": profile_data(profile),
            "precision": precision,
            "interface": interface,
            "calibration": self._calibration,
        }
        return hashlib.sha256(canonical.dump(facts)).hexdigest()


def _read(path: str | os.PathLike[str], target: str) -> dict[str, Artifact]:
    artifact = container.read(path)
    if ACCELERATED not in artifact.manifest.info:
        raise ArtifactError(f"{os.fspath(path)}: isn't what an accelerated model saves; open it with cuvil.load")
    try:
        found = bundle.unpack(artifact, ACCELERATED)
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise ArtifactError(f"{os.fspath(path)}: list of programs: {e!r}; save the model again") from e
    saved = {str(a.manifest.profile.get("name")) for a in found.values()}
    if saved != {target}:
        raise CuvilError(
            f"{os.fspath(path)} holds programs for {', '.join(sorted(saved))}, and the model is accelerated for "
            f"{target}; give that target, or leave `programs` out to compile"
        )
    return found


def _content(value: Any) -> str | None:
    """A digest of calibration data; None for iterators, which reading would use up."""
    state = hashlib.sha256()
    return state.hexdigest() if _add(state, value) else None


def _add(state: Any, value: Any) -> bool:
    if is_tensor(value):
        flat = value.detach().cpu().contiguous().reshape(-1)
        head, data = f"{value.dtype}{tuple(value.shape)}", flat.view(_bytes()).numpy()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        head, data = f"{value.dtype.str}{value.shape}", np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    elif isinstance(value, Mapping | list | tuple):
        items = list(value.items()) if isinstance(value, Mapping) else list(value)
        state.update(f"{type(value).__name__} of {len(items)};".encode())
        return all(_add(state, item) for item in items)
    elif isinstance(value, Statistics):
        head, data = repr((value.program, value.samples, sorted(value.ranges.items()))), np.empty(0, np.uint8)
    elif value is None or isinstance(value, bool | int | float | complex | str):
        head, data = repr(value), np.empty(0, np.uint8)
    else:
        return False
    state.update(f"{len(head)};{head};{len(data)};".encode())
    state.update(data.data)
    return True


def _bytes() -> Any:
    import torch

    return torch.uint8


__all__ = ["SavedPrograms"]

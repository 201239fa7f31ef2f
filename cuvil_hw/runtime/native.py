"""Saves a program as a library for C: `model.so`, `model.a` or `model.c`, with `model.h` beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cuvil_hw.contract import registry
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.contract.files import replace
from cuvil_hw.contract.native import Kind, MakesNative, Native, Origin
from cuvil_hw.contract.record import seal
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.cache import build
from cuvil_hw.runtime.host import HostProgram
from cuvil_hw.runtime.scratch import Scratch

KINDS: Mapping[str, Kind] = {".so": "so", ".a": "a", ".c": "c"}


def kind_of(path: str | os.PathLike[str]) -> Kind | None:
    """What a file of this name is; None for an artifact."""
    return KINDS.get(Path(path).suffix)


def save(artifact: Artifact, path: str | os.PathLike[str]) -> None:
    """Write the library and its header. Raises CuvilError for a program that can't be one, ToolNotFound and BuildFailed
    from its compiler."""
    manifest, target = artifact.manifest, Path(path)
    kind = kind_of(target)
    assert kind is not None
    device = registry.open_device(manifest.adapter, manifest.profile, "null")
    if not isinstance(device, MakesNative):
        raise CuvilError(
            f"{manifest.model}: a program for {manifest.profile.get('name')} can't become {target.name}: only programs "
            "for cpu targets can; save it as a .cuvil file, or compile it for one of those"
        )
    steps = [step.op for program in (manifest.prologue, manifest.epilogue) for step in program.steps]
    if steps:
        raise CuvilError(
            f"{manifest.model}: can't become {target.name}: {', '.join(dict.fromkeys(steps))} would run in NumPy, "
            "outside the generated code; compile it for a target that takes these, or save it as a .cuvil file"
        )
    constants = artifact.constants()
    native = Native(
        target.stem,
        kind,
        manifest.inputs,
        manifest.outputs,
        _wires(manifest.prologue, manifest.prologue, manifest.epilogue),
        _wires(manifest.epilogue, manifest.prologue, manifest.epilogue),
        manifest.calling,
        constants,
    )
    scratch = Scratch("cuvil-native-")
    try:
        container.extract(artifact, scratch.path)
        ins, outs = manifest.device_inputs, manifest.device_outputs
        sealed = seal(manifest.info, ins, outs)
        program = DeviceProgram(manifest.model, scratch.path, ins, outs, manifest.info, constants, sealed)
        with registry.blaming(registry.DEVICES, manifest.adapter):
            plan = device.native(program, native)
    finally:
        scratch.remove()
    for name, data in build(plan)[1].items():
        place = target.with_name(name)
        try:
            replace(place, data, durable=True)
        except OSError as e:
            raise CuvilError(f"{place}: could not be written: {e.strerror or e}; choose another place") from e


def _wires(of: HostProgram, before: HostProgram, after: HostProgram) -> tuple[Origin, ...]:
    """Where the outputs of a host program without steps come from."""
    named = {name: Origin("input", at) for at, name in enumerate(before.inputs)}
    if of is after:
        named |= {name: Origin("device", at) for at, name in enumerate(after.inputs)}
    return tuple(named[name] if name in named else Origin("constant", constant=name) for name in of.outputs)

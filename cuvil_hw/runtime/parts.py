"""The parts of an artifact as an executable needs them: what surrounds a call, host programs, the loaded device."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuvil_hw.contract import calling, registry
from cuvil_hw.contract.device import Array, Configurable, DeviceProgram, Loaded, Port
from cuvil_hw.contract.record import seal
from cuvil_hw.contract.signature import is_flat
from cuvil_hw.errors import ArtifactError, CuvilError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.host import HostProgram, Prepared, prepare
from cuvil_hw.runtime.manifest import Manifest
from cuvil_hw.types import TensorType

# What reading settings of another shape raises. Only the adapter knows the shape of "profile" and "info".
_NOT_WHAT_IT_WROTE = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


def calling_of(artifact: Artifact, constants: Mapping[str, Array]) -> tuple[calling.Calling, dict[str, Array]]:
    """What to do around calls (state, guards, writes), and the initial state. Raises ArtifactError."""
    manifest = artifact.manifest
    try:
        calling.check(manifest.calling, manifest.inputs, manifest.outputs, constants)
    except _NOT_WHAT_IT_WROTE as e:
        raise ArtifactError(f"{manifest.model}: calling: {e}; compile it again") from e
    return manifest.calling, calling.initial(manifest.calling, manifest.inputs, constants)


def host_programs(artifact: Artifact, stored: Mapping[str, Array]) -> tuple[Prepared, Prepared]:
    """What the processor computes before and after the device. Raises ArtifactError when the parts don't fit."""
    manifest = artifact.manifest
    host = (manifest.prologue, manifest.epilogue)
    named = {name for program in host for step in program.steps for name in step.inputs}
    named.update(name for program in host for name in program.outputs)
    constants = {name: array for name, array in stored.items() if name in named}
    try:
        before = prepare(manifest.prologue, _types(manifest.prologue, manifest.inputs), constants)
        _same("prologue", before, manifest.device_inputs)
        known = {name: t for name, t in before.types.items() if name not in constants}
        after = prepare(manifest.epilogue, known | _types(manifest.epilogue, manifest.device_outputs), constants)
        _same("epilogue", after, manifest.outputs)
    except (CuvilError, *_NOT_WHAT_IT_WROTE) as e:
        raise ArtifactError(f"{manifest.model}: {e}; compile it again with this version of cuvil-hw") from e
    return before, after


def is_direct(manifest: Manifest) -> bool:
    """Whether a call with an array for each input is a call of the device: nothing is kept, checked or computed around
    it, and its outputs are returned as they are."""
    around = manifest.calling
    plain = not (around.states or around.guards or around.writes or around.ranges)
    ends = (manifest.prologue, manifest.epilogue)
    return (
        plain
        and not any(program.steps or program.inputs != program.outputs for program in ends)
        and (around.signature is None or is_flat(around.signature, manifest.inputs, manifest.outputs))
    )


def _types(program: HostProgram, ports: Sequence[Port]) -> dict[str, TensorType]:
    if len(program.inputs) != len(ports) or len(set(program.inputs)) != len(ports):
        raise CuvilError(f"host program names {len(set(program.inputs))} inputs, it gets {len(ports)}")
    return {name: type_of(port) for name, port in zip(program.inputs, ports, strict=True)}


def type_of(port: Port) -> TensorType:
    return TensorType(port.shape, port.dtype)


def _same(what: str, prepared: Prepared, ports: Sequence[Port]) -> None:
    made, wanted = prepared.output_types(), tuple(map(type_of, ports))
    if made != wanted:
        shown = [", ".join(map(str, types)) for types in (made, wanted)]
        raise CuvilError(f"{what} hands on ({shown[0]}), but ({shown[1]}) is declared")


def load_on_device(artifact: Artifact, interface: str, options: Mapping[str, Any], folder: Path) -> Loaded:
    """Open the device and load the program, whose files are extracted to `folder`. Raises ArtifactError for products
    that are for another kind of machine, CuvilError for options that the device hasn't, and what the device raises."""
    manifest = artifact.manifest
    here = {"machine": platform.machine(), "system": platform.system().lower()}
    for key, value in here.items() if interface == "hw" else ():
        if manifest.abi.get(key, value) != value:
            built = manifest.abi[key]
            raise ArtifactError(f"{manifest.model}: was compiled for {key} {built}, this is {value}; recompile for it")
    try:
        device = registry.open_device(manifest.adapter, manifest.profile, interface)
        if options:
            if not isinstance(device, Configurable):
                listed = ", ".join(sorted(options))
                raise CuvilError(f"{manifest.model}: interface {interface!r} has no options; leave out {listed}")
            device.configure(options)
        container.extract(artifact, folder)
        ins, outs = manifest.device_inputs, manifest.device_outputs
        sealed = seal(manifest.info, ins, outs)
        program = DeviceProgram(manifest.model, folder, ins, outs, manifest.info, artifact.constants(), sealed)
        with registry.blaming(registry.DEVICES, manifest.adapter):
            return device.load(program)
    except _NOT_WHAT_IT_WROTE as e:
        where = f"{manifest.model}: adapter {manifest.adapter} can't read its own part of the manifest"
        raise ArtifactError(f"{where}: {type(e).__name__}: {e}; compile the model again") from e

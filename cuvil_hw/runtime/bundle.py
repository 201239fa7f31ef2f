"""Several programs in one artifact: each below `programs/`, without its weights. The weights of all programs share one
weights.bin, in which equal ones are stored once. The manifest's `info[owner]` says what the programs are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cuvil_hw.contract import canonical
from cuvil_hw.contract.calling import PLAIN
from cuvil_hw.errors import ArtifactError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.artifact import PROGRAMS, WEIGHT_INDEX, WEIGHTS, Artifact
from cuvil_hw.runtime.host import HostProgram

OPEN, ACCELERATED = "open", "accelerated"  # owners: programs of a model with open shapes; of an accelerated model


def pack(
    model: str,
    programs: Mapping[str, Artifact],
    owner: str,
    data: Mapping[str, Any],
    level1: str = "",
    report: Mapping[str, Any] | None = None,
) -> Artifact:
    """One artifact from the programs (by key, at least one). info[owner] gets `data` and the list of programs. Raises
    ArtifactError."""
    constants: dict[str, Any] = {}
    nested: dict[str, bytes] = {}
    listed = []
    for i, key in enumerate(sorted(programs)):
        artifact = programs[key]
        own = artifact.constants()
        constants |= own
        kept = {name: data for name, data in artifact.files.items() if name not in (WEIGHTS, WEIGHT_INDEX)}
        nested[f"{PROGRAMS}{i}.cuvil"] = container.to_bytes(replace(artifact, files=kept))
        listed.append([key, sorted(own)])
    manifest = replace(
        next(iter(programs.values())).manifest,
        model=model,
        inputs=(),
        outputs=(),
        device_inputs=(),
        device_outputs=(),
        prologue=HostProgram(),
        epilogue=HostProgram(),
        calling=PLAIN,
        info={owner: {**data, "programs": listed}},
    )
    made = container.assemble(
        manifest, level1=level1, report=report or {}, constants=constants, sources={}, products={}
    )
    return Artifact(made.manifest, {**made.files, **nested})


def unpack(artifact: Artifact, owner: str) -> dict[str, Artifact]:
    """The inverse of `pack`; the programs share the bytes of the weights. Raises ArtifactError; ValueError, TypeError
    or LookupError for a manifest that `pack` didn't write."""
    index = canonical.parse(artifact.files[WEIGHT_INDEX])
    programs = {}
    for i, (key, names) in enumerate(artifact.manifest.info[owner]["programs"]):
        inner = container.from_bytes(artifact.files[f"{PROGRAMS}{i}.cuvil"], f"{artifact.manifest.model} at {key}")
        own = canonical.dump({name: index[name] for name in names})
        files = {**inner.files, WEIGHTS: artifact.files[WEIGHTS], WEIGHT_INDEX: own}
        programs[str(key)] = Artifact(inner.manifest, files)
    if not programs:
        raise ArtifactError(f"{artifact.manifest.model}: holds no program; compile it again")
    return programs

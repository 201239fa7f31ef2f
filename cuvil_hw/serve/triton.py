"""Writes a model of a Triton repository: config.pbtxt, the program, and model.py of Triton's Python backend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cuvil_hw.contract.build import write_files
from cuvil_hw.contract.device import Port, one_sample
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.load import program_in
from cuvil_hw.runtime.trust import Key
from cuvil_hw.serve.kinds import kind_of

MODEL = Path(__file__).with_name("triton_model.py")


def export(
    program: Path, repository: Path, name: str, version: int, max_batch: int, trust: Sequence[Key], min_release: int
) -> list[Path]:
    """Write NAME/config.pbtxt and NAME/VERSION/ below `repository`; returns the files. Nothing of the program is run.
    Raises CuvilError for a program that Triton can't run so, and where files can't be written."""
    read = container.read(program, trust=trust or None, min_release=min_release)
    executable = program_in(read)
    if not isinstance(executable, Executable) or executable.state:
        raise CuvilError(f"{program}: has open shapes or keeps state, which isn't exported; compile it without")
    if not name or "/" in name or name.startswith("."):
        raise CuvilError(f"the name {name!r} is no name of a folder; give another one")
    files = {
        f"{name}/config.pbtxt": config(executable, name, max_batch).encode(),
        f"{name}/{version}/model.py": MODEL.read_bytes(),
        f"{name}/{version}/model.cuvil": container.read_bytes(program),
    }
    try:
        repository.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CuvilError(f"{repository}: can't be made: {e.strerror or e}; choose another folder") from e
    write_files(repository, files)
    return [repository / file for file in files]


def config(program: Executable, name: str, max_batch: int) -> str:
    """The text of config.pbtxt, a ModelConfig. Raises CuvilError for BF16, which the Python backend hasn't."""
    ports = (*program.inputs, *program.outputs)
    if any(p.dtype == "bf16" for p in ports):
        raise CuvilError(f"{program.name}: has ports of bf16, which Triton gives no Python model; compile it with f32")
    batched = max_batch > 1 and one_sample(*ports)

    def tensors(field: str, those: Sequence[Port]) -> str:
        entries = []
        for p in those:
            dims = list(p.shape[1:] if batched else p.shape)
            # Triton has no tensors without a dimension: they are reshaped to none.
            scalar = "" if dims else " reshape { shape: [ ] }"
            shape = ", ".join(map(str, dims or [1]))
            entries.append(f"  {{ name: {json.dumps(p.name)} data_type: TYPE_{kind_of(p)} dims: [ {shape} ]{scalar} }}")
        return f"{field} [\n" + ",\n".join(entries) + "\n]\n"

    return (
        f'name: {json.dumps(name)}\nbackend: "python"\nmax_batch_size: {max_batch if batched else 0}\n'
        + tensors("input", program.inputs)
        + tensors("output", program.outputs)
        + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        + ("dynamic_batching { }\n" if batched else "")
    )

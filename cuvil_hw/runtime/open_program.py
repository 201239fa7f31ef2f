"""Programs with open shapes as data: what they take and give, and their form in an artifact.

The artifact is a bundle (runtime/bundle.py) of a program for each size that was compiled. The manifest's `info["open"]`
says which sizes there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cuvil_hw.errors import ArtifactError, CuvilError
from cuvil_hw.extent.constraint import Constraint, parse_expr
from cuvil_hw.extent.dim import Dim
from cuvil_hw.extent.domain import Domain, Shape, as_expr, show
from cuvil_hw.extent.polynomial import symbol
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime import bundle
from cuvil_hw.runtime.artifact import Artifact

UNKNOWN = "?"  # an extent of an output that nobody can tell beforehand


@dataclass(frozen=True, slots=True)
class OpenPort:
    """An input or output: `shape` holds numbers and expressions over dimensions, `dtype` is a Cuvil dtype name."""

    name: str
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {show(self.shape)} {self.dtype}"


@dataclass(frozen=True, slots=True)
class OpenProgram:
    """What a program with open shapes takes and returns.

    Attributes:
        proven: the model's shape rules are proven for every allowed size.
        note: why they aren't.
        batch: dimensions along which rows are computed independently (proven).
        level1: text with symbolic shapes.
    """

    model: str
    domain: Domain
    inputs: tuple[OpenPort, ...]
    outputs: tuple[OpenPort, ...]
    proven: bool
    note: str = ""
    batch: tuple[str, ...] = ()
    level1: str = ""


def pack(program: OpenProgram, programs: Mapping[str, Artifact], report: Mapping[str, Any]) -> Artifact:
    """One artifact from the programs, by key (`B=8,S=64`), at least one. Raises ArtifactError."""
    return bundle.pack(program.model, programs, bundle.OPEN, _to_json(program), program.level1, report)


def is_open(artifact: Artifact) -> bool:
    return bundle.OPEN in artifact.manifest.info


def unpack(artifact: Artifact) -> tuple[OpenProgram, dict[str, Artifact]]:
    """The inverse of `pack`; the programs share the bytes of the weights. Raises ArtifactError."""
    try:
        data = artifact.manifest.info[bundle.OPEN]
        program = _from_json(artifact.manifest.model, data, artifact.files[container.LEVEL1].decode("utf-8"))
        programs = bundle.unpack(artifact, bundle.OPEN)
    except (LookupError, TypeError, ValueError, AttributeError, CuvilError) as e:
        if isinstance(e, ArtifactError):
            raise
        raise ArtifactError(f"{artifact.manifest.model}: open shapes: {e!r}; compile it again") from e
    return program, programs


def _to_json(program: OpenProgram) -> dict[str, Any]:
    return {
        "dims": [[d.name, d.min, d.max, list(d.sizes)] for d in program.domain.dims],
        "constraints": [c.text for c in program.domain.constraints],
        "inputs": [_port_json(p) for p in program.inputs],
        "outputs": [_port_json(p) for p in program.outputs],
        "proven": program.proven,
        "note": program.note,
        "batch": list(program.batch),
    }


def _port_json(port: OpenPort) -> list[Any]:
    return [port.name, [str(e) for e in port.shape], port.dtype]


def _from_json(model: str, data: Mapping[str, Any], level1: str) -> OpenProgram:
    dims = tuple(Dim(str(n), low, high, tuple(sizes)) for n, low, high, sizes in data["dims"])
    constraints = tuple(Constraint(text) for text in data["constraints"])
    return OpenProgram(
        model,
        Domain(dims, constraints),
        tuple(_port(p) for p in data["inputs"]),
        tuple(_port(p) for p in data["outputs"]),
        bool(data["proven"]),
        str(data["note"]),
        tuple(map(str, data["batch"])),
        level1,
    )


def _port(data: Any) -> OpenPort:
    name, shape, dtype = data
    extents = (symbol(UNKNOWN) if text == UNKNOWN else as_expr(parse_expr(text)) for text in shape)
    return OpenPort(str(name), tuple(extents), str(dtype))

"""Programs with open shapes as data: what they take and give, and their form in an artifact.

The artifact holds a program for each size that was compiled, below `programs/`, without its weights: those of all
programs are together in weights.bin, equal ones once. The manifest's `info["open"]` says which sizes there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cuvil_hw.errors import ArtifactError, CuvilError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime import canonical
from cuvil_hw.runtime.artifact import PROGRAMS, WEIGHT_INDEX, WEIGHTS, Artifact
from cuvil_hw.runtime.calling import PLAIN
from cuvil_hw.runtime.host import HostProgram
from cuvil_hw.shapes.constraint import Constraint, parse_expr
from cuvil_hw.shapes.dim import Dim
from cuvil_hw.shapes.domain import Domain, Shape, as_expr, show
from cuvil_hw.shapes.expr import symbol

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
    """What a program with open shapes takes and gives.

    `proven`: the model's shape rules hold for every size of the domain; `note`: why that isn't known. `batch`: names of
    dimensions along which no result depends on its neighbours (proven). `level1`: text with symbolic shapes.
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
    """One artifact of the programs by key (`B=8,S=64`), at least one. Raises ArtifactError."""
    first = next(iter(programs.values())).manifest
    constants: dict[str, Any] = {}
    nested: dict[str, bytes] = {}
    sizes = {}
    for i, key in enumerate(sorted(programs)):
        artifact = programs[key]
        constants |= artifact.constants()
        kept = {name: data for name, data in artifact.files.items() if name not in (WEIGHTS, WEIGHT_INDEX)}
        nested[f"{PROGRAMS}{i}.cuvil"] = container.to_bytes(replace(artifact, files=kept))
        sizes[key] = sorted(artifact.constants())
    manifest = replace(
        first,
        model=program.model,
        inputs=(),
        outputs=(),
        device_inputs=(),
        device_outputs=(),
        prologue=HostProgram(),
        epilogue=HostProgram(),
        calling=PLAIN,
        info={"open": _to_json(program) | {"programs": [[key, sizes[key]] for key in sorted(sizes)]}},
    )
    made = container.assemble(
        manifest, level1=program.level1, report=report, constants=constants, sources={}, products={}
    )
    return Artifact(made.manifest, {**made.files, **nested})


def is_open(artifact: Artifact) -> bool:
    return "open" in artifact.manifest.info


def unpack(artifact: Artifact) -> tuple[OpenProgram, dict[str, Artifact]]:
    """The inverse of `pack`; the programs share the bytes of the weights. Raises ArtifactError."""
    try:
        data = artifact.manifest.info["open"]
        program = _from_json(artifact.manifest.model, data, artifact.files[container.LEVEL1].decode("utf-8"))
        index = canonical.parse(artifact.files[WEIGHT_INDEX])
        programs = {}
        for i, (key, names) in enumerate(data["programs"]):
            inner = container.from_bytes(artifact.files[f"{PROGRAMS}{i}.cuvil"], f"{program.model} at {key}")
            own = canonical.dump({name: index[name] for name in names})
            files = {**inner.files, WEIGHTS: artifact.files[WEIGHTS], WEIGHT_INDEX: own}
            programs[str(key)] = Artifact(inner.manifest, files)
        if not programs:
            raise ValueError("it holds no program")
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

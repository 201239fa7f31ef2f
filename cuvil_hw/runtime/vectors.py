"""Golden vectors: inputs of a whole program and what must come out, kept in its artifact or computed from its IR.

`compile/golden.py` makes them. Whoever has only the base install (a board, a server) reads those in the artifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import Array, Port
from cuvil_hw.errors import ArtifactError, CuvilError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.inputs import as_array

FLOAT_TOLERANCE = 1e-5  # of the largest value, as the testbench of a project allows


@dataclass(frozen=True, slots=True)
class Vectors:
    """Stacks (N, *shape) of the inputs and outputs that a caller sees, in the order of the ports, N ≥ 1."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    @property
    def samples(self) -> int:
        return len(self.outputs[0])

    def files(self) -> dict[str, bytes]:
        """The members of an artifact that hold them."""
        named = {f"x{n}": a for n, a in enumerate(self.inputs)} | {f"y{n}": a for n, a in enumerate(self.outputs)}
        return container.pack_arrays(named, container.GOLDEN, container.GOLDEN_INDEX)


def in_artifact(artifact: Artifact) -> Vectors | None:
    """None: it was compiled without. Raises ArtifactError where they don't fit the program's ports."""
    if container.GOLDEN not in artifact.files:
        return None
    arrays = container.unpack_arrays(artifact.files, container.GOLDEN, container.GOLDEN_INDEX)
    manifest = artifact.manifest
    ends = {"x": manifest.inputs, "y": given(artifact)}
    wanted = {f"{k}{n}": port for k, ports in ends.items() for n, port in enumerate(ports)}
    counts = {len(a) for a in arrays.values() if a.ndim}
    same = {n: (a.shape[1:], dtypes.from_numpy(a.dtype)) for n, a in arrays.items()}
    if same != {n: (p.shape, p.dtype) for n, p in wanted.items()} or len(counts) != 1 or 0 in counts:
        raise ArtifactError(f"{manifest.model}: its golden vectors aren't those of its ports; compile it again")
    inputs, outputs = (tuple(arrays[f"{k}{n}"] for n in range(len(ports))) for k, ports in ends.items())
    return Vectors(inputs, outputs)


def given(artifact: Artifact) -> list[Port]:
    """The outputs that a caller gets."""
    return [p for p in artifact.manifest.outputs if p.name not in artifact.manifest.calling.kept_outputs]


def check(program: Executable, vectors: Vectors) -> str | None:
    """Run the program on every vector by itself; None, or what differs first. Raises what `run` raises."""
    for n in range(vectors.samples):
        # A copy: a program may write into its inputs.
        inputs = {p.name: x[n].copy() for p, x in zip(program.inputs, vectors.inputs, strict=True)}
        made = [as_array(a, p) for a, p in zip(program.run(inputs).outputs, program.outputs, strict=True)]
        wrong = difference(made, [y[n] for y in vectors.outputs], f"vector {n}")
        if wrong is not None:
            return wrong
    return None


def check_kept(program: Executable) -> int:
    """Check the vectors in the program's artifact; how many there are, 0 for none. Raises CuvilError for a difference,
    and what `run` raises."""
    kept = in_artifact(program.artifact)
    if kept is None:
        return 0
    if (wrong := check(program, kept)) is not None:
        raise CuvilError(f"{program.name}: its golden vectors fail: {wrong}")
    return kept.samples


def same(a: Array, b: Array) -> Array:
    """Where two arrays of one shape are equal; a NaN equals a NaN."""
    return np.asarray((a == b) | ((a != a) & (b != b)))


def difference(got: Sequence[Array], wanted: Sequence[Array], what: str) -> str | None:
    """The first difference, in words: integers to the bit, floats to FLOAT_TOLERANCE of the largest. None: equal."""
    if len(got) != len(wanted):
        return f"{what}: {len(got)} outputs, {len(wanted)} are expected"
    for n, (a, b) in enumerate(zip(got, wanted, strict=True)):
        a, b = dtypes.numbers(np.asarray(a)), dtypes.numbers(np.asarray(b))
        if a.shape != b.shape:
            return f"{what}: output {n} has shape {a.shape}, not {b.shape}"
        if b.dtype.kind == "f":
            scale = float(np.where(np.isfinite(b), np.abs(b), 0.0).max(initial=0.0))
            same = np.isclose(a, b, rtol=0, atol=FLOAT_TOLERANCE * max(scale, 1e-30), equal_nan=True)
        else:
            same = a == b
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            share = f"{int((~same).sum())} of {same.size}"
            return f"{what}: output {n}: {share} elements differ, first at {at}: {a[at]}, expected {b[at]}"
    return None

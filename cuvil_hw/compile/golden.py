"""Inputs and outputs of a device program for testbenches in generated projects, and of whole programs for checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden
from cuvil_hw.contract.calling import check_guards
from cuvil_hw.contract.device import Array
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Program, evaluate, parse
from cuvil_hw.runtime.artifact import Artifact
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.open_program import is_open
from cuvil_hw.runtime.vectors import Vectors, given
from cuvil_hw.types import TensorType

SAMPLES = 2


def golden(core: Program) -> Golden:
    """Random inputs of the device program, over the range of their dtypes (floats: normal distribution; fixed seed),
    and the outputs that NumPy computes from them.

    Inputs that the program refuses, such as an index outside its table, are replaced by zeros.
    """
    return Golden(lambda: drawn(core, SAMPLES))


def of_artifact(artifact: Artifact, samples: int = SAMPLES) -> Vectors:
    """Golden vectors of a whole program, computed from the IR in its artifact: inputs as `golden` draws them, or zeros
    where the program's guards refuse those.

    Raises CuvilError for a program that can't have any: open shapes, state, or guards that refuse zeros too."""
    manifest = artifact.manifest
    if is_open(artifact) or manifest.calling.states:
        why = "keeps state from call to call" if manifest.calling.states else "has open shapes"
        raise CuvilError(f"{manifest.model}: {why}, so golden vectors don't say what one call gives; leave them out")
    program = meaning(artifact)
    inputs, outputs = drawn(program, samples, lambda made: check_guards(manifest.calling, made, manifest.model))
    made = dict(zip((p.name for p in manifest.outputs), outputs, strict=True))
    return Vectors(inputs, tuple(made[p.name] for p in given(artifact)))


def meaning(artifact: Artifact) -> Program:
    """The whole program of fixed shapes in an artifact, which `evaluate` computes in NumPy."""
    return parse(artifact.ir, artifact.constants(), artifact.manifest.model)  # type: ignore[arg-type]  # any mapping


def kept(executable: Executable, samples: int) -> Executable:
    """The executable with so many golden vectors in its artifact. Raises as `of_artifact`."""
    if samples:
        artifact = executable.artifact
        files = {**artifact.files, **of_artifact(artifact, samples).files()}
        executable.artifact = replace(artifact, files=files)
    return executable


def drawn(
    program: Program, samples: int, accept: Callable[[Mapping[str, Array]], None] = lambda outputs: None
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Inputs (samples, *shape), drawn as `golden` says, and the outputs that NumPy computes from them. `accept` raises
    CuvilError for outputs by name, of a sample whose inputs the program refuses."""
    names = [name for name, _ in program.outputs]

    def run(sample: Sequence[Array]) -> list[Array]:
        outputs = evaluate(program, sample)
        accept({name: array[None] for name, array in zip(names, outputs, strict=True)})
        return outputs

    draw = np.random.default_rng(0)
    inputs = [_draw(draw, kind, samples) for _, kind in program.inputs]
    try:
        runs = [run([stack[i] for stack in inputs]) for i in range(samples)]
    except CuvilError:
        inputs = [np.zeros_like(stack) for stack in inputs]
        runs = [run([stack[i] for stack in inputs]) for i in range(samples)]
    return tuple(inputs), tuple(np.stack(results) for results in zip(*runs, strict=True))


def _draw(draw: np.random.Generator, kind: TensorType, samples: int) -> Array:
    if dtypes.is_float(kind.dtype):
        return dtypes.convert(draw.normal(size=(samples, *kind.shape)), kind.dtype)
    low, high = dtypes.int_range(kind.dtype)
    drawn = draw.integers(low, high, (samples, *kind.shape), np.uint64 if high >= 1 << 63 else np.int64, endpoint=True)
    return drawn.astype(dtypes.to_numpy(kind.dtype))

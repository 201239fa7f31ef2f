"""Inputs and outputs of a device program for the testbenches in generated projects."""

from __future__ import annotations

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden
from cuvil_hw.contract.device import Array
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Program, evaluate
from cuvil_hw.types import TensorType

SAMPLES = 2


def golden(core: Program) -> Golden:
    """Random inputs of the device program, over the range of their dtypes (floats: normal distribution; fixed seed),
    and the outputs that NumPy computes from them.

    Inputs that the program refuses, such as an index outside its table, are replaced by zeros.
    """
    return Golden(lambda: drawn(core, SAMPLES))


def drawn(program: Program, samples: int) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Inputs (samples, *shape), drawn as `golden` says, and the outputs that NumPy computes from them."""
    draw = np.random.default_rng(0)
    inputs = [_draw(draw, kind, samples) for _, kind in program.inputs]
    try:
        runs = [evaluate(program, [stack[i] for stack in inputs]) for i in range(samples)]
    except CuvilError:
        inputs = [np.zeros_like(stack) for stack in inputs]
        runs = [evaluate(program, [stack[i] for stack in inputs]) for i in range(samples)]
    return tuple(inputs), tuple(np.stack(results) for results in zip(*runs, strict=True))


def _draw(draw: np.random.Generator, kind: TensorType, samples: int) -> Array:
    if dtypes.is_float(kind.dtype):
        return dtypes.convert(draw.normal(size=(samples, *kind.shape)), kind.dtype)
    low, high = dtypes.int_range(kind.dtype)
    drawn = draw.integers(low, high, (samples, *kind.shape), np.uint64 if high >= 1 << 63 else np.int64, endpoint=True)
    return drawn.astype(dtypes.to_numpy(kind.dtype))

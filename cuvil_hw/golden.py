"""Inputs and outputs of a device program for the testbenches in generated projects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime.device import Array
from cuvil_hw.types import TensorType

if TYPE_CHECKING:
    from cuvil_hw.ir.program import Program

SAMPLES = 2


def golden(core: Program) -> Golden:
    """Inputs of the device program drawn over the range of their dtypes (fixed seed), and what NumPy gives for them.

    Empty for a program that computes floats: only integers have the same bits everywhere. Zeros take the place of
    inputs that the program refuses, such as an index outside its table.
    """
    from cuvil_hw.ir.program import evaluate

    if any(dtypes.is_float(kind.dtype) for _, kind in (*core.inputs, *core.outputs)):
        return Golden()
    draw = np.random.default_rng(0)
    inputs = [_draw(draw, kind) for _, kind in core.inputs]
    try:
        runs = [evaluate(core, [stack[i] for stack in inputs]) for i in range(SAMPLES)]
    except CuvilError:
        inputs = [np.zeros_like(stack) for stack in inputs]
        runs = [evaluate(core, [stack[i] for stack in inputs]) for i in range(SAMPLES)]
    return Golden(tuple(inputs), tuple(np.stack(results) for results in zip(*runs, strict=True)))


def _draw(draw: np.random.Generator, kind: TensorType) -> Array:
    low, high = dtypes.int_range(kind.dtype)
    drawn = draw.integers(low, high, (SAMPLES, *kind.shape), np.uint64 if high >= 1 << 63 else np.int64, endpoint=True)
    return drawn.astype(dtypes.to_numpy(kind.dtype))

"""The int8 MLP 16-64-32-5 that benchmarks/mlp_rtl.py gives to several generators of hardware; NumPy only.

A layer is y = clip(floor((W x + b) / 2^shift), lo, 127) with int8 weights; lo is 0 between layers, as a ReLU, and -128
behind the last. Ratios of two are what all of them can say exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

SIZES = (16, 64, 32, 5)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layer:
    """`weights`: int8 (outputs, inputs); `bias`: int32."""

    weights: Array
    bias: Array
    shift: int
    lo: int


def network(seed: int = 0) -> list[Layer]:
    """Normal weights, the largest of each layer at 127; shifts by which few results saturate."""
    draw = np.random.default_rng(seed)
    made = []
    for n, (inputs, outputs) in enumerate(pairwise(SIZES)):
        weights = draw.normal(size=(outputs, inputs))
        weights = np.round(weights * 127 / np.abs(weights).max()).astype(np.int8)
        bias = draw.integers(-2000, 2000, outputs).astype(np.int32)
        made.append(Layer(weights, bias, int(np.ceil(np.log2(np.sqrt(inputs) * 40 * 1.5))), 0 if n < 2 else -128))
    return made


def meaning(layers: list[Layer], x: Array) -> Array:
    """int8 (samples, 16) → int8 (samples, 5)."""
    values = x.astype(np.int64)
    for layer in layers:
        sums = values @ layer.weights.T.astype(np.int64) + layer.bias
        values = np.clip(sums >> layer.shift, layer.lo, 127)
    return values.astype(np.int8)


def samples(count: int) -> Array:
    return np.random.default_rng(1).integers(-128, 128, (count, SIZES[0])).astype(np.int8)

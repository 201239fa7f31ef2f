"""Checks whether calibration data have the scale that a model was trained for.

Pixels of 0 to 255 for a model that expects 0 to 1 give ranges that look normal, but the first layers' results don't.
Two things are checked: batch norms know mean and deviation of their inputs in training; and in working networks the
first layers' products are neither in the hundreds nor in the hundredths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops.nn import Conv, Linear
from cuvil_hw.passes.edit import owner, static_array

Array = npt.NDArray[Any]
LEAST, MOST = 0.03, 50.0  # root mean square of a first layer's products that goes unmentioned
LARGE, BESIDE = 20.0, 100.0  # as does less than MOST, unless the biases vanish beside it: from LARGE on, BESIDE times
FACTOR = 8.0  # by which a deviation may miss that of training


@dataclass
class _Seen:
    count: int = 0
    sums: Array = field(default_factory=lambda: np.zeros(1))
    squares: Array = field(default_factory=lambda: np.zeros(1))

    def add(self, y: Array) -> None:
        """y (N, channels, …)."""
        rows = np.moveaxis(y.astype(np.float64), 1, 0).reshape(y.shape[1], -1)
        self.count += rows.shape[1]
        self.sums, self.squares = self.sums + rows.sum(axis=1), self.squares + np.square(rows).sum(axis=1)

    @property
    def deviation(self) -> float:
        """Of the channels, about their own means."""
        return math.sqrt(float((self.squares / self.count - np.square(self.sums / self.count)).clip(0).mean()))

    @property
    def size(self) -> float:
        return math.sqrt(float((self.squares / self.count).mean()))


class Scale:
    """Watches what layers give for calibration data."""

    def __init__(self, program: Program) -> None:
        self._inputs: dict[SSAValue, tuple[str, object]] = dict(zip(program.block.args, program.inputs, strict=True))
        normed: Mapping[SSAValue, float] = program.notes.get("norms", {})
        layers = [o for o in program.block.ops if isinstance(o, level1.TensorOp) and isinstance(o.op, Conv | Linear)]
        results = {o.results[0] for o in program.block.ops if o.results}
        self._norms = {v: wanted for v, wanted in normed.items() if v in results}
        self._bias: dict[SSAValue, Array] = {}
        self._given: dict[SSAValue, str] = {}
        for layer in layers:
            source = _input_of(program, layer.operands[0])
            bias = static_array(program, layer.operands[2]) if len(layer.operands) > 2 else np.zeros(1)
            kind = level1.type_of(layer.results[0])
            if source in self._inputs and bias is not None and dtypes.is_float(kind.dtype):
                axis = layer.spec.layer_axis % kind.rank
                self._bias[layer.results[0]] = bias.reshape([-1 if d == axis else 1 for d in range(kind.rank)])
                self._given[layer.results[0]] = self._inputs[source][0]
        self._seen: dict[SSAValue, _Seen] = {}
        self._products: dict[SSAValue, _Seen] = {}

    def add(self, values: Mapping[SSAValue, Array]) -> None:
        """`values`: of one sample."""
        for value in self._norms:
            if value in values and values[value].ndim > 1 and values[value].size:
                self._seen.setdefault(value, _Seen()).add(values[value])
        for value, bias in self._bias.items():
            if value in values and values[value].size:
                self._products.setdefault(value, _Seen()).add((values[value] - bias).reshape(1, 1, -1))

    def doubts(self) -> tuple[str, ...]:
        """What looks wrong, in words; findings from batch norms take precedence."""
        for value, seen in self._seen.items():
            ratio = seen.deviation / self._norms[value]
            if not 1 / FACTOR <= ratio <= FACTOR:
                return (
                    "the calibration data seems to have another scale than the training data: the batch norm behind "
                    f"layer {_where(value)} gives {ratio:.3g} times the deviation that it gave in training; scale it "
                    "as in training",
                )
        if self._seen:
            return ()
        found = []
        for value, seen in self._products.items():
            bias = math.sqrt(float(np.square(self._bias[value]).mean()))
            alone = seen.size > LARGE and 0 < BESIDE * bias < seen.size
            if alone or not LEAST <= seen.size <= MOST:
                usual = "small" if seen.size < LEAST else "large"
                found.append(
                    f"the calibration data may have another scale than the training data: the products of "
                    f"{_where(value)} with input {self._given[value]} are {seen.size:.3g} (root mean square), which is "
                    f"{usual}; check that it is scaled as in training"
                )
        return tuple(found)


def _input_of(program: Program, value: SSAValue) -> SSAValue:
    """The value that `value` is, up to its place, scale and offset."""
    while (operation := owner(value)) is not None and isinstance(operation, level1.TensorOp):
        if operation.spec.moves:
            value = operation.operands[0]
        elif operation.spec.is_linear:
            computed = [v for v in operation.operands if static_array(program, v) is None]
            if len(computed) != 1:
                break
            value = computed[0]
        else:
            break
    return value


def _where(value: SSAValue) -> str:
    operation = owner(value)
    return (level1.loc_of(operation) if operation is not None else "") or "an unnamed layer"

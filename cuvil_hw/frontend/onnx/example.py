"""Shapes of an ONNX model's inputs from arrays that it may be called with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from cuvil_hw.dtypes import is_float
from cuvil_hw.errors import InputError
from cuvil_hw.frontend.onnx.load import read
from cuvil_hw.frontend.onnx.node import DTYPES
from cuvil_hw.runtime.inputs import is_tensor


def example_shapes(
    model: str | Path | onnx.ModelProto, example_inputs: Any, constants: Iterable[str]
) -> dict[str, tuple[int, ...]]:
    """Shapes by input name. `example_inputs`: an array, one array per input in the file's order, or arrays by name;
    inputs named in `constants` are left out. Raises InputError for a wrong number, unknown names, and element types of
    another kind."""
    proto, title = read(model)
    given = {i.name for i in proto.graph.initializer} | set(constants)
    inputs = {i.name: i.type.tensor_type.elem_type for i in proto.graph.input if i.name not in given}
    listed = ", ".join(inputs)
    if isinstance(example_inputs, Mapping):
        arrays = {str(name): value for name, value in example_inputs.items()}
        if unknown := sorted(arrays.keys() - inputs.keys()):
            raise InputError(f"example_inputs: {title} has no input {unknown[0]!r}; it has {listed}")
    else:
        several = isinstance(example_inputs, tuple | list) and not np.isscalar(example_inputs)
        values = list(example_inputs) if several else [example_inputs]
        if len(values) != len(inputs):
            raise InputError(f"example_inputs: {len(values)} given, {title} has {len(inputs)} inputs: {listed}")
        arrays = dict(zip(inputs, values, strict=True))
    shapes = {}
    for name, value in arrays.items():
        example = value if is_tensor(value) else np.asarray(value)
        wanted, held = DTYPES.get(inputs[name], ""), str(example.dtype).removeprefix("torch.")
        bits = wanted == "bf16" and held == "uint16"
        if held.startswith(("object", "<U", "|S")) or (wanted and is_float(wanted) != ("float" in held or bits)):
            raise InputError(f"example_inputs: input {name!r} of {title} is {wanted}, the example is {held}")
        shapes[name] = tuple(example.shape)
    return shapes

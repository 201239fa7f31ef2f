"""Outputs of a program → what the function returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cuvil_hw.frontend.python.load import Arguments, Leaf, Traced
from cuvil_hw.runtime.device import Array


def rebuilt(traced: Traced, outputs: Sequence[Array], given: Arguments) -> Any:
    """The function's result. `outputs`: the visible outputs of the program, in order; `given`: the call's arguments."""
    return pytree.tree_unflatten([_leaf(leaf, outputs, given.arrays) for leaf in traced.leaves], traced.spec)


def _leaf(leaf: Leaf, outputs: Sequence[Array], arrays: Sequence[Any]) -> Any:
    if leaf.kind == "fixed":
        return leaf.value
    if leaf.kind == "input":
        return arrays[leaf.index]
    array = np.asarray(outputs[leaf.index])
    if leaf.kind == "tensor":
        return torch.from_numpy(array)
    if leaf.kind == "scalar":
        return array[()]
    return array.item() if leaf.kind == "number" else array

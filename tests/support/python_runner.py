"""A Python function traced and run on the reference interpreter, compared with Python's own run of it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cuvil_hw.errors import GuardError
from cuvil_hw.frontend.python import load, result
from cuvil_hw.ir.program import evaluate


def on_reference(traced: load.Traced, given: load.Arguments) -> Any:
    """The result of a call; what the program changes is changed in the arguments. Raises as a compiled call does."""
    arrays = [x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in given.arrays]
    names = [n for n, _ in traced.program.outputs]
    outputs = {n: np.array(v) for n, v in zip(names, evaluate(traced.program, arrays), strict=True)}
    calling = traced.program.calling
    for guard in calling.guards:
        if not outputs[guard.output].all():
            raise traced.errors.get(guard.message, GuardError)(guard.message)
    for write in calling.writes:
        arrays[given.names.index(write.input)][...] = outputs[write.output]
    visible = [v for n, v in outputs.items() if n not in calling.kept_outputs]
    return result.rebuilt(traced, visible, given.arrays)


def same(got: Any, want: Any) -> None:
    """Equal structure, types, dtypes and shapes; equal integers; floats within a few units in the last place of
    float32."""
    (mine, spec), (theirs, expected) = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert spec == expected
    for a, b in zip(mine, theirs, strict=True):
        assert type(a) is type(b), (a, b)
        if isinstance(b, torch.Tensor | np.ndarray | np.generic):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
        a, b = (x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in (a, b))
        if isinstance(b, str | None):
            assert a == b
        else:
            exact = np.asarray(b).dtype.kind in "biu"
            np.testing.assert_allclose(a, b, rtol=0 if exact else 2e-6, atol=0 if exact else 1e-6)


def agrees(f: Any, *calls: tuple[Any, ...], max_trips: int = 8) -> load.Traced:
    """Trace `f` on the first call; every call must give and change what Python does."""
    traced = load.trace_function(f, load.arguments(f, copy.deepcopy(calls[0]), {}), max_trips, f.__name__)
    for call in calls:
        mine, theirs = copy.deepcopy(call), copy.deepcopy(call)
        given = load.arguments(f, mine, {})
        try:
            want = f(*theirs)
        except Exception as error:
            try:
                on_reference(traced, given)
            except type(error):
                continue
            raise AssertionError(f"{f.__name__} should raise {error!r}") from error
        same(on_reference(traced, given), want)
        same(mine, theirs)
    return traced

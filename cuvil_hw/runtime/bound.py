"""A call on fixed arrays, made by `program.bind`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cuvil_hw.contract.device import Array, Port
from cuvil_hw.dtypes import to_numpy
from cuvil_hw.errors import InputError
from cuvil_hw.runtime.inputs import to_caller


class Bound:
    """`bound()` runs the program on what the arrays hold now, and returns the outputs' arrays: the same ones each time.
    One call at a time. Raises what calling the program raises."""

    __slots__ = ("_direct", "_outputs", "_result", "_run")

    def __init__(
        self, direct: Callable[[], bool] | None, run: Callable[[], Sequence[Any]], outputs: Sequence[Array]
    ) -> None:
        """`run`: the general way, which returns fresh outputs."""
        self._direct, self._run, self._outputs = direct, run, tuple(outputs)
        self._result = self._outputs[0] if len(self._outputs) == 1 else self._outputs

    def __call__(self) -> Any:
        if self._direct is None or not self._direct():
            for target, made in zip(self._outputs, self._run(), strict=True):
                target[...] = made
        return self._result


def outputs_of(out: Any, ports: Sequence[Port], n: int) -> tuple[Array, ...]:
    """The arrays that outputs of n samples go to: `out` is None (fresh ones), one array, a sequence, or a mapping by
    name. Raises InputError for arrays that can't hold them."""
    shapes = [p.shape if n == 1 else (n * p.shape[0], *p.shape[1:]) for p in ports]
    fresh = [to_caller(np.empty(s, to_numpy(p.dtype))) for s, p in zip(shapes, ports, strict=True)]
    if out is None:
        return tuple(fresh)
    if isinstance(out, Mapping):
        out = [out.get(p.name) for p in ports]
    given = [out] if isinstance(out, np.ndarray) else list(out)
    if len(given) != len(ports):
        raise InputError(f"out gives {len(given)} arrays, the program has {len(ports)} outputs")
    for array, like, port in zip(given, fresh, ports, strict=True):
        if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (like.shape, like.dtype):
            raise InputError(f"out for {port.name!r} is no array of {like.dtype} {like.shape}")
        if not (array.flags.writeable and array.flags.c_contiguous and array.flags.aligned):
            raise InputError(f"out for {port.name!r} is read-only, or not contiguous")
    return tuple(given)

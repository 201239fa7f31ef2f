"""Expressions of loop counters and constants alone, over whole grids: where a load lies, where a condition holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Apply, Const, Expr, Iter, Load, Lookup, Reduce, Select, State
from cuvil_hw.expr.scalar import on_arrays
from cuvil_hw.expr.traverse import walk

Array = npt.NDArray[Any]


def by_position(e: Expr, sources: Collection[str]) -> bool:
    """Whether `e` depends on where it is computed alone, and not on what streams in."""
    return not any(isinstance(n, Reduce | State) or (isinstance(n, Load) and n.buffer in sources) for n in walk(e))


def evaluate(e: Expr, values: Mapping[Iter, Array], constants: Mapping[str, Array]) -> Array:
    """An expression on integers, bool and indices. `values`: each iterator's, shaped to broadcast over all of them;
    `constants`: arrays by buffer. Raises CuvilError for what it can't compute."""

    def go(x: Expr) -> Array:
        return evaluate(x, values, constants)

    match e:
        case Const():
            return np.asarray(e.value if e.dtype == "bool" else int(e.value))
        case Iter():
            if e not in values:
                raise CuvilError(f"iterator {e.name} has no values here")
            return values[e]
        case Load():
            if e.buffer not in constants:
                raise CuvilError(f"{e.buffer} has no values here")
            return _at(constants[e.buffer], [go(i) for i in e.index])
        case Lookup():
            return _at(np.asarray(e.values), [go(e.index)])
        case Select():
            return np.where(go(e.cond), go(e.then), go(e.other))
        case Apply(op="cast") if not any(dtypes.is_float(x.dtype) for x in (e, *e.args)):
            return _within(go(e.args[0]), e.dtype)
        case Apply() if not any(dtypes.is_float(x.dtype) for x in (e, *e.args)):
            return _within(np.asarray(on_arrays(e.op)(*map(go, e.args))), e.dtype)
    raise CuvilError(f"not an expression of positions: {e}")


def _within(array: Array, dtype: str) -> Array:
    """Raises CuvilError where integers of the width would wrap: these are computed in 64 bits."""
    if dtypes.is_int(dtype) and array.size:
        lo, hi = dtypes.int_range(dtype)
        if array.min() < lo or array.max() > hi:
            raise CuvilError(f"positions leave {dtype}")
    return array


def _at(array: Array, index: list[Array]) -> Array:
    for i, size in zip(index, array.shape, strict=True):
        if i.size and (i.min() < 0 or i.max() >= size):
            raise CuvilError("an index outside its table")
    return np.asarray(array[tuple(index)])

"""Evaluates ops on arrays of sizes, since exporters compute shapes by ops (Shape → Gather → Mul → Concat → Reshape)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_hw.extent.polynomial import whole
from cuvil_hw.extent.size import Size, of, sized
from cuvil_hw.ops.base import Op

Array = npt.NDArray[Any]
MOST = 4096  # elements: shapes have few


def symbolic(values: Any) -> Array | None:
    """An object array of `values` (numbers, or nested sequences of them) if one of them is a Size; else None."""
    if isinstance(values, Size):
        return _objects([values], ())
    if isinstance(values, list | tuple) and any(isinstance(v, Size) for v in values):
        return _objects(values, (len(values),))
    return None


def holds_sizes(array: Array) -> bool:
    return any(isinstance(v, Size) for v in array.reshape(-1).tolist())


def _objects(values: Sequence[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def evaluate(op: Op, arrays: Sequence[Array], real: bool) -> Array | None:
    """The op's result on arrays of which some hold sizes; None if only the numbers can be computed, not their
    expressions. `real`: the operands are floats."""
    if max(a.size for a in arrays) > MOST:
        return None
    boxed = [a if a.dtype == object else a.astype(object) for a in arrays]
    if op.mnemonic in MOVES:
        # These pick elements by position and look at no element; indices of a gather stay numbers.
        operands = [boxed[0], arrays[1]] if op.mnemonic == "gather" else boxed
        if op.mnemonic == "gather" and arrays[1].dtype == object:
            return None
        result = op.evaluate(*operands)
        return result if isinstance(result, np.ndarray) else _objects([result], ())
    if op.mnemonic in ("reduce_prod", "reduce_sum") and boxed[0].ndim == 1:
        values = boxed[0].tolist()
        total = prod(values) if op.mnemonic == "reduce_prod" else sum(values)
        return _objects([total], (1,) if getattr(op, "keepdims", False) else ())
    scalar = _ratio if real and op.mnemonic == "div" else SCALAR.get(op.mnemonic)
    if scalar is None:
        return None
    cells = [scalar(*cell) for cell in zip(*(a.reshape(-1).tolist() for a in boxed), strict=True)]
    return None if any(c is None for c in cells) else _objects(cells, boxed[0].shape)


def _cast(x: Any) -> Any:
    return x if isinstance(x, int) else None


def _times(a: Any, b: Any) -> Any:
    return _whole(a) * _whole(b) if _whole(a) is not None and _whole(b) is not None else None


def _divide(a: Any, b: Any) -> Any:
    """Truncation is floor where both are at least 0, as extents are."""
    a, b = _whole(a), _whole(b)
    return a // b if a is not None and b is not None and a >= 0 and b > 0 else None


def _ratio(a: Any, b: Any) -> Any:
    """Division of floats: kept only if the quotient is a whole number for every size."""
    a, b = _whole(a), _whole(b)
    if a is None or b is None or b == 0 or a % b:
        return None
    return sized(a // b, quotient) if (quotient := whole(of(a)).divided(whole(of(b)))) is not None else None


def _whole(x: Any) -> Any:
    """Whole floats (scales of 2.0) as ints."""
    if isinstance(x, float):
        return int(x) if x.is_integer() else None
    return x


def _plus(a: Any, b: Any) -> Any:
    return _whole(a) + _whole(b) if _whole(a) is not None and _whole(b) is not None else None


def _minus(a: Any, b: Any) -> Any:
    return _whole(a) - _whole(b) if _whole(a) is not None and _whole(b) is not None else None


MOVES = frozenset({"gather", "concat", "slice", "reshape", "transpose", "broadcast_to"})
SCALAR: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": _plus,
        "sub": _minus,
        "mul": _times,
        "div": _divide,
        "neg": lambda a: -a,
        "floor": _cast,
        "ceil": _cast,
        "identity": _cast,
        "minimum": lambda a, b: a if a <= b else b,
        "maximum": lambda a, b: a if a >= b else b,
        "where": lambda c, a, b: a if c else b,
        "equal": lambda a, b: a == b,
        "less": lambda a, b: a < b,
        "greater": lambda a, b: a > b,
        "cast": _cast,
    }
)

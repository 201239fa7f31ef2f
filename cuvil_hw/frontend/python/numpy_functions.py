"""NumPy's functions of traced arrays.

Which dtype a result has is asked of NumPy: of `ufunc.resolve_dtypes` for element functions, of the function itself on
arrays of ones for all others. What computes is torch: element functions as listed in elements.py, others by torch's own
NumPy layer (the one that torch.compile uses). A function that the two don't agree on is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cuvil_hw.frontend.python.arrays import Array, as_tensor, behaviour, constants, numpy_dtype, torch_dtype
from cuvil_hw.frontend.python.elements import ELEMENTS
from cuvil_hw.frontend.python.libraries import DATA_SHAPE, POSITIONS
from cuvil_hw.frontend.python.number import Number, is_python_number, kind_of
from cuvil_hw.frontend.python.replaced import REPLACED, alike, positions
from cuvil_hw.frontend.python.trace import current, refuse

torch_numpy: Any = importlib.import_module("torch._numpy")

# Element functions whose accumulation NumPy also offers under a name of its own.
_REDUCE = {
    "add": np.sum,
    "multiply": np.prod,
    "maximum": np.max,
    "minimum": np.min,
    "logical_and": np.all,
    "logical_or": np.any,
}
_ACCUMULATE = {"add": np.cumsum, "multiply": np.cumprod}
_OF_TYPE = frozenset([
    "shape", "ndim", "size", "result_type", "can_cast", "iscomplexobj", "isrealobj", "common_type",
    "min_scalar_type",
])  # fmt: skip
_VIEW_OR_COPY = frozenset(["reshape", "ravel", "ascontiguousarray", "asfortranarray", "require"])
_SUMS = frozenset(["sum", "prod", "mean", "std", "var", "cumsum", "cumprod", "nansum", "nanprod", "nanmean"])
_ALIKE = frozenset([
    "where", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "append", "select", "choose",
])  # fmt: skip


def _known(values: Any) -> tuple[bool, Any]:
    """Whether no value depends on an input, and then the values themselves."""
    leaves, spec = pytree.tree_flatten(values)
    if any(isinstance(x, Number | torch.Tensor) or (isinstance(x, Array) and x.known is None) for x in leaves):
        return False, None
    return True, pytree.tree_unflatten([x.known if isinstance(x, Array) else x for x in leaves], spec)


@behaviour("ufunc")
def _ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if method == "__call__":
        return _element(ufunc, inputs, kwargs)
    table = {"reduce": _REDUCE, "accumulate": _ACCUMULATE}.get(method, {})
    if ufunc.__name__ not in table:
        refuse(f"np.{ufunc.__name__}.{method}", "has no torch form; write it with other functions")
    if method == "reduce":
        kwargs.setdefault("axis", 0)
    reduction: Any = table[ufunc.__name__]
    return reduction(*inputs, **kwargs)


def _element(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    name, out, wanted = ufunc.__name__, kwargs.pop("out", None), kwargs.pop("dtype", None)
    if kwargs.pop("where", True) is not True or kwargs:
        refuse(f"np.{name}", f"with {', '.join(kwargs) or 'where'}=; use np.where")
    known, values = _known(tuple(inputs))
    if known and out is None:
        return constants(ufunc(*values, dtype=wanted) if wanted is not None else ufunc(*values))
    if getattr(np, name, None) is not ufunc:
        refuse(name, "is a function of another library than NumPy; use torch's or NumPy's function")
    if ufunc is np.divmod and out is None:
        typed: Any = {} if wanted is None else {"dtype": wanted}
        return tuple(_element(part, inputs, dict(typed)) for part in (np.floor_divide, np.remainder))
    if name not in ELEMENTS or ufunc.nout != 1:
        refuse(f"np.{name}", "has no torch form; write it with other functions")
    inputs = [x if isinstance(x, Array | Number) or is_python_number(x) else Array.of(x) for x in inputs]
    kinds = [x.dtype if isinstance(x, Array) else kind_of(x) for x in inputs]
    # Booleans are no weak numbers in NumPy: they are arrays of dtype bool.
    kinds = [np.dtype(bool) if k is bool else k for k in kinds]
    forced: Any = {} if wanted is None else {"signature": (None,) * ufunc.nin + (np.dtype(wanted),)}
    *dtypes, result = ufunc.resolve_dtypes((*kinds, None), **forced)
    scalar = all(x.scalar if isinstance(x, Array) else True for x in inputs)
    made = ELEMENTS[name](*(_operand(x, d) for x, d in zip(inputs, dtypes, strict=True)))
    made = made.to(torch_dtype(result))
    if out is None:
        return Array(made, scalar=scalar or (name in ("matmul", "vecdot") and made.ndim == 0))
    (target,) = out
    if not isinstance(target, Array):
        refuse(f"np.{name}", "out= is an array that the function doesn't own")
    if not np.can_cast(result, target.dtype, "same_kind"):
        raise TypeError(f"Cannot cast ufunc {name!r} output from {result} to {target.dtype} (rule 'same_kind')")
    if np.broadcast_shapes(tuple(made.shape), target.shape) != target.shape:
        raise ValueError(f"non-broadcastable output operand with shape {target.shape}")
    target.tensor.copy_(made)
    target.alive[0] = False
    return target


def _operand(x: Any, dtype: np.dtype[Any]) -> torch.Tensor:
    if isinstance(x, Array | Number):
        return x.tensor.to(torch_dtype(dtype))
    return torch.from_numpy(np.array(x, dtype))


@behaviour("function")
def _function(func: Any, args: Any, kwargs: Any) -> Any:
    name, module = func.__name__, func.__module__
    path = [p for p in module.split(".")[1:] if p in ("linalg", "fft")]
    label = ".".join(["np", *path, name])
    if name == "reshape" and len(args) > 1 and not isinstance(args[1], tuple | list):
        args = args[0], (args[1],), *args[2:]  # torch's NumPy layer asks a shape for its length
    known, values = _known((args, kwargs))
    if known:
        return _of_known(func, values, args, kwargs)
    if name in DATA_SHAPE - POSITIONS:
        refuse(label, "the shape of its result depends on the values; use np.where with three arguments, or masks")
    expected = _on_ones(func, label, args, kwargs)
    if name in POSITIONS and len(args) + len(kwargs) == 1:
        return positions(name, *args, *kwargs.values())
    if name in _OF_TYPE:
        return expected
    if not path and name in REPLACED:
        return _checked(label, torch_numpy.asarray(REPLACED[name](*args, **kwargs)), expected)
    home: Any = torch_numpy
    for part in path:
        home = getattr(home, part, None)
    equivalent: Callable[..., Any] | None = getattr(home, name, None)
    if equivalent is None:
        refuse(label, "has no torch form; write it with other functions")
    if name in _SUMS and kwargs.get("dtype") is None and isinstance(expected, np.ndarray | np.generic):
        kwargs = {**kwargs, "dtype": expected.dtype}
    if name in _ALIKE and isinstance(expected, np.ndarray | np.generic):
        args = alike(name, args, expected.dtype)
    if kwargs.get("out") is not None:
        refuse(label, "out= isn't supported; assign the result")
    given = pytree.tree_map(_to_torch, (list(args), dict(kwargs)))
    try:
        result = equivalent(*given[0], **given[1])
    except (NotImplementedError, TypeError, AttributeError) as e:
        refuse(label, f"isn't possible in this form: {str(e) or type(e).__name__}")
    made = _checked(label, result, expected)
    if name in _VIEW_OR_COPY and isinstance(args[0], Array):
        current().lay(args[0].tensor, made.tensor)
    return made


def _of_known(func: Any, values: Any, args: Any, kwargs: Any) -> Any:
    result = func(*values[0], **values[1])
    shared = [
        a
        for a in pytree.tree_leaves((args, kwargs))
        if isinstance(a, Array) and isinstance(result, np.ndarray) and np.may_share_memory(result, np.asarray(a.known))
    ]
    if not shared:
        return constants(result)
    # A view: of the tensor too, so that what is written to one is seen through the other.
    tensors = pytree.tree_map(_to_torch, (list(args), dict(kwargs)))
    view = getattr(torch_numpy, func.__name__)(*tensors[0], **tensors[1]).tensor
    return Array(view, result, shared[0].alive)


def _on_ones(func: Any, label: str, args: Any, kwargs: Any) -> Any:
    """NumPy's result for arrays of ones in place of unknown ones: gives structure, shapes and dtypes."""

    def stand_in(x: Any) -> Any:
        if isinstance(x, Array):
            if x.known is not None:
                return x.known
            # How many elements a mask selects isn't known: one stands for them.
            ones = np.ones(tuple(n if isinstance(n, int) else 1 for n in x.shape), x.dtype)
            return ones[()] if x.scalar else ones
        if isinstance(x, torch.Tensor):
            return np.ones(tuple(x.shape), numpy_dtype(x))
        return x.kind(1) if isinstance(x, Number) else x

    leaves, spec = pytree.tree_flatten((list(args), dict(kwargs)))
    plain = pytree.tree_unflatten([stand_in(x) for x in leaves], spec)
    with np.errstate(all="ignore"):
        try:
            return func(*plain[0], **plain[1])
        except np.linalg.LinAlgError:
            refuse(label, "isn't supported in a compiled function")


def _to_torch(x: Any) -> Any:
    if isinstance(x, Array | Number):
        return torch_numpy.asarray(x.tensor)
    if isinstance(x, torch.Tensor):
        return torch_numpy.asarray(x)
    if isinstance(x, np.ndarray | np.generic):
        return torch_numpy.asarray(as_tensor(x))
    if isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)):
        return getattr(torch_numpy, np.dtype(x).name + ("_" if np.dtype(x) == bool else ""))
    return x


def _checked(label: str, result: Any, expected: Any) -> Any:
    """Torch's result as NumPy's kind of result. Refuses a difference in structure, shape or dtype."""
    if isinstance(expected, tuple | list):
        if not isinstance(result, tuple | list) or len(result) != len(expected):
            refuse(label, "its torch form gives another number of results")
        parts = [_checked(label, r, e) for r, e in zip(result, expected, strict=True)]
        return type(expected)(*parts) if hasattr(expected, "_fields") else type(expected)(parts)
    if not isinstance(expected, np.ndarray | np.generic):
        refuse(label, f"gives a {type(expected).__name__}, which depends on values that are known at run time only")
    tensor = getattr(result, "tensor", None)
    if not isinstance(tensor, torch.Tensor) or not _fits(tuple(tensor.shape), np.shape(expected)):
        refuse(label, "its torch form gives another shape")
    if numpy_dtype(tensor) != expected.dtype:
        refuse(label, f"its torch form gives {numpy_dtype(tensor)}, NumPy {expected.dtype}; convert with astype first")
    return Array(tensor, scalar=isinstance(expected, np.generic))


def _fits(shape: tuple[Any, ...], expected: tuple[int, ...]) -> bool:
    """Whether a shape is the expected one, where that is known."""
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(a == b for a, b in pairs if isinstance(a, int))

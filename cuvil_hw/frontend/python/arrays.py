"""NumPy arrays while a function is traced: a tensor that answers NumPy's own dispatch protocol.

Which dtype a result has is asked of NumPy: of `ufunc.resolve_dtypes` for element functions, of the function itself on
arrays of ones for all others. What computes is torch: element functions as listed here, others by torch's own NumPy
layer (the one that torch.compile uses). A function that the two don't agree on is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cuvil_hw.frontend.python.elements import ELEMENTS
from cuvil_hw.frontend.python.libraries import DATA_SHAPE, POSITIONS
from cuvil_hw.frontend.python.number import Number, is_python_number, kind_of
from cuvil_hw.frontend.python.trace import current, memory, refuse

# Untyped: NumPy's functions take and give Arrays through its protocol; the other is torch's own module.
_NUMPY: Any = np
torch_numpy: Any = importlib.import_module("torch._numpy")
Known = np.ndarray[Any, Any] | np.generic

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
_SUMS = frozenset(["sum", "prod", "mean", "std", "var", "cumsum", "cumprod", "nansum", "nanprod", "nanmean"])
_ALIKE = frozenset([
    "where", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "append", "select", "choose",
])  # fmt: skip
_METHODS = frozenset([
    "sum", "prod", "mean", "std", "var", "min", "max", "argmin", "argmax", "cumsum", "cumprod", "squeeze",
    "swapaxes", "dot", "clip", "round", "any", "all", "repeat", "take", "trace", "diagonal", "argsort", "ptp",
    "nonzero",
])  # fmt: skip


def numpy_dtype(tensor: torch.Tensor) -> np.dtype[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16":
        refuse("bfloat16", "NumPy has no such dtype; convert with .float() first")
    return np.dtype(name)


def torch_dtype(dtype: Any) -> torch.dtype:
    found = getattr(torch, np.dtype(dtype).name, None)
    if not isinstance(found, torch.dtype):
        refuse(f"dtype {np.dtype(dtype)}", "torch has no such dtype")
    return found


def as_tensor(value: Any) -> torch.Tensor:
    """An array, traced or not, as a tensor; arrays that aren't traced are copied."""
    if isinstance(value, Array):
        return value.tensor
    if isinstance(value, torch.Tensor):
        return value
    array = np.array(value)
    torch_dtype(array.dtype)
    return torch.from_numpy(array)


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """`tensor`: its value. `scalar`: it stands for a NumPy scalar, which is immutable. `known`: its elements, while
    they depend on no input. `alive`: shared by all arrays on the same memory; becomes False when something else is
    written there."""

    traced = True

    def __init__(
        self, tensor: torch.Tensor, known: Known | None = None, alive: list[bool] | None = None, scalar: bool = False
    ) -> None:
        self.tensor, self.scalar = tensor, scalar
        self._known, self.alive = known, alive if alive is not None else [known is not None]

    @staticmethod
    def of(given: Any) -> Array:
        """A traced array of anything that NumPy takes as an array."""
        value: Any = given
        if isinstance(given, Array):
            return given
        if isinstance(value, torch.Tensor):
            return Array(value)
        if isinstance(value, np.ndarray | np.generic):
            known: Known = value
            return Array(as_tensor(known), known, scalar=isinstance(value, np.generic))
        if isinstance(value, Number):
            return Array(value.tensor)
        if isinstance(value, list | tuple) and _traced_inside(value):
            if any((isinstance(x, torch.Tensor) and not x.ndim) or isinstance(x, Number) for x in value):
                value = [Array.of(x) if isinstance(x, torch.Tensor | Number) else x for x in value]
            parts: Any = [Array.of(x) for x in value]
            stacked = _NUMPY.stack(parts)
            assert isinstance(stacked, Array)
            return stacked
        array = np.array(value)
        return Array(as_tensor(array), array)

    @property
    def known(self) -> Known | None:
        return self._known if self.alive[0] else None

    @property
    def dtype(self) -> np.dtype[Any]:
        return numpy_dtype(self.tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def size(self) -> int:
        return self.tensor.numel()

    @property
    def T(self) -> Array:
        return self.transpose()

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return iter([self[i] for i in range(len(self))])

    def __bool__(self) -> bool:
        return bool(self._value("a condition"))

    def __int__(self) -> int:
        return int(self._value("int()"))

    def __float__(self) -> float:
        return float(self._value("float()"))

    def __index__(self) -> int:
        value: Any = self._value("an index")
        return int(value.__index__())

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.array(self._value("a library function"), *args)

    def __hash__(self) -> int:
        raise TypeError("unhashable type: 'numpy.ndarray'")

    def _value(self, what: str) -> Known:
        if self.known is None:
            refuse(what, "needs the values of an array that depends on the inputs, and is known at run time only")
        return self.known

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kinds = [type(x) for x in (*args, *(kwargs or {}).values())]
        if getattr(func, "__name__", "") in _TORCH_OPERATORS and torch.Tensor in {k for k in kinds if k is not cls}:
            plain = [x.tensor if isinstance(x, Array) else x for x in args]
            return func(*plain, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        raise TypeError(f"{name}(): an argument must be a Tensor, not numpy.ndarray; use torch.from_numpy")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = ufunc.__name__
        if method == "__call__":
            return _element(ufunc, inputs, kwargs)
        table = {"reduce": _REDUCE, "accumulate": _ACCUMULATE}.get(method, {})
        if name not in table:
            refuse(f"np.{name}.{method}", "has no torch form; write it with other functions")
        if method == "reduce":
            kwargs.setdefault("axis", 0)
        reduction: Any = table[name]
        return reduction(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _function(func, args, kwargs)

    def __getitem__(self, index: Any) -> Array:
        from cuvil_hw.frontend.python.indexing import get

        return get(self, index)

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *args, **kwargs: getattr(np, name)(self, *args, **kwargs)
        if not name.startswith("_") and hasattr(np.ndarray, name):
            refuse(f"ndarray.{name}", "isn't supported in a compiled function")
        raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")

    def transpose(self, *axes: Any) -> Array:
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else (axes or None)
        return _NUMPY.transpose(self, order)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any) -> Array:
        wanted = shape[0] if len(shape) == 1 else shape
        return _NUMPY.reshape(self, wanted)  # type: ignore[no-any-return]

    def ravel(self) -> Array:
        return _NUMPY.ravel(self)  # type: ignore[no-any-return]

    def flatten(self) -> Array:
        return self.ravel().copy()

    def copy(self) -> Array:
        known = None if self.known is None else np.array(self.known)
        return Array(self.tensor.clone(), known)

    def astype(self, dtype: Any, copy: bool = True) -> Array:
        made = np.dtype(dtype)
        known = None if self.known is None else np.asarray(self.known).astype(made)
        tensor = self.tensor.to(torch_dtype(made))
        return Array(tensor.clone() if tensor is self.tensor else tensor, known, scalar=self.scalar)

    def view(self, dtype: Any = None) -> Array:
        """The same bits as another type; of another width, the last axis has fewer or more elements."""
        if dtype is None:
            return Array.of(self)
        if isinstance(dtype, type) and issubclass(dtype, np.ndarray):
            refuse("ndarray.view", "as another class of arrays isn't supported in a compiled function")
        made = np.dtype(dtype)
        known = None if self.known is None else np.asarray(self.known).view(made)
        return Array(self.tensor.view(torch_dtype(made)), known, self.alive, self.scalar)

    def item(self, *index: int) -> Any:
        value = Array.of(self[index] if index else self.reshape(()))
        kind = {"b": bool, "f": float}.get(value.dtype.kind, int)
        if value.known is not None:
            return np.asarray(value.known).item()
        return Number(value.tensor.to({bool: torch.bool, int: torch.int64, float: torch.float64}[kind]), kind)

    def tolist(self) -> Any:
        return self._value("tolist()").tolist()


_TORCH_OPERATORS = frozenset([
    "add", "sub", "mul", "div", "__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rsub__",
    "__rmul__", "__rtruediv__", "__gt__", "__lt__", "__ge__", "__le__", "__eq__", "__ne__", "gt", "lt", "ge",
    "le", "eq", "ne", "true_divide", "floor_divide", "__floordiv__", "pow", "__pow__", "remainder", "__mod__",
])  # fmt: skip


def _traced_inside(values: Any) -> bool:
    return any(isinstance(x, Array | torch.Tensor | Number) for x in pytree.tree_leaves(values))


def _known(values: Any) -> tuple[bool, Any]:
    """Whether no value depends on an input, and then the values themselves."""
    leaves, spec = pytree.tree_flatten(values)
    if any(isinstance(x, Number | torch.Tensor) or (isinstance(x, Array) and x.known is None) for x in leaves):
        return False, None
    return True, pytree.tree_unflatten([x.known if isinstance(x, Array) else x for x in leaves], spec)


def constants(result: Any) -> Any:
    """Results of NumPy that depend on no input: arrays become traced ones that still know their values."""
    if isinstance(result, np.ndarray) and result.dtype.kind in "biuf":
        return Array(as_tensor(result), result)
    if isinstance(result, tuple | list):
        parts = [constants(r) for r in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return result


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


def _function(func: Any, args: Any, kwargs: Any) -> Any:
    name, module = func.__name__, func.__module__
    path = [p for p in module.split(".")[1:] if p in ("linalg", "fft")]
    label = ".".join(["np", *path, name])
    known, values = _known((args, kwargs))
    if known:
        return _of_known(func, values, args, kwargs)
    if name in DATA_SHAPE - POSITIONS:
        refuse(label, "the shape of its result depends on the values; use np.where with three arguments, or masks")
    expected = _on_ones(func, label, args, kwargs)
    if name in POSITIONS and len(args) + len(kwargs) == 1:
        from cuvil_hw.frontend.python.replaced import positions

        return positions(name, *args, *kwargs.values())
    if name in _OF_TYPE:
        return expected
    if not path and name in (own := _replaced()):
        return _checked(label, torch_numpy.asarray(own[name](*args, **kwargs)), expected)
    home: Any = torch_numpy
    for part in path:
        home = getattr(home, part, None)
    equivalent: Callable[..., Any] | None = getattr(home, name, None)
    if equivalent is None:
        refuse(label, "has no torch form; write it with other functions")
    if name in _SUMS and kwargs.get("dtype") is None and isinstance(expected, np.ndarray | np.generic):
        kwargs = {**kwargs, "dtype": expected.dtype}
    if name in _ALIKE and isinstance(expected, np.ndarray | np.generic):
        from cuvil_hw.frontend.python.replaced import alike

        args = alike(name, args, expected.dtype)
    if kwargs.get("out") is not None:
        refuse(label, "out= isn't supported; assign the result")
    given = pytree.tree_map(_to_torch, (list(args), dict(kwargs)))
    try:
        result = equivalent(*given[0], **given[1])
    except (NotImplementedError, TypeError, AttributeError) as e:
        refuse(label, f"isn't possible in this form: {str(e) or type(e).__name__}")
    return _checked(label, result, expected)


def _replaced() -> Any:
    from cuvil_hw.frontend.python.replaced import REPLACED

    return REPLACED


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


def reversed_view(array: Array) -> None:
    """Forbid changes of the array from now on: NumPy would share its memory with the reversed view, torch can't."""
    current().frozen[memory(array.tensor)] = "an array of which a reversed view was taken"

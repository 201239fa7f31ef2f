"""NumPy arrays while a function is traced: a tensor that answers NumPy's own dispatch protocol.

numpy_functions.py computes NumPy's functions of arrays, indexing.py their subscripts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cuvil_hw.frontend.python.number import Number
from cuvil_hw.frontend.python.trace import current, memory, refuse

_NUMPY: Any = np  # untyped: its functions take and give Arrays through its protocol
F = TypeVar("F", bound=Callable[..., Any])
Known = np.ndarray[Any, Any] | np.generic

_METHODS = frozenset([
    "sum", "prod", "mean", "std", "var", "min", "max", "argmin", "argmax", "cumsum", "cumprod", "squeeze",
    "swapaxes", "dot", "clip", "round", "any", "all", "repeat", "take", "trace", "diagonal", "argsort", "ptp",
    "nonzero",
])  # fmt: skip


# What arrays do takes arrays: subscripts and functions are in modules that import this one, and enter themselves here.
_behaviour: dict[str, Callable[..., Any]] = {}


def behaviour(name: str) -> Callable[[F], F]:
    """Make a function what arrays call: for "ufunc" (functions of elements), "function" (NumPy's others) or
    "subscript"."""

    def enter(f: F) -> F:
        _behaviour[name] = f
        return f

    return enter


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


def own_operations(value: Any) -> str:
    """Why an array of a class derived from NumPy's, such as np.matrix, can't be traced: its operations may be others.
    "" where it can."""
    kind = type(value)
    if not isinstance(value, np.ndarray) or kind in (np.ndarray, np.memmap):
        return ""
    return f"is a {kind.__module__}.{kind.__qualname__}, whose operations may be its own; use np.asarray of it"


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
        return _behaviour["ufunc"](ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _behaviour["function"](func, args, kwargs)

    def __getitem__(self, index: Any) -> Array:
        return _behaviour["subscript"](self, index)  # type: ignore[no-any-return]

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


def constants(result: Any) -> Any:
    """Results of NumPy that depend on no input: arrays become traced ones that still know their values."""
    if isinstance(result, np.ndarray) and result.dtype.kind in "biuf":
        return Array(as_tensor(result), result)
    if isinstance(result, tuple | list):
        parts = [constants(r) for r in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return result


def reversed_view(array: Array) -> None:
    """Forbid changes of the array from now on: NumPy would share its memory with the reversed view, torch can't."""
    current().frozen[memory(array.tensor)] = "an array of which a reversed view was taken"

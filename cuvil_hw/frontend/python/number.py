"""A Python number that is read from a tensor: `x.item()`, `float(x)`, a counter that branches change."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from cuvil_hw.frontend.python.trace import current, refuse, where

_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


def is_python_number(value: Any) -> bool:
    """Python's own: np.float64 is a float, too, but counts as an array does."""
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)


def kind_of(value: Any) -> type:
    if isinstance(value, Number):
        return value.kind
    return bool if isinstance(value, bool) else int if isinstance(value, int) else float


def number(value: Any, kind: type) -> Number:
    if isinstance(value, Number):
        return value if value.kind is kind else Number(value.tensor.to(_DTYPES[kind]), kind)
    if kind is int and not -(2**63) <= value < 2**63:
        refuse("an integer", f"{value} doesn't fit 64 bits, as integers read from tensors must")
    return Number(torch.full((), value, dtype=_DTYPES[kind]), kind)


@dataclass(frozen=True, eq=False)
class Number:
    """A Python number read from a tensor.

    `tensor`: without dimensions, bool, int64 or float64. `kind`: the type it has in Python: bool, int or float. Beside
    a tensor it behaves like a Python number: it never widens the tensor. Integers wrap at 64 bits.
    """

    tensor: torch.Tensor
    kind: type
    traced: ClassVar[bool] = True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils import _pytree as pytree

        leaves = pytree.tree_leaves((args, kwargs or {}))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]

        def plain(x: Any) -> Any:
            return x.beside(tensors[0] if tensors else None) if isinstance(x, Number) else x

        args, kwargs = pytree.tree_map(plain, (args, kwargs or {}))
        return func(*args, **kwargs)

    def beside(self, tensor: torch.Tensor | None) -> torch.Tensor:
        """The number as a tensor that affects the result type of an operation with `tensor` only as a Python number
        would."""
        if tensor is None:
            return self.tensor.to(torch.get_default_dtype()) if self.kind is float else self.tensor
        return self.tensor.to(torch.result_type(tensor, self.kind(1)))

    def __bool__(self) -> bool:
        refuse("a condition", "depends on the values of tensors, and decides something that must be fixed")

    def __index__(self) -> int:
        refuse(
            "an integer",
            "is read from a tensor, but fixes a shape, a position or a number of trips; "
            "pass it as a Python number, which is known while compiling",
        )

    def __int__(self) -> int:
        refuse("int()", "its number is read from a tensor, but fixes something that must be known when compiling")

    def __float__(self) -> float:
        refuse("a number", "is read from a tensor, and this function takes fixed numbers only; use torch's or NumPy's")

    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Number:
        return Number(-number(self, int).tensor, int) if self.kind is bool else Number(-self.tensor, self.kind)

    def __pos__(self) -> Number:
        return number(self, int) if self.kind is bool else self

    def __abs__(self) -> Number:
        return Number(torch.abs((+self).tensor), (+self).kind)

    def __invert__(self) -> Number:
        if self.kind is float:
            raise TypeError("bad operand type for unary ~: 'float'")
        return Number(~number(self, int).tensor, int)

    def item(self) -> Number:
        return self


def _same(name: str, a: Number, b: Number) -> Number:
    operation: Callable[[Any, Any], torch.Tensor] = getattr(operator, name)
    return Number(operation(a.tensor, b.tensor), a.kind)


def _not_zero(b: Number, name: str) -> None:
    current().demand(b.tensor != 0, f"{where()}: {name} by zero", ZeroDivisionError)


def _power(a: Number, b: Any) -> Number:
    if a.kind is int and isinstance(b, Number):
        current().demand(b.tensor >= 0, f"{where()}: an integer to a negative power, which Python makes a float")
    if a.kind is int and not isinstance(b, Number) and b < 0:
        a = number(a, float)
    return Number(torch.pow(a.tensor, number(b, a.kind).tensor if isinstance(b, Number) else b), a.kind)


def arithmetic(name: str, a: Any, b: Any) -> Any:
    """A Python operator on numbers of which one at least is read from a tensor; NotImplemented for anything else."""
    if not all(isinstance(x, bool | int | float | Number) for x in (a, b)):
        tensor = next((x for x in (a, b) if isinstance(x, torch.Tensor)), None)
        if tensor is None:
            return NotImplemented
        a, b = (x.beside(tensor) if isinstance(x, Number) else x for x in (a, b))
        return getattr(operator, name)(a, b)
    kinds = {kind_of(a), kind_of(b)}
    kind: type = float if float in kinds else int if int in kinds else bool
    if name in ("and_", "or_", "xor"):
        if kind is float:
            return NotImplemented
        return _same(name, number(a, kind), number(b, kind))
    if name in ("lt", "le", "gt", "ge", "eq", "ne"):
        kind = float if kind is float else int
        return Number(getattr(operator, name)(number(a, kind).tensor, number(b, kind).tensor), bool)
    kind = int if kind is bool else kind
    if name == "divmod":
        return arithmetic("floordiv", a, b), arithmetic("mod", a, b)
    if name == "truediv":
        a, b = number(a, float), number(b, float)
        _not_zero(b, "division")
        return Number(a.tensor / b.tensor, float)
    if name == "pow":
        return _power(number(a, kind), b)
    a, b = number(a, kind), number(b, kind)
    if name in ("floordiv", "mod"):
        _not_zero(b, "division")
        if kind is int:
            one = torch.ones((), dtype=torch.int64)
            b = Number(torch.where(b.tensor == 0, one, b.tensor), int)
        function = torch.floor_divide if name == "floordiv" else torch.remainder
        return Number(function(a.tensor, b.tensor), kind)
    if name in ("lshift", "rshift") and kind is float:
        return NotImplemented
    return _same(name, a, b)


_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and_", "or_", "xor",
)  # fmt: skip


def _install() -> None:
    """Number's operators, each of which is `arithmetic`."""

    def enter(method: str, name: str, swapped: bool) -> None:
        def apply(self: Number, other: Any) -> Any:
            return arithmetic(name, other, self) if swapped else arithmetic(name, self, other)

        setattr(Number, method, apply)

    for name in _OPERATORS:
        plain = name.rstrip("_")
        enter(f"__{plain}__", name, False)
        enter(f"__r{plain}__", name, True)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        enter(f"__{name}__", name, False)


_install()

# Functions of Python's math module that torch has; where the first argument must be for the result to be defined.
_MATH: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor] | None]] = {
    "sqrt": (torch.sqrt, lambda x: ~(x < 0)),
    "exp": (torch.exp, None),
    "expm1": (torch.expm1, None),
    "log": (torch.log, lambda x: ~(x <= 0)),
    "log2": (torch.log2, lambda x: ~(x <= 0)),
    "log10": (torch.log10, lambda x: ~(x <= 0)),
    "log1p": (torch.log1p, lambda x: ~(x <= -1)),
    "sin": (torch.sin, torch.isfinite),
    "cos": (torch.cos, torch.isfinite),
    "tan": (torch.tan, torch.isfinite),
    "atan": (torch.atan, None),
    "tanh": (torch.tanh, None),
    "fabs": (torch.abs, None),
    "isnan": (torch.isnan, None),
    "isinf": (torch.isinf, None),
    "isfinite": (torch.isfinite, None),
    "floor": (torch.floor, torch.isfinite),
    "ceil": (torch.ceil, torch.isfinite),
    "trunc": (torch.trunc, torch.isfinite),
}


def math_function(name: str, value: Number, args: tuple[Any, ...]) -> Number:
    """A function of `math` of a number read from a tensor."""
    if name not in _MATH or args:
        refuse(f"math.{name}", "of a number that is read from a tensor; use torch's or NumPy's function")
    function, domain = _MATH[name]
    x = number(value, float).tensor
    if domain is not None:
        current().demand(domain(x), f"{where()}: math.{name} outside its domain", ValueError)
    result = function(x)
    if name.startswith("is"):
        return Number(result, bool)
    if name in ("floor", "ceil", "trunc"):
        return Number(result.to(torch.int64), int)
    return Number(result, float)


assert all(hasattr(math, name) for name in _MATH)

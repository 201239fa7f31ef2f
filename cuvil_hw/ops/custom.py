"""Ops that users register: a shape rule, a NumPy reference and a lowering make an op that runs on every target.

Pure NumPy, like all ops: the same registration lets a board evaluate the op.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, make_dataclass
from dataclasses import replace as replaced
from functools import partial
from operator import index
from typing import Any, ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Tensor
from cuvil_hw.ops.base import Array, Op, ShapeError, as_tuple, attributes, registry
from cuvil_hw.types import TensorType

_MNEMONIC = re.compile(r"[a-z][a-z0-9_]*")
_ONNX = re.compile(r"(?P<domain>[A-Za-z_][\w.]*)::(?P<op>[A-Za-z_]\w*)")
_TORCH = re.compile(r"(?P<namespace>[A-Za-z_]\w*)::(?P<op>[A-Za-z_]\w*)(?:\.(?P<overload>\w+))?")
_KINDS = (bool, int, float, str)


def _whole(value: Any) -> int:
    found = index(value)
    if not -(2**63) <= found < 2**63:
        raise OverflowError
    return found


def _real(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError
    return float(value)


def _flag(value: Any) -> bool:
    if isinstance(value, np.bool_):
        return bool(value)
    return (False, True)[(0, 1).index(index(value))]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


# Values of attributes by kind, as the IR keeps them. Each raises TypeError, ValueError or OverflowError.
_VALUES: dict[str, Callable[[Any], Any]] = {
    "int": _whole,
    "float": _real,
    "bool": _flag,
    "str": _text,
    "ints": lambda values: tuple(map(_whole, values)),
    "floats": lambda values: tuple(map(_real, values)),
}
_SAID = {
    "int": "an integer of 64 bits",
    "float": "a number",
    "bool": "True or False",
    "str": "a text",
    "ints": "integers of 64 bits",
    "floats": "numbers",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The functions and names given to `register_op`. `torch`, `onnx`: operators of the frameworks that import as this
    op."""

    shape: Callable[..., Any]
    reference: Callable[..., Any]
    torch: tuple[str, ...]
    onnx: tuple[tuple[str, str], ...]


class CustomOp(Op):
    """Base of the classes that `register_op` makes."""

    rules: ClassVar[Rules]

    def __post_init__(self) -> None:
        for name, kind in attributes(type(self)):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, _VALUES[kind](value))
            except (TypeError, ValueError, OverflowError) as e:
                raise CuvilError(f"op {self.mnemonic}: attribute {name} is {value!r}; it takes {_SAID[kind]}") from e

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name, _ in attributes(type(self))}

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        try:
            found = as_tuple(self.rules.shape(*types, **self.values()))
        except CuvilError as e:
            raise e if isinstance(e, ShapeError) else self.fail(str(e)) from e
        except Exception as e:  # the user's code: an assert, an index, anything
            raise self.fail(f"its shape rule refuses {', '.join(map(str, types))}: {type(e).__name__}: {e}") from e
        if not found or not all(isinstance(t, TensorType) for t in found):
            raise self.fail(f"its shape rule returned {found!r}; return a TensorType, or a tuple of them")
        return found

    def evaluate(self, *arrays: Array) -> tuple[Array, ...]:
        types = [TensorType(a.shape, dtypes.from_numpy(a.dtype)) for a in arrays]
        found = tuple(np.asarray(r) for r in as_tuple(self.rules.reference(*arrays, **self.values())))
        wanted = self.infer(*types)
        have = [(a.shape, a.dtype) for a in found]
        if have != [(t.shape, dtypes.to_numpy(t.dtype)) for t in wanted]:
            shown = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in have)
            raise CuvilError(
                f"{self.mnemonic}: its reference returned {shown}, its shape rule says {', '.join(map(str, wanted))}"
            )
        return found


def register_op(
    name: str,
    *,
    shape: Callable[..., Any],
    reference: Callable[..., Any],
    lowering: Callable[..., Any] | None = None,
    decomposition: Callable[..., Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    version: int = 1,
    elementwise: bool = False,
    pointwise: bool = False,
    torch: str | Iterable[str] = (),
    onnx: str | Iterable[str] = (),
    replace: bool = False,
) -> type[CustomOp]:
    """Register an op of your own, which then works on every target and in every front end; returns its class.

    `shape`, `reference` and `lowering` or `decomposition` take one argument per operand, and the attributes by name.

    Args:
        name: in the IR, lower case.
        shape: (*TensorType) → TensorType or a tuple of them; raises any exception to refuse.
        reference: (*ndarray) → arrays of exactly those types; it defines the op.
        lowering: (*Tensor) → Tensor, as functions from index to scalar expression (cuvil_hw.expr.nodes). Give this or
            `decomposition`.
        decomposition: (emit, *values) → value, in terms of other ops by `emit.op`.
        attributes: default values by name (int, float, bool, str, tuple of ints or floats), or one of these types for
            an attribute without default.
        version: of the op's schema; models, IR texts and artifacts with another version are refused.
        elementwise: each result element reads data only at its own index, so the op may be fused.
        pointwise: elementwise, and the same function at every index, so a quantized model may replace it with a table.
        torch: operators such as "mine::square_plus", whose arguments are the operands, and the attributes by name.
        onnx: "domain::Operator", in the version of the domain that the model imports.
        replace: an op registered earlier under this name may be replaced.

    Raises:
        CuvilError: the name is taken or invalid; both or none of lowering and decomposition are given; attributes or
            versions are invalid.
    """
    if not _MNEMONIC.fullmatch(name) or keyword.iskeyword(name):
        raise CuvilError(f"op name {name!r}: lower-case letters, digits and _ are possible, a letter first")
    if (lowering is None) == (decomposition is None):
        raise CuvilError(f"op {name}: give lowering= or decomposition=, one of them")
    if type(version) is not int or version < 1:
        raise CuvilError(f"op {name}: version is {version!r}; a schema version is an integer from 1")
    columns = [_field(name, key, value) for key, value in (attributes or {}).items()]
    rules = Rules(shape, reference, _torch_names(name, torch), _onnx_names(name, onnx))
    previous = registry.get(name)
    if previous is not None and not (replace and issubclass(previous, CustomOp)):
        hint = "; replace=True puts this one in its place" if issubclass(previous, CustomOp) else ""
        raise CuvilError(f"op {name!r} exists already, as version {previous.version}{hint}")
    for other in custom_ops():
        for operator in {*other.rules.torch, *other.rules.onnx} & {*rules.torch, *rules.onnx}:
            if other is not previous:
                text = operator if isinstance(operator, str) else "::".join(operator)
                raise CuvilError(f"op {name}: {text} stands for op {other.mnemonic!r} already")
    registry.pop(name, None)
    body = {
        "__doc__": reference.__doc__ or f"Registered op {name}.",
        "__module__": getattr(reference, "__module__", __name__),
        "mnemonic": name,
        "version": version,
        "elementwise": elementwise or pointwise,
        "pointwise": pointwise,
        "composite": decomposition is not None,
        "rules": rules,
    }
    if lowering is not None:
        body["compute"] = _lowered(lowering)
    else:
        made: Any = decomposition
        body["decompose"] = lambda self, emit, *operands: made(emit, *operands, **self.values())
    title = "".join(part.capitalize() for part in name.split("_")) or name
    return make_dataclass(title, columns, bases=(CustomOp,), namespace=body, frozen=True)


def _lowered(lowering: Callable[..., Any]) -> Callable[..., Any]:
    """`compute` from the user's lowering. An error in it, now or when an element is requested, is reported with the
    op's name."""

    def compute(self: CustomOp, *operands: Any) -> Any:
        def told(run: Callable[..., Any], *args: Any) -> Any:
            try:
                return run(*args)
            except (CuvilError, RecursionError):
                raise
            except Exception as e:  # the user's code: anything may be raised
                kinds = ", ".join(str(t.type) for t in operands)
                raise CuvilError(f"op {self.mnemonic}: its lowering fails for {kinds}: {type(e).__name__}: {e}") from e

        made = told(lambda: lowering(*operands, **self.values()))
        if not as_tuple(made) or not all(isinstance(t, Tensor) for t in as_tuple(made)):
            raise CuvilError(f"op {self.mnemonic}: its lowering returned {made!r}; return a Tensor, or a tuple of them")
        results = tuple(replaced(t, at=partial(told, t.at)) for t in as_tuple(made))
        return results if isinstance(made, tuple) else results[0]

    return compute


def custom_ops() -> tuple[type[CustomOp], ...]:
    """All registered ops, in the order of registration."""
    return tuple(op for op in registry.values() if issubclass(op, CustomOp))


def for_onnx(domain: str, operator: str) -> type[CustomOp] | None:
    """The registered op that stands for an ONNX operator."""
    return next((op for op in custom_ops() if (domain, operator) in op.rules.onnx), None)


def _field(op: str, name: str, value: Any) -> Any:
    """A dataclass field, from a default value or a type."""
    if not name.isidentifier() or keyword.iskeyword(name) or name == "version" or hasattr(CustomOp, name):
        raise CuvilError(f"op {op}: an attribute can't be called {name!r}")
    if isinstance(value, type) and value in _KINDS:
        return name, value
    if isinstance(value, list | tuple) and value and all(type(v) in (int, float) for v in value):
        floats = any(type(v) is float for v in value)
        kind: Any = tuple[float, ...] if floats else tuple[int, ...]
        return name, kind, field(default=tuple(float(v) for v in value) if floats else tuple(value))
    if value in (tuple[int, ...], tuple[float, ...]):
        return name, value
    if type(value) in _KINDS:
        return name, type(value), field(default=value)
    kinds = "int, float, bool, str, tuple[int, ...] and tuple[float, ...]"
    raise CuvilError(f"op {op}: attribute {name} is {value!r}; possible are values of, or the types, {kinds}")


def _torch_names(op: str, names: str | Iterable[str]) -> tuple[str, ...]:
    """`mine.square_plus.default`, as torch prints an overload."""
    found = []
    for text in (names,) if isinstance(names, str) else tuple(names):
        match = _TORCH.fullmatch(text)
        if match is None:
            raise CuvilError(f"op {op}: torch operator {text!r}; such a name is namespace::name")
        found.append(f"{match['namespace']}.{match['op']}.{match['overload'] or 'default'}")
    return tuple(found)


def _onnx_names(op: str, names: str | Iterable[str]) -> tuple[tuple[str, str], ...]:
    found = []
    for text in (names,) if isinstance(names, str) else tuple(names):
        match = _ONNX.fullmatch(text)
        if match is None or match["domain"] in ("ai.onnx", "ai.onnx.ml"):
            raise CuvilError(f"op {op}: ONNX operator {text!r}; such a name is domain::Operator, of a domain of yours")
        found.append((match["domain"], match["op"]))
    return tuple(found)

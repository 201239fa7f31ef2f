"""What an op is: one frozen dataclass with its shape rule, its meaning in NumPy and its loops.

Pure NumPy, so that the runtime on a board can evaluate ops. The dialect `cuvil.level1` is derived from these classes.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Tensor, cast
from cuvil_hw.ops.interval import Interval
from cuvil_hw.types import TensorType

Array = npt.NDArray[Any]
Splat = Callable[[int], Any]

# The largest tensor that a program computes or takes: whatever a model's file asks for, it is refused before memory is
# taken for it.
MOST_BYTES = 1 << 34

registry: dict[str, type[Op]] = {}
_attributes: dict[type[Op], tuple[tuple[str, str], ...]] = {}


class ShapeError(CuvilError):
    """Operand shapes, dtypes or attributes don't fit together; the message starts with the op's name."""


@dataclass(frozen=True)
class Op:
    """Base of all ops: subclasses set `mnemonic`, declare attributes as fields and implement three methods.

    Attributes may be int, float, bool, str, tuple[int, ...] or tuple[float, ...]. Each method takes one argument per
    operand (trailing ones may be optional) and returns one value, or a tuple for several results:

        infer(*TensorType)    result types; raises ShapeError
        evaluate(*ndarray)    the result in NumPy, which defines the op; operands already have valid types
        compute(*Tensor)      the same as functions from index to scalar expression (expr/nodes.py); a composite op has
                              `decompose` instead
    """

    mnemonic: ClassVar[str] = ""
    version: ClassVar[int] = 1
    composite: ClassVar[bool] = False  # has `decompose` and no `compute`
    elementwise: ClassVar[bool] = False  # reads its data at the index of the result only: fuses with its neighbours
    pointwise: ClassVar[bool] = False  # elementwise, and the same function at every index: a table can stand for it
    moves: ClassVar[bool] = False  # its result holds elements of its operands as they are, at other places
    by_bits: ClassVar[bool] = False  # looks at bits alone: takes bf16 as it is, not as the f32 of the same value
    is_view: ClassVar[bool] = False  # its one operand's elements, all of them and no others, at other places
    takes_indices: ClassVar[bool] = False  # its second operand holds indices into the first
    is_linear: ClassVar[bool] = False  # sum or difference of its operands, or a multiple of one by a constant other
    scales_scores: ClassVar[bool] = False  # may scale or mask what a softmax takes, and stays float before one
    costs_nothing: ClassVar[bool] = False  # no work worth speaking of: it goes where its neighbour has to run
    # What quantization makes integers of beside tables and what is monotone: sums of products with weights, sums over
    # windows and axes, sums and products of two tensors.
    integer_form: ClassVar[Literal["none", "layer", "sum", "arithmetic"]] = "none"
    layer_axis: ClassVar[int] = -1  # of a layer's result: the dimension along which its weights differ
    # Operands that can be quantized before the op, instead of its result after it, with the same outcome: it only moves
    # their elements, or chooses by size. Such an op takes integers, too.
    monotone: ClassVar[Literal["none", "first", "all"]] = "none"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("mnemonic"):
            if cls.mnemonic in registry:
                raise CuvilError(f"op {cls.mnemonic!r} is defined twice: {registry[cls.mnemonic]} and {cls}")
            registry[cls.mnemonic] = cls

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no shape rule")

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no reference")

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no loops")

    def decompose(self, emit: Emit, *values: Any) -> Any:
        """`op.decompose`; bf16 operands are computed in f32, and each result is rounded once. `cast_op(dtype)`: the
        converting op."""
        raise NotImplementedError(f"{type(self).__name__} has no decomposition")

    def accumulator(self) -> str:
        """The integer type in which it sums, as its attribute `acc` says; "" for none."""
        return str(getattr(self, "acc", ""))

    def with_accumulator(self, dtype: str) -> Op:
        """The same op, summing in another type."""
        changed: dict[str, Any] = {"acc": dtype}
        return replace(self, **changed)

    def value_range(self, types: Sequence[TensorType], ranges: Sequence[Interval]) -> Interval | None:
        """All values that the op on integers in `ranges` can give, and that its accumulator holds meanwhile. None:
        not known, so whatever the result's type has. Asked where all operands are integers, of which there is one.
        """
        match self.monotone:
            case "first":
                return ranges[0]
            case "all":
                return ranges[0].join(*ranges[1:])
        return None

    def count_products(self, types: Sequence[TensorType], size: int) -> int:
        """Multiplications (steps down trees) for results of `size` elements; 0 for ops that aren't layers."""
        return 0

    def is_identity(self, types: Sequence[TensorType], splat: Splat) -> bool:
        """Whether the result is the first operand as it is; asked where both have one type. `splat(n)`: the one value
        of all elements of operand n, None where there is none or it isn't known."""
        return False

    def axis_after(self, axis: int, x: TensorType) -> int | None:
        """The dimension of the result that dimension `axis` of the first operand has become; None for none or unknown.
        Asked of ops that are monotone."""
        return None

    def fail(self, message: str) -> ShapeError:
        """The error to raise from `infer`."""
        return ShapeError(f"{self.mnemonic}: {message}")

    def want(self, condition: bool, message: str) -> None:
        if not condition:
            raise self.fail(message)


class Emit(typing.Protocol):
    """Where a decomposition puts its ops. Values are opaque."""

    def op(self, op: Op, *values: Any) -> Any:
        """Add `op`; returns its first result."""

    def ops(self, op: Op, *values: Any) -> tuple[Any, ...]:
        """Add `op`; returns all its results."""

    def type(self, value: Any) -> TensorType: ...

    def const(self, array: Any, dtype: str | None = None) -> Any: ...


def attributes(cls: type[Op]) -> tuple[tuple[str, str], ...]:
    """(name, kind) of each attribute; kind is "int", "float", "bool", "str", "ints" or "floats"."""
    if cls in _attributes:
        return _attributes[cls]
    hints = typing.get_type_hints(cls)
    kinds = {int: "int", float: "float", bool: "bool", str: "str", tuple[int, ...]: "ints", tuple[float, ...]: "floats"}
    result = []
    for f in fields(cls):
        kind = kinds.get(hints[f.name])
        if kind is None:
            raise TypeError(f"{cls.__name__}.{f.name}: an attribute can't have type {hints[f.name]}")
        result.append((f.name, kind))
    return _attributes.setdefault(cls, tuple(result))


def to_json(op: Op) -> dict[str, Any]:
    """Attributes as JSON values (tuples become lists), and the op's version where it isn't 1."""
    values = {name: getattr(op, name) for name, _ in attributes(type(op))}
    found = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
    return found if op.version == 1 else {**found, "version": op.version}


def from_json(mnemonic: str, attrs: Mapping[str, Any]) -> Op:
    """The inverse of `to_json`; CuvilError for an unknown op or attribute, and for another version of the op."""
    cls = registry.get(mnemonic)
    if cls is None:
        raise CuvilError(
            f"unknown op {mnemonic!r}; it needs another version of cuvil-hw, or the package that defines it"
        )
    if (version := attrs.get("version", 1)) != cls.version:
        raise CuvilError(f"op {mnemonic!r} is needed in version {version}, version {cls.version} is registered")
    attrs = {name: value for name, value in attrs.items() if name != "version"}
    convert = {"int": int, "float": float, "bool": bool, "str": str}
    kinds = dict(attributes(cls))
    values: dict[str, Any] = {}
    for name, value in attrs.items():
        if name not in kinds:
            raise CuvilError(f"op {mnemonic!r} has no attribute {name!r}")
        kind = kinds[name]
        if kind in convert:
            values[name] = convert[kind](value)
        else:
            values[name] = tuple((int if kind == "ints" else float)(v) for v in value)
    return cls(**values)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def infer(op: Op, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Result types of `op`; ShapeError when the operands don't fit it, or a result would be larger than MOST_BYTES."""
    try:
        results = as_tuple(op.infer(*types))
    except TypeError as e:
        raise op.fail(f"takes other operands than the {len(types)} given ({', '.join(map(str, types))}): {e}") from e
    for kind in results:
        if too_large(kind):
            raise op.fail(f"its result would be {too_large(kind)}")
    return results


def too_large(kind: TensorType) -> str:
    """Why no tensor can have this type, in words; "" if one can."""
    # Extents may be open dimensions (extent/size.py); a limit is no property of theirs, so their numbers are compared.
    size = prod(map(int, kind.shape)) * dtypes.to_numpy(kind.dtype).itemsize
    if size <= MOST_BYTES:
        return ""
    return f"{kind}, {size >> 30:,} GiB; a tensor has at most {MOST_BYTES >> 30} GiB"


def evaluate(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Run `op` in NumPy; results have exactly the containers of the inferred dtypes."""
    with np.errstate(all="ignore"):  # NaN, infinity and division by zero have written meanings (docs/numerics.md)
        if not _widens(op, [dtypes.from_numpy(a.dtype) for a in arrays]):
            return tuple(np.asarray(r) for r in as_tuple(op.evaluate(*arrays)))
        kinds = infer(op, [TensorType(a.shape, dtypes.from_numpy(a.dtype)) for a in arrays])
        results = as_tuple(op.evaluate(*map(dtypes.numbers, arrays)))
        return tuple(
            dtypes.convert(r, k.dtype) if k.dtype == "bf16" else np.asarray(r)
            for r, k in zip(results, kinds, strict=True)
        )


def _widens(op: Op, kinds: Sequence[str]) -> bool:
    """Whether the op computes in f32 what it has in bf16, so that only this module knows of bf16."""
    return "bf16" in kinds and not (op.moves or op.by_bits)


def compute(op: Op, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`op.compute`; bf16 operands are computed in f32, and each result is rounded once."""
    if not _widens(op, [t.dtype for t in tensors]):
        return as_tuple(op.compute(*tensors))
    kinds = infer(op, [t.type for t in tensors])
    results = as_tuple(op.compute(*[_as(t, "f32") if t.dtype == "bf16" else t for t in tensors]))
    return tuple(_as(r, k.dtype) for r, k in zip(results, kinds, strict=True))


def _as(x: Tensor, dtype: str) -> Tensor:
    """Each element of `x` cast."""
    return Tensor(x.type.with_dtype(dtype), lambda *i: cast(x[i], dtype))


def decompose(op: Op, emit: Emit, values: Sequence[Any], cast_op: Callable[[str], Op]) -> tuple[Any, ...]:
    """`op.decompose`; of bf16 in f32, each result rounded once. `cast_op(dtype)`: the op that converts."""
    types = [emit.type(v) for v in values]
    if not _widens(op, [t.dtype for t in types]):
        return as_tuple(op.decompose(emit, *values))
    wide = [emit.op(cast_op("f32"), v) if t.dtype == "bf16" else v for v, t in zip(values, types, strict=True)]
    results = as_tuple(op.decompose(emit, *wide))
    return tuple(
        emit.op(cast_op("bf16"), r) if k.dtype == "bf16" else r for r, k in zip(results, infer(op, types), strict=True)
    )


def stored(array: Array) -> int:
    """The elements that exist in memory behind an array that may be broadcast."""
    return prod(n for n, step in zip(array.shape, array.strides, strict=True) if step)


def container(array: Array, dtype: str) -> Array:
    """`array` in the NumPy container of `dtype`, without a copy when it is already."""
    return np.ascontiguousarray(dtypes.convert(array, dtype)).reshape(array.shape)

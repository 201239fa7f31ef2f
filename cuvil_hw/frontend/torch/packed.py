"""Elements that a computed mask selects: how many there are is known at run time only, so that all are computed, and
the mask decides what counts.

`x[m]` is the whole of x with m beside it. What treats the selected rows one by one is done to all of them; a reduction
first puts its neutral element where m is false; `y[m] = f(x[m])` becomes where(m, f(x), y).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from xdsl.ir import Operation, SSAValue

from cuvil_hw import dtypes, ops
from cuvil_hw.frontend.torch.aten.emitter import TABLE, Emitter, Value, axes_of, dtype_name, from_data
from cuvil_hw.ir import level1
from cuvil_hw.types import TensorType

_LIKE = 64  # operations that two masks may be away from what they share
# Ops that treat rows one by one though torch doesn't call them pointwise; their other operands are no rows.
_BY_ROWS = frozenset(
    ["aten._to_copy.default", "aten.to.dtype", "aten.clone.default", "aten.alias.default", "aten.detach.default"]
)
_PRODUCTS = ("aten.linear.default", "aten.mm.default", "aten.matmul.default")
_SUMS = ("aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim")
_TOTALS = {"aten.mean.default": "aten.sum.default", "aten.mean.dim": "aten.sum.dim_IntList"}
_EXTREMES = {"aten.amax.default": -1, "aten.amin.default": 1, "aten.max.default": -1, "aten.min.default": 1}
_WITH_AXES = ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default")
_LOGICAL = {"aten.any.default": False, "aten.all.default": True}
_REASON = (
    "works on what a computed mask selects, and how many elements that are is known at run time only; "
    "use torch.where, or element functions, sums, mean, amax, amin, any, all and an assignment by the same mask"
)


@dataclass(frozen=True, eq=False)
class Packed:
    """`full`: (n, …), of which the rows count where `mask`, bool (n,), is true; `loc`: where they were selected."""

    full: Value
    mask: SSAValue
    loc: str


def takes_part(label: str, args: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether a node makes, or takes, what a computed mask selects."""
    if any(isinstance(v, Packed) for v in found):
        return True
    if label == "aten.masked_select.default":
        return isinstance(args[1], SSAValue)
    chosen = [i for i in args[1] if i is not None] if label == "aten.index.Tensor" else []
    return any(isinstance(i, SSAValue) and level1.type_of(i).dtype == "bool" for i in chosen)


def convert(e: Emitter, target: Any, args: Sequence[Any], made: Any) -> Any:
    """The node's result. `made`: fake tensors of it. Raises Refused."""
    label = str(target)
    if label in ("aten.index.Tensor", "aten.masked_select.default"):
        return _select(e, label, *args)
    if label == "aten.sym_size.int" and args[1] == 0:
        return _count(e, args[0])
    if label in ("aten.index_put.default", "aten._unsafe_index_put.default"):
        return _put(e, made, *args)
    first = args[0]
    if isinstance(first, Packed) and label in (*_SUMS, *_EXTREMES, *_LOGICAL):
        return _reduced(e, label, first, made, args)
    rows = torch.Tag.pointwise in getattr(target, "tags", ()) or label in _BY_ROWS
    products = label in _PRODUCTS and isinstance(first, Packed) and not any(isinstance(a, Packed) for a in args[1:])
    if label not in TABLE or not (rows or products) or not isinstance(made, torch.Tensor):
        e.refuse(_REASON)
    packed = [a for a in args if isinstance(a, Packed)]
    if not packed or not all(_same(p.mask, packed[0].mask) for p in packed):
        e.refuse("combines what two masks select, which may be different numbers of elements; use torch.where")
    behind = [from_data(n) for n in made.shape[1:]]
    if any(e.type(p.full).rank != made.ndim for p in packed) or any(behind) or not from_data(made.shape[0]):
        e.refuse("broadcasts what a mask selects so that its rows become another axis; use torch.where")
    e.results = (_type(made, e.shape(packed[0].full)[0]),)
    converter: Callable[..., Any] = TABLE[label]
    full = converter(e, *(a.full if isinstance(a, Packed) else a for a in args))
    return Packed(full, packed[0].mask, packed[0].loc)


def _type(made: torch.Tensor, rows: int) -> TensorType:
    """The type with all rows in place of the unknown number of them."""
    shape = tuple(n if isinstance(n, int) else rows for n in made.shape)
    return TensorType(shape, dtype_name(made.dtype))


def _select(e: Emitter, label: str, x: Any, chosen: Any) -> Packed:
    if label == "aten.masked_select.default":
        shape = np.broadcast_shapes(e.shape(x), e.shape(chosen))
        x, mask = e.broadcast(x, shape), e.broadcast(chosen, shape)
    elif isinstance(x, Packed) or len(chosen) != 1:
        e.refuse("selects by a computed mask and other indices at once; select in two steps, or use torch.where")
    else:
        mask = chosen[0]
    rest, rows = e.shape(x)[len(e.shape(mask)) :], e.type(mask).size
    return Packed(e.reshape(x, (rows, *rest)), e.ssa(e.reshape(mask, (rows,))), e.loc)


def _count(e: Emitter, packed: Packed) -> SSAValue:
    return e.op(ops.ReduceSum((0,), False), e.cast(packed.mask, "i64"))


def _filled(e: Emitter, packed: Packed, value: float | int | bool) -> Value:
    kind = e.type(packed.full)
    mask = e.reshape(packed.mask, (kind.shape[0], *[1] * (kind.rank - 1)))
    return e.op(ops.Where(), e.broadcast(mask, kind.shape), packed.full, e.splat(value, kind))


def _reduced(e: Emitter, label: str, x: Packed, made: Any, args: Sequence[Any]) -> Any:
    rank = len(e.shape(x.full))
    axes = axes_of(args[1] if label in _WITH_AXES else None, rank)
    rows = e.shape(x.full)[0]
    e.results = (_type(made, rows),)
    converter: Callable[..., Any] = TABLE[label]
    if 0 not in axes:  # inside each row
        return Packed(converter(e, x.full, *args[1:]), x.mask, x.loc)
    kind = e.type(x.full)
    if label in _LOGICAL:
        return converter(e, _filled(e, x, _LOGICAL[label]), *args[1:])
    if label in _EXTREMES:
        end = _EXTREMES[label]
        if kind.dtype == "bool":
            neutral: float | int | bool = end > 0
        elif dtypes.is_float(kind.dtype):
            neutral = end * math.inf
        else:
            neutral = dtypes.int_range(kind.dtype)[0 if end < 0 else 1]
        some = e.op(ops.Greater(), _count(e, x), e.splat(0, TensorType((), "i64")))
        name = label.split(".")[1]
        e.builder.guard(some, f"{e.loc}: {name}() of the elements that a mask selects, and there are none", e.loc)
        return converter(e, _filled(e, x, neutral), *args[1:])
    total: Callable[..., Any] = TABLE[_TOTALS.get(label, label)]
    summed = total(e, _filled(e, x, 0), *args[1:])
    if ".mean." not in label:
        return summed
    each = math.prod(kind.shape[a] for a in axes if a)
    count = e.op(ops.Mul(), _count(e, x), e.splat(each, TensorType((), "i64")))
    return e.op(ops.Div(), summed, e.operand(count, e.type(summed)))


def _put(e: Emitter, made: Any, x: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Value:
    """x[mask] = what the same mask selected."""
    mask = indices[0] if len(indices) == 1 else None
    if isinstance(x, Packed) or not isinstance(values, Packed) or mask is None or e.type(mask).dtype != "bool":
        e.refuse(_REASON)
    if not _same(e.ssa(e.reshape(mask, (e.type(mask).size,))), values.mask):
        e.refuse("assigns to one mask's elements what another selects; use one mask for both, or torch.where")
    shape = e.shape(x)
    new = e.cast(e.reshape(e.broadcast(values.full, (e.type(mask).size, *shape[len(e.shape(mask)) :])), shape),
                 e.type(x).dtype)  # fmt: skip
    if accumulate:
        new = e.op(ops.Add(), x, new)
    wide = e.broadcast(e.reshape(mask, (*e.shape(mask), *[1] * (len(shape) - len(e.shape(mask))))), shape)
    return e.op(ops.Where(), wide, new, x)


def _same(a: SSAValue, b: SSAValue, depth: int = _LIKE) -> bool:
    """Whether two values are one, or are computed alike from values that are."""
    if a is b:
        return True
    one, other = a.owner, b.owner
    if depth == 0 or not isinstance(one, Operation) or not isinstance(other, Operation) or a.index != b.index:  # type: ignore[attr-defined]
        return False
    if type(one) is not type(other) or one.properties != other.properties or one.regions:
        return False
    pairs = zip(one.operands, other.operands, strict=False)
    return len(one.operands) == len(other.operands) and all(_same(x, y, depth - 1) for x, y in pairs)


_OF_LAYOUT = {"aten.sym_size.int", "aten.sym_storage_offset.default"}


def is_size_check(node: torch.fx.Node) -> bool:
    """torch's own checks of how many elements a mask selected (0 at least, all at most), and of where views begin."""
    if str(node.target) != "aten._assert_scalar.default":
        return False
    waiting, sources = list(node.all_input_nodes), set()
    while waiting:
        source = waiting.pop()
        if isinstance(source.target, torch._ops.OpOverload):
            sources.add(str(source.target))
        else:  # arithmetic of numbers
            waiting += source.all_input_nodes
    return bool(sources) and sources <= _OF_LAYOUT


__all__ = ["Packed", "convert", "is_size_check", "takes_part"]

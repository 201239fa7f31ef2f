"""Reductions over the rows that a mask selects: the others get the neutral element first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from cuvil_hw import dtypes, ops
from cuvil_hw.frontend.torch import packed_order
from cuvil_hw.frontend.torch.aten.complex import held_types
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axes_of, axis_of
from cuvil_hw.frontend.torch.packed import (
    SCALAR,
    Packed,
    converted,
    count,
    data_axis,
    end_of,
    filled,
    one_mask,
    packed_in,
    stand_in,
)

_SUMS = ("aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim")
_TOTALS = {"aten.mean.default": "aten.sum.default", "aten.mean.dim": "aten.sum.dim_IntList"}
_PRODUCTS = ("aten.prod.default", "aten.prod.dim_int")
_EXTREMES = {
    "aten.amax.default": -1, "aten.amin.default": 1, "aten.max.default": -1, "aten.min.default": 1,
    "aten.max.dim": -1, "aten.min.dim": 1,
}  # fmt: skip
_LOGICAL = {f"aten.{name}.{how}": name == "all" for name in ("any", "all") for how in ("default", "dim", "dims")}
_SCANS = {"aten.cumsum.default": 0, "aten.cumprod.default": 1}
_SOFTMAX = ("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default")
_CONTRACTIONS = ("aten.mm.default", "aten.matmul.default", "aten.bmm.default")


def convert(e: AtenEmitter, target: Any, args: Sequence[Any], made: Any) -> Any:
    """The node's result; None where it doesn't reduce over the rows, or not in a way that is known."""
    label, x = str(target), args[0]
    if not isinstance(x, Packed):
        return None
    if label in _CONTRACTIONS:
        return _contracted(e, label, args, made)
    rank = len(e.shape(x.full))
    if label in _SCANS or label in _SOFTMAX:
        if axis_of(args[1], rank) != x.axis:
            return None
        neutral: float | int = _SCANS.get(label, -math.inf)
        full = converted(e, label, [filled(e, x, neutral), *args[1:]], stand_in(e, made, e.shape(x.full)[x.axis]))
        return Packed(full, x.mask, x.loc, x.axis)
    if label not in (*_SUMS, *_PRODUCTS, *_EXTREMES, *_LOGICAL) or x.axis not in _axes(target, args, rank):
        return None
    return _reduced(e, target, x, made, args)


def _axes(target: torch._ops.OpOverload[Any, Any], args: Sequence[Any], rank: int) -> tuple[int, ...]:
    named = {a.name: v for a, v in zip(target._schema.arguments, args, strict=False)}
    return axes_of(named.get("dim"), rank)


def _reduced(e: AtenEmitter, target: Any, x: Packed, made: Any, args: Sequence[Any]) -> Any:
    label, kind = str(target), e.type(x.full)
    fakes = made[0] if isinstance(made, list | tuple) else made

    def result(neutral: float | int | bool, of: str = label) -> Any:
        return converted(e, of, [filled(e, x, neutral), *args[1:]], fakes)

    if label in _LOGICAL:
        return result(_LOGICAL[label] if kind.dtype == "bool" else int(_LOGICAL[label]))
    if label in _PRODUCTS:
        return result(1)
    if label in _EXTREMES:
        some = e.op(ops.Greater(), count(e, x.mask), e.splat(0, SCALAR))
        name = label.split(".")[1]
        e.builder.guard(some, f"{e.loc}: {name}() of the elements that a mask selects, and there are none", e.loc)
        if not label.endswith(".dim"):
            return result(end_of(kind.dtype, _EXTREMES[label]))
        at = packed_order.convert(e, getattr(torch.ops.aten, f"arg{name}").default, [x, *args[1:]], made[1])
        return result(end_of(kind.dtype, _EXTREMES[label]), f"aten.a{name}.default"), at
    if label in _TOTALS:
        return _mean(e, target, x, fakes, args)
    return result(0)


def _mean(e: AtenEmitter, target: Any, x: Packed, made: torch.Tensor, args: Sequence[Any]) -> Value:
    """Summed and divided in the type that the result's arithmetic is done in: a sum may leave the range of f16."""
    label, kind, dtype = str(target), e.type(x.full), held_types(made)[0].dtype
    work = dtypes.record(dtype).work
    wide = Packed(e.cast(x.full, work), x.mask, x.loc, x.axis)
    fake = torch.empty(made.shape, dtype=getattr(torch, dtypes.record(work).torch), device="meta")
    given = [*args[1:-1], None]  # the last is the dtype, which `wide` has
    summed = converted(e, _TOTALS[label], [filled(e, wide, 0), *given], fake)
    each = math.prod(kind.shape[a] for a in _axes(target, args, kind.rank) if a != x.axis)
    number = e.op(ops.Mul(), count(e, x.mask), e.splat(each, SCALAR))
    return e.cast(e.op(ops.Div(), summed, e.operand(number, e.type(summed))), dtype)


def _contracted(e: AtenEmitter, label: str, args: Sequence[Any], made: torch.Tensor) -> Value | None:
    """A product that sums over the rows of both."""
    a, b = args[:2]
    if not isinstance(a, Packed) or not isinstance(b, Packed):
        return None
    left, right = len(e.shape(a.full)), len(e.shape(b.full))
    if data_axis(e, made) is not None or a.axis != left - 1 or b.axis != max(right - 2, 0):
        return None
    one_mask(e, packed_in(args))
    return converted(e, label, [filled(e, a, 0), filled(e, b, 0)], made)  # type: ignore[no-any-return]


__all__ = ["convert"]

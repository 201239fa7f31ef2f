"""Distinct elements: at most as many as there are elements, so that those are held, sorted, with a mask beside them
that is true where one differs from the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cuvil_hw import ops
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter, Value, axis_of
from cuvil_hw.frontend.torch.aten.order import ordered
from cuvil_hw.frontend.torch.aten.shape import joined, part
from cuvil_hw.frontend.torch.packed import REASON, Packed, count
from cuvil_hw.frontend.torch.packed_front import in_front
from cuvil_hw.ops import reduce as rd
from cuvil_hw.ops.shape import Gather
from cuvil_hw.types import TensorType

_NEIGHBOURS = "aten.unique_consecutive.default"
UNIQUE = ("aten._unique2.default", "aten._unique.default", _NEIGHBOURS)


def convert(e: AtenEmitter, label: str, args: Sequence[Any]) -> list[Any]:
    """(distinct elements, for each element which of them it is, how often each occurs); None for what isn't asked."""
    x = args[0]
    if label == _NEIGHBOURS:
        inverse, counts, dim = args[1:4]
    else:
        inverse, counts, dim = args[2], label == UNIQUE[0] and args[3], None
    if isinstance(x, Packed):
        if len(e.shape(x.full)) != 1 or inverse or label != _NEIGHBOURS:
            e.refuse(REASON)
        rows = in_front(e, x)
        values, axis, present = rows.full, 0, rows.mask
    else:
        shape = e.shape(x)
        axis = 0 if dim is None else axis_of(dim, len(shape))
        values = e.reshape(x, (e.type(x).size,)) if dim is None else x
        present = e.ssa(torch.ones(e.shape(values)[axis], dtype=torch.bool))
    n = e.shape(values)[axis]
    at: Value = torch.arange(n)
    if label != _NEIGHBOURS:
        at = e.op(ops.Rank(0, False), _ordered(e, values))
        values, _ = ordered(e, values, 0, n, False)
    new = e.op(ops.LogicalAnd(), _differs(e, values, axis), present)
    found = in_front(e, Packed(values, new, e.loc, axis))
    results: list[Any] = [found, None, None]
    if inverse:
        groups = e.op(ops.Sub(), e.op(ops.CumSum(0), e.cast(new, "i64")), e.splat(1, TensorType((n,), "i64")))
        which: Value = e.op(Gather(0), groups, at)
        results[1] = e.reshape(which, e.shape(x)) if dim is None else which
    if counts:
        begins = in_front(e, Packed(torch.arange(n), new, e.loc))
        # Behind the last group the next would begin where the elements end.
        end = e.broadcast(count(e, present), (n,))
        known = e.op(ops.Where(), begins.mask, begins.full, end)
        after = joined(e, [part(e, known, 0, 1, n - 1), part(e, end, 0, 0, 1)], 0) if n else known
        results[2] = replace(begins, full=e.op(ops.Sub(), after, known))
    return results


def _ordered(e: AtenEmitter, x: Value) -> Value:
    return e.cast(x, "i8") if e.type(x).dtype == "bool" else x


def _differs(e: AtenEmitter, x: Value, axis: int) -> Value:
    """bool (n,): true where an element, or a slice, isn't equal to the one before, and for the first."""
    n, others = e.shape(x)[axis], tuple(a for a in range(len(e.shape(x))) if a != axis)
    if n < 2:
        return torch.ones(n, dtype=torch.bool)
    x = _ordered(e, x)
    pair: Value = e.op(ops.Equal(), part(e, x, axis, 1, n - 1), part(e, x, axis, 0, n - 1))
    if others:
        pair = e.cast(e.op(rd.ReduceMin(others, False), e.cast(pair, "i8")), "bool")
    differs = e.op(ops.LogicalNot(), pair)
    return joined(e, [torch.ones(1, dtype=torch.bool), differs], 0)


__all__ = ["UNIQUE", "convert"]

"""Nodes that make or take what a computed mask selects: which of the rules of `packed` holds for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuvil_hw.frontend.torch import packed_put, packed_reduce, packed_rows
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter
from cuvil_hw.frontend.torch.packed import PUT, REASON, Fold, count, packed_in, select, selects


def takes_part(e: AtenEmitter, label: str, args: Sequence[Any]) -> bool:
    """Whether a node makes, or takes, what a computed mask selects."""
    return bool(packed_in(args)) or selects(e, label, args) or packed_rows.sized(e, label, args) is not None


def convert(e: AtenEmitter, target: Any, args: Sequence[Any], made: Any, fold: Fold) -> Any:
    """The node's result. `made`: fake tensors of it. Raises Refused."""
    label, first = str(target), args[0]
    if selects(e, label, args):
        return select(e, label, *args)
    if not packed_in(args) and (mask := packed_rows.sized(e, label, args)) is not None:
        return packed_rows.make(e, label, args, made, mask)
    if label == "aten.sym_size.int":
        return count(e, first.mask) if args[1] % len(e.shape(first.full)) == first.axis else e.refuse(REASON)
    if label.startswith("aten._assert_tensor_metadata"):
        return None
    if label in PUT:
        return packed_put.put(e, label, args, made)
    if label in packed_put.SCATTERS:
        return packed_put.scatter(e, label, args, made)
    found = packed_reduce.convert(e, target, args, made)
    return packed_rows.convert(e, target, args, made, fold) if found is None else found


__all__ = ["convert", "takes_part"]

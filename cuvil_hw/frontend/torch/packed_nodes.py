"""Nodes that make or take what a computed mask selects: which of the rules of `packed` holds for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from cuvil_hw.frontend.torch import packed_front, packed_order, packed_put, packed_reduce, packed_rows, packed_unique
from cuvil_hw.frontend.torch.aten.emitter import AtenEmitter
from cuvil_hw.frontend.torch.packed import PUT, REASON, Fold, Packed, count, packed_in, select, selects

_SLICES, _WRITES = packed_front.SLICES, packed_front.SLICE_WRITES
_ENDS = {**dict.fromkeys(_SLICES, 2), **dict.fromkeys(_WRITES, 3), **dict.fromkeys(packed_front.ARANGES, 0)}

_REPEATS = "aten.repeat_interleave.Tensor"
# What has a size without a bound, and what to use instead.
_UNBOUNDED = {
    _REPEATS: "give its output_size, which bounds it",
    "aten.bincount.default": "count a known number of classes, by torch.nn.functional.one_hot(x, classes).sum(0)",
    "aten.unique_dim.default": "use torch.unique_consecutive(x, dim=…) on rows that are sorted, or flatten",
}


def takes_part(e: AtenEmitter, label: str, args: Sequence[Any]) -> bool:
    """Whether a node makes, or takes, what a computed mask selects, or as many."""
    if packed_in(args) or selects(e, label, args) or packed_rows.sized(e, label, args) is not None:
        return True
    if label in packed_unique.UNIQUE or label in _UNBOUNDED:
        return isinstance(args[0], SSAValue) and not (label == _REPEATS and args[1] is not None)
    if label in packed_front.SPLITS:
        return any(isinstance(a, SSAValue) for a in args[1])
    return label in _ENDS and any(isinstance(a, SSAValue) for a in args[_ENDS[label] :])


def convert(e: AtenEmitter, target: Any, args: Sequence[Any], made: Any, fold: Fold) -> Any:
    """The node's result. `made`: fake tensors of it. Raises Refused."""
    return packed_front.settled(e, _converted(e, target, args, made, fold), made)


def _converted(e: AtenEmitter, target: Any, args: Sequence[Any], made: Any, fold: Fold) -> Any:
    label, first = str(target), args[0]
    if selects(e, label, args):
        return select(e, label, *packed_front.agreeing(e, args))
    if label in _UNBOUNDED:
        e.refuse(f"its shape depends on values known only at run time; {_UNBOUNDED[label]}")
    if label in packed_unique.UNIQUE:
        return packed_unique.convert(e, label, args)
    if label in packed_front.SPLITS and not isinstance(first, Packed):
        return packed_front.split(e, *args)
    if label in packed_front.ARANGES:
        return packed_front.arange(e, label, args, made)
    if not packed_in(args) and (mask := packed_rows.sized(e, label, args)) is not None:
        return packed_rows.make(e, label, args, made, mask)
    if label == "aten.sym_size.int":
        return count(e, first.mask) if args[1] % len(e.shape(first.full)) == first.axis else e.refuse(REASON)
    if label.startswith("aten._assert_tensor_metadata"):
        return None
    if (index := packed_order.index_of(e, label, args)) is not None:
        return packed_order.looked_up(e, label, first, index)
    if label not in (*packed_rows.CATS, *PUT):
        args = packed_front.agreeing(e, args)
        first = args[0]
    if label in _WRITES and not isinstance(first, Packed):
        return packed_front.slice_written(e, *args)
    if label in _SLICES and (not isinstance(first, Packed) or args[1] % len(e.shape(first.full)) == first.axis):
        return packed_front.sliced(e, *args)
    if label in packed_front.PADS and packed_front.pads_rows(e, args):
        return packed_front.padded(e, label, args, made)
    if label in PUT:
        return packed_put.put(e, label, args, made)
    if label in packed_put.SCATTERS:
        return packed_put.scatter(e, label, args, made)
    for rule in (packed_reduce.convert, packed_order.convert):
        if (found := rule(e, target, args, made)) is not None:
            return found
    return packed_rows.convert(e, target, args, made, fold)


__all__ = ["convert", "takes_part"]

"""Elements that a computed mask selects: how many there are is known at run time only, so that all are computed, and
the mask decides what counts.

`x[m]` is the whole of x with m beside it, `nonzero(m)` every position with m beside it. What treats the selected rows
one by one is done to all of them (`packed_rows`); a reduction first puts its neutral element where m is false
(`packed_reduce`); `y[m] = f(x[m])` becomes where(m, f(x), y), and `y.index_add_(0, i, v)` adds 0 where m is false
(`packed_put`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from xdsl.ir import OpResult, SSAValue

from cuvil_hw import dtypes, ops
from cuvil_hw.frontend.torch.aten.bfloat import as_computed, computed, operands
from cuvil_hw.frontend.torch.aten.complex import held_types
from cuvil_hw.frontend.torch.aten.emitter import TABLE, AtenEmitter, Value, from_data
from cuvil_hw.ir import level1
from cuvil_hw.types import TensorType

INDEX, PUT = "aten.index.Tensor", ("aten.index_put.default", "aten._unsafe_index_put.default")
_POSITIONS = ("aten.nonzero.default", "aten.argwhere.default")
_SELECTS = ("aten.masked_select.default", *_POSITIONS)
REASON = (
    "works on what a computed mask selects, and how many elements that is is known at run time only; use torch.where, "
    "or what treats the selected rows one by one, reductions, slices, sort, topk, an assignment or index_add_, or "
    "y[:x.shape[0]] = x to fill them up to a known number"
)
Fold = Callable[[Any, Sequence[Any]], Any]  # computes what depends on no input


@dataclass(frozen=True, eq=False)
class Packed:
    """Elements that a computed mask selects: all are held, with the mask beside them.

    Attributes:
        full: (…, n, …), all rows along `axis`.
        mask: bool (n,), true where a row counts.
        loc: where they were selected.
        front: whether the rows that count are the first ones.
    """

    full: Value
    mask: SSAValue
    loc: str
    axis: int = 0
    front: bool = False


def packed_in(values: Any) -> list[Packed]:
    """All Packed in arguments, which may be nested."""
    return list(_packed_in(values))


def _packed_in(values: Any) -> Iterator[Packed]:
    if isinstance(values, Packed):
        yield values
    elif isinstance(values, list | tuple):
        for v in values:
            yield from _packed_in(v)


def unpacked(values: Any, use: Callable[[Packed], Any] = lambda p: p.full) -> Any:
    """Arguments with something else, all rows, in place of what is packed."""
    if isinstance(values, Packed):
        return use(values)
    if isinstance(values, list | tuple):
        return [unpacked(v, use) for v in values]
    return values


def is_mask(e: AtenEmitter, value: Any) -> bool:
    """Whether an index is a mask whose values only a run knows."""
    if isinstance(value, Packed):
        return e.type(value.full).dtype == "bool"
    return isinstance(value, SSAValue) and e.type(value).dtype == "bool"


def with_masks(e: AtenEmitter, label: str, args: list[Any], made: Any) -> list[Any]:
    """The arguments; a constant mask whose count torch doesn't know is taken as a computed one."""
    selected = label == INDEX and isinstance(args[0], SSAValue | Packed) and any(map(from_data, made.shape))
    if not selected and not (label in PUT and isinstance(args[2], Packed)):
        return args
    masks = [e.ssa(i) if isinstance(i, torch.Tensor) and i.dtype == torch.bool else i for i in args[1]]
    return [args[0], masks, *args[2:]]


def selects(e: AtenEmitter, label: str, args: Sequence[Any]) -> bool:
    """Whether a node selects elements by a mask whose values only a run knows."""
    if label in _SELECTS:
        return isinstance(args[label not in _POSITIONS], SSAValue | Packed)
    return label == INDEX and any(is_mask(e, i) for i in args[1])


def select(e: AtenEmitter, label: str, x: Any, chosen: Any = None) -> Packed:
    """What is selected, of any of the three ways to say it. Raises Refused."""
    if label in _POSITIONS:
        return _positions(e, x)
    if label == "aten.masked_select.default":
        if packed_in([x, chosen]):
            e.refuse(REASON)
        shape = np.broadcast_shapes(e.shape(x), e.shape(chosen))
        return _rows(e, e.broadcast(x, shape), e.broadcast(chosen, shape), 0)
    given = [(axis, i) for axis, i in enumerate(chosen) if i is not None]
    if len(given) != 1:
        e.refuse("selects by a computed mask and other indices at once; select in two steps, or use torch.where")
    axis, mask = given[0]
    if isinstance(x, Packed):
        return _of_packed(e, x, mask, axis)
    if isinstance(mask, Packed):
        e.refuse(REASON)
    return _rows(e, x, mask, axis)


def _rows(e: AtenEmitter, x: Value, mask: Value, axis: int) -> Packed:
    """x selected by a mask of its axes from `axis` on."""
    shape, size = e.shape(x), e.type(mask).size
    full = e.reshape(x, (*shape[:axis], size, *shape[axis + len(e.shape(mask)) :]))
    return Packed(full, e.ssa(e.reshape(mask, (size,))), e.loc, axis)


def _of_packed(e: AtenEmitter, x: Packed, mask: Any, axis: int) -> Packed:
    """What is selected of selected rows: those that both masks let count."""
    if not isinstance(mask, Packed) or axis != 0 or x.axis != 0 or mask.axis != 0 or not same(mask.mask, x.mask):
        e.refuse("selects from what another mask selects; combine the masks with & first")
    return _rows(e, x.full, both(e, mask), 0)


def both(e: AtenEmitter, mask: Packed) -> Value:
    """A mask of selected rows, false in all others."""
    shape = e.shape(mask.full)
    wide = e.broadcast(e.reshape(mask.mask, (shape[0], *[1] * (len(shape) - 1))), shape)
    return e.op(ops.LogicalAnd(), wide, mask.full)


def _positions(e: AtenEmitter, x: Any) -> Packed:
    """(elements, axes): where each element is, in order; those count that aren't zero."""
    if isinstance(x, Packed):
        e.refuse("asks where among the selected rows some are; use the mask of all rows")
    shape = e.shape(x)
    return Packed(torch.ones(shape).nonzero(), e.ssa(e.reshape(e.cast(x, "bool"), (prod(shape),))), e.loc)


def count(e: AtenEmitter, mask: SSAValue) -> SSAValue:
    return e.op(ops.ReduceSum((0,), False), e.cast(mask, "i64"))


def counted(number: SSAValue) -> SSAValue | None:
    """The mask that a number counts; None for any other number."""
    masks = [number]
    for kind in (ops.ReduceSum, ops.Cast):
        owner = masks[-1].owner
        if not isinstance(owner, level1.TensorOp) or owner.spec is not kind:
            return None
        masks.append(owner.operands[0])
    kind_of = level1.type_of(masks[-1])
    return masks[-1] if kind_of.dtype == "bool" and kind_of.rank == 1 else None


def filled(e: AtenEmitter, packed: Packed, value: float | int | bool) -> Value:
    """All rows, those that don't count being `value`. Constants stay as they are for 0: none of them harms."""
    kind = e.type(packed.full)
    mask = e.reshape(packed.mask, [n if d == packed.axis else 1 for d, n in enumerate(kind.shape)])
    return e.op(ops.Where(), e.broadcast(mask, kind.shape), packed.full, e.splat(value, kind))


def inside(e: AtenEmitter, packed: Packed) -> Value:
    """Selected indices, harmless ones elsewhere; constants, which come from nonzero, are harmless everywhere."""
    return packed.full if isinstance(packed.full, torch.Tensor) else filled(e, packed, 0)


def data_axis(e: AtenEmitter, made: torch.Tensor) -> int | None:
    """The axis of a node's result whose extent values decide; None where there is none. Raises Refused for several."""
    axes = [d for d, n in enumerate(made.shape) if from_data(n)]
    if len(axes) > 1:
        e.refuse("makes a tensor of what a mask selects along two axes; use torch.where")
    return axes[0] if axes else None


def stand_in(e: AtenEmitter, made: torch.Tensor, rows: int) -> torch.Tensor:
    """A node's result with all rows in place of the unknown number of them, without data."""
    axis = data_axis(e, made)
    shape = [rows if d == axis else int(n) for d, n in enumerate(made.shape)]
    return torch.empty(shape, dtype=made.dtype, device="meta")


def converted(e: AtenEmitter, label: str, args: Sequence[Any], made: Any) -> Any:
    """What the op's converter makes of plain arguments. `made`: stand-ins of the results."""
    e.results = computed(label, held_types(made))
    converter: Callable[..., Any] = TABLE[label]
    return as_computed(e, converter(e, *operands(e, label, list(args), made)), made)


def one_mask(e: AtenEmitter, values: Sequence[Packed]) -> Packed:
    """The first of what one mask selects. Raises Refused where there are two masks."""
    if not all(same(p.mask, values[0].mask) for p in values):
        e.refuse("combines what two masks select, which may be different numbers of elements; use torch.where")
    return values[0]


def same(a: SSAValue, b: SSAValue) -> bool:
    """Whether two values are one, or are computed alike from values that are."""
    waiting, seen = [(a, b)], set()
    while waiting:
        pair = x, y = waiting.pop()
        if x is y or pair in seen:
            continue
        seen.add(pair)
        if not _alike(x, y):
            return False
        waiting += zip(x.owner.operands, y.owner.operands, strict=True)  # type: ignore[union-attr]
    return True


def _alike(a: SSAValue, b: SSAValue) -> bool:
    """Whether two values are the same result of the same operation, whatever its operands are."""
    if not isinstance(a, OpResult) or not isinstance(b, OpResult) or a.index != b.index:
        return False
    one, other = a.op, b.op
    equal = type(one) is type(other) and one.properties == other.properties and not one.regions
    return equal and len(one.operands) == len(other.operands)


_OF_LAYOUT = {"aten.sym_storage_offset.default", "aten.sym_numel.default"}


def is_layout_check(node: torch.fx.Node, known: Collection[str]) -> bool:
    """torch's own checks of where views begin, and of sizes by arithmetic that isn't `known`, such as remainders."""
    if str(node.target) != "aten._assert_scalar.default":
        return False
    waiting, sources, unknown = list(node.all_input_nodes), set(), False
    while waiting:
        source = waiting.pop()
        if isinstance(source.target, torch._ops.OpOverload):
            sources.add(str(source.target))
        else:  # arithmetic of numbers
            unknown = unknown or str(source.target) not in known
            waiting += source.all_input_nodes
    return not _OF_LAYOUT.isdisjoint(sources) or (unknown and sources == {"aten.sym_size.int"})


def end_of(dtype: str, end: int) -> float | int | bool:
    """What is never the extreme: the largest number for end 1, the smallest for -1."""
    if dtype == "bool":
        return end > 0
    if dtypes.is_float(dtype):
        return end * math.inf
    return dtypes.int_range(dtype)[0 if end < 0 else 1]


SCALAR = TensorType((), "i64")  # of a number of rows

__all__ = ["Packed", "is_layout_check", "select", "selects"]

"""Which of a caller's own elements stand in a value: found through the ops that only move them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ops.cast import Cast
from cuvil_hw.ops.loop import LoopBegin
from cuvil_hw.ops.shape import BroadcastTo, Concat, Reshape, Slice, Transpose

# The indices that are taken along each axis, first to last.
Region = tuple[range, ...]


def whole(shape: Sequence[int]) -> Region:
    return tuple(range(int(n)) for n in shape)


def callers_elements(value: SSAValue, block: Block, taken: Region | None = None) -> Iterator[tuple[int, Region]]:
    """(number of an argument of `block`, region of it) for the elements `taken` of `value` (all of them for None) that
    are the caller's own. Computed ones are left out, and those that a reshape spreads over several axes."""
    shape = level1.type_of(value).shape
    taken = whole(shape) if taken is None else taken
    if not all(taken):
        return
    if isinstance(value, BlockArgument):
        if value.owner is block:
            yield value.index, taken
        return
    owner = value.owner
    if not isinstance(value, OpResult) or not isinstance(owner, level1.TensorOp):
        return
    op, sources = owner.op, list(owner.operands)
    was = level1.type_of(sources[0]).shape if sources else ()
    match op:
        case Cast() if widens(owner):
            yield from callers_elements(sources[0], block, taken)
        case Slice():
            ends = zip(op.starts, op.sizes, op.steps, strict=True)
            lines = [range(a, a + n * step, step) for a, n, step in ends]
            yield from callers_elements(sources[0], block, tuple(map(_composed, lines, taken)))
        case Transpose():
            yield from callers_elements(sources[0], block, tuple(taken[op.perm.index(d)] for d in range(len(was))))
        case BroadcastTo():
            behind = taken[len(taken) - len(was) :]
            given = tuple(range(1) if n == 1 else r for n, r in zip(was, behind, strict=True))
            yield from callers_elements(sources[0], block, given)
        case Reshape():
            reshaped = _reshaped(taken, shape, was)
            if reshaped is not None:
                yield from callers_elements(sources[0], block, reshaped)
        case Concat():
            start = 0
            for source in sources:
                size = level1.type_of(source).shape[op.axis]
                part = _within(taken[op.axis], start, size)
                yield from callers_elements(source, block, (*taken[: op.axis], part, *taken[op.axis + 1 :]))
                start += size
        case LoopBegin() if value.index:
            source, of_step = sources[value.index - 1], value.index > op.carried
            yield from callers_elements(source, block, (range(op.steps), *taken) if of_step else taken)


def widens(operation: Operation) -> bool:
    """Whether it converts integers to a type that holds all of them."""
    was, now = (level1.type_of(v).dtype for v in (operation.operands[0], operation.results[0]))
    if not (dtypes.is_int(was) and dtypes.is_int(now)):
        return False
    (low, high), (least, most) = dtypes.int_range(was), dtypes.int_range(now)
    return least <= low and high <= most


def _composed(line: range, taken: range) -> range:
    return range(line.start + line.step * taken.start, line.start + line.step * taken.stop, line.step * taken.step)


def _within(taken: range, start: int, size: int) -> range:
    """Of the indices taken of a joined axis those that lie in one part, counted from the part's start."""
    here = [k for k, i in enumerate(taken) if start <= i < start + size]
    if not here:
        return range(0)
    first, last = taken[here[0]] - start, taken[here[-1]] - start
    return range(first, last + (1 if taken.step > 0 else -1), taken.step)


def _reshaped(taken: Region, shape: Sequence[int], was: Sequence[int]) -> Region | None:
    """`taken` of `shape` in the axes of `was`; None where it is no region there."""
    if taken == whole(shape):
        return whole(was)
    long = [(n, r) for n, r in zip(shape, taken, strict=True) if n != 1]
    # Axes in front that are taken whole may be merged or split: those behind them must be the same.
    behind = [n for n in was if n != 1]
    same = 0
    while same < min(len(long), len(behind)) and long[-1 - same][0] == behind[-1 - same]:
        same += 1
    if any(r != range(n) for n, r in long[: len(long) - same]):
        return None
    rest = [r for _, r in long[len(long) - same :]]
    front = len(behind) - same
    lines = iter([*(range(n) for n in behind[:front]), *rest])
    return tuple(range(1) if n == 1 else next(lines) for n in was)


__all__ = ["Region", "callers_elements", "whole"]

"""Proves that results are independent along a dimension, so that a batch may be cut, padded and joined again, exactly.

Two things are shown. Along the dimension, every op reads its operands only at the index that it writes (found from the
same expressions that kernels are made from). And the computation for one index doesn't depend on the number of indices:
programs for two sizes differ only in that extent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from xdsl.ir import Operation, SSAValue

from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Expr, Iter, Load, parallel, placeholder
from cuvil_hw.expr.traverse import walk
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops import base
from cuvil_hw.ops.base import Op
from cuvil_hw.ops.shape import Reshape
from cuvil_hw.passes.pipeline import run_pipeline
from cuvil_hw.types import TensorType


def stands_alone(first: Program, second: Program, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> bool:
    """Whether rows along a dimension are computed independently.

    `first`, `second`: the model at two sizes of the dimension, both 2 or more. `inputs`, `outputs`: the dimension's
    axis in the ports that have it; every output must have it.
    """
    if set(outputs) != {name for name, _ in first.outputs} or first.calling.writes or first.calling.guards:
        return False
    pair = (first.clone(), second.clone())
    for program in pair:
        run_pipeline(program, ["decompose"])
    axes: dict[SSAValue, int | None] = {}
    partner: dict[SSAValue, SSAValue] = {}
    for (name, _), a, b in zip(first.inputs, pair[0].block.args, pair[1].block.args, strict=True):
        if _differs(a, b) != inputs.get(name):
            return False
        axes[a], partner[a] = inputs.get(name), b
    left, right = list(pair[0].ops()), list(pair[1].ops())
    if len(left) != len(right):
        return False
    for a_op, b_op in zip(left, right, strict=True):
        if type(a_op) is not type(b_op) or [partner.get(v) for v in a_op.operands] != list(b_op.operands):
            return False
        if not a_op.results:  # the return
            ends = zip(first.outputs, a_op.operands, strict=True)
            return all(axes[v] == outputs[name] for (name, _), v in ends)
        partner.update(zip(a_op.results, b_op.results, strict=True))
        found = _results(a_op, b_op, axes)
        if found is None:
            return False
        axes.update(found)
    return False


def _differs(a: SSAValue, b: SSAValue) -> int | None:
    """The only axis in which the extents of two values differ; None: no axis; -1: several axes, or another
    difference."""
    left, right = level1.type_of(a), level1.type_of(b)
    if left.rank != right.rank or left.dtype != right.dtype:
        return -1
    found = [d for d in range(left.rank) if left.shape[d] != right.shape[d]]
    return None if not found else found[0] if len(found) == 1 else -1


def _results(a: Operation, b: Operation, axes: Mapping[SSAValue, int | None]) -> dict[SSAValue, int | None] | None:
    """The dimension's axis in each result of an operation; None: rows aren't independent there."""
    found: dict[SSAValue, int | None] = {r: _differs(r, s) for r, s in zip(a.results, b.results, strict=True)}
    if -1 in found.values():
        return None
    if isinstance(a, level1.ConstOp) and isinstance(b, level1.ConstOp):
        return found if (a.handle, a.splat) == (b.handle, b.splat) else None
    if not isinstance(a, level1.TensorOp) or not isinstance(b, level1.TensorOp):
        return None
    given = [axes[v] for v in a.operands]
    moved = [axis for axis in found.values() if axis is not None]
    if not _alike(a.op, b.op, bool(moved)):
        return None
    if all(axis is None for axis in given) and not moved:
        return found
    if len(moved) != len(found):
        return None
    operands = [level1.type_of(v) for v in a.operands]
    if isinstance(a.op, Reshape):
        return found if given[0] is not None and _kept(operands[0], given[0], a.op, moved[0]) else None
    return found if _aligned(a.op, operands, given, moved) else None


def _alike(a: Op, b: Op, moved: bool) -> bool:
    """Whether attributes are equal, except one number in a tuple, which is an extent where a result's extent
    differs."""
    for name, kind in base.attributes(type(a)):
        left, right = getattr(a, name), getattr(b, name)
        if left == right or (left != left and right != right):
            continue
        apart = [d for d, (x, y) in enumerate(zip(left, right, strict=False)) if x != y] if kind == "ints" else []
        if not moved or len(apart) != 1 or len(left) != len(right) or name not in ("shape", "sizes"):
            return False
    return True


def _kept(x: TensorType, axis: int, op: Reshape, result: int) -> bool:
    """Whether a reshape leaves the axis as it is, with as many elements before it."""
    return x.shape[axis] == op.shape[result] and prod(x.shape[:axis]) == prod(op.shape[:result])


def _aligned(op: Op, operands: list[TensorType], given: list[int | None], moved: list[int]) -> bool:
    """Whether the result at index i along the axis reads operands only at index i, and i is used for nothing else."""
    if type(op).compute is Op.compute:
        return False
    buffers = {f"x{k}": axis for k, axis in enumerate(given)}
    try:
        tensors = base.compute(op, [placeholder(f"x{k}", t) for k, t in enumerate(operands)])
    except CuvilError:
        return False
    for tensor, axis in zip(tensors, moved, strict=True):
        index = tuple(parallel(f"i{d}", extent) for d, extent in enumerate(tensor.type.shape))
        if not all(_own(node, buffers, index[axis]) for node in _nodes(tensor[index], buffers)):
            return False
    return True


def _own(node: Expr, buffers: Mapping[str, int | None], row: Iter) -> bool:
    if isinstance(node, Load) and (axis := buffers[node.buffer]) is not None:
        return node.index[axis] == row
    return node != row


def _nodes(e: Expr, buffers: Mapping[str, int | None]) -> Iterator[Expr]:
    """Every node, except a load's index along the dimension."""

    def children(node: Expr) -> tuple[Expr, ...]:
        if isinstance(node, Load) and (axis := buffers[node.buffer]) is not None:
            return tuple(i for d, i in enumerate(node.index) if d != axis)
        return node.children()

    return walk(e, children)

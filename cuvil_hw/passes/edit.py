"""Helpers with which passes read and change a program: typed access to op dataclasses and constants, insertion,
replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import Block, Operation, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program, constant_value
from cuvil_hw.ops import base
from cuvil_hw.ops.integer import Dequantize
from cuvil_hw.types import TensorType

Array = npt.NDArray[Any]


def spec(operation: Operation | None) -> base.Op | None:
    """The op dataclass of a level1 operation; None for const, group, return and block arguments."""
    return operation.op if isinstance(operation, level1.TensorOp) else None


def mnemonic(operation: Operation | None) -> str:
    """`conv` for `cuvil.level1.conv`; empty for anything that isn't a tensor op."""
    return operation.name.removeprefix(level1.PREFIX) if isinstance(operation, level1.TensorOp) else ""


def integer_form(operation: Operation | None) -> str:
    """What quantization makes of it, see `ops.base.Op`."""
    return operation.spec.integer_form if isinstance(operation, level1.TensorOp) else "none"


def owner(value: SSAValue) -> Operation | None:
    """The operation that defines `value`; None for a function argument."""
    return value.owner if isinstance(value.owner, Operation) else None


def producer(value: SSAValue, *names: str) -> level1.TensorOp | None:
    """The tensor op that defines `value` when it is one of `names`."""
    operation = owner(value)
    return operation if isinstance(operation, level1.TensorOp) and mnemonic(operation) in names else None


def users(value: SSAValue) -> list[Operation]:
    """Distinct operations that read `value`."""
    return list(dict.fromkeys(use.operation for use in value.uses))


def sole_user(value: SSAValue) -> Operation | None:
    """The operation that reads `value`, if it is the only one and reads it once; else None."""
    use = value.get_unique_use()
    return use.operation if use is not None else None


def is_const(value: SSAValue) -> bool:
    return isinstance(owner(value), level1.ConstOp)


def const_array(program: Program, value: SSAValue) -> Array | None:
    """The array of a const; None when `value` is computed."""
    operation = owner(value)
    return constant_value(operation, program.constants) if isinstance(operation, level1.ConstOp) else None


def splat_of(program: Program, value: SSAValue) -> Any | None:
    """The one value of every element of a const (also seen through views); else None."""
    operation = owner(value)
    while isinstance(operation, level1.TensorOp) and operation.spec.is_view:
        operation = owner(operation.operands[0])
    if not isinstance(operation, level1.ConstOp):
        return None
    if operation.handle is None:
        kind = level1.type_of(operation.results[0])
        return dtypes.numbers(constant_value(operation, program.constants)).flat[0] if kind.size else None
    array = dtypes.numbers(constant_value(operation, program.constants))
    if array.size == 0 or not (array == array.flat[0]).all():
        return None
    return array.flat[0]


def static_array(program: Program, value: SSAValue, limit: int = 1 << 22) -> Array | None:
    """The array that `value` always has, when it is a const seen through views and dequantize and has ≤ `limit`
    elements."""
    if level1.type_of(value).size > limit:
        return None
    array = const_array(program, value)
    if array is not None:
        return array
    operation = owner(value)
    if not isinstance(operation, level1.TensorOp):
        return None
    if not operation.spec.is_view and not isinstance(operation.op, Dequantize):
        return None
    inner = static_array(program, operation.operands[0], limit)
    return None if inner is None else base.evaluate(operation.op, [inner])[0]


@dataclass(frozen=True)
class Inserter:
    """Puts new operations before `anchor`, with its source location. Fits `ops.base.Emit`."""

    program: Program
    anchor: Operation

    def op(self, op: base.Op, *values: SSAValue, loc: str = "") -> SSAValue:
        return self.ops(op, *values, loc=loc)[0]

    def ops(self, op: base.Op, *values: SSAValue, loc: str = "") -> tuple[SSAValue, ...]:
        operation = level1.create(op, values, loc or level1.loc_of(self.anchor))
        self._put(operation)
        return tuple(operation.results)

    def type(self, value: SSAValue) -> TensorType:
        return level1.type_of(value)

    def const(self, array: Any, dtype: str | None = None) -> SSAValue:
        """A constant; one value repeated is stored as a splat."""
        data = np.asarray(array)
        dtype = dtype or dtypes.from_numpy(data.dtype)
        data = base.container(data, dtype)
        kind = TensorType(tuple(data.shape), dtype)
        seen = dtypes.numbers(data)
        if seen.size and (seen == seen.flat[0]).all():
            operation = level1.const_splat(seen.flat[0].item(), kind)
        else:
            operation = level1.const_handle(self.program.constants.add(data, dtype), kind)
        self._put(operation)
        return operation.results[0]

    def _put(self, operation: Operation) -> None:
        block = self.anchor.parent
        assert block is not None, "operations are only inserted beside one that is in a block"
        block.insert_op_before(operation, self.anchor)


def insert(program: Program, anchor: Operation) -> Inserter:
    return Inserter(program, anchor)


def replace(operation: Operation, *values: SSAValue) -> None:
    """Replace every use of the results by `values` and erase the operation, with every op that only it read: an op
    without readers left behind would hide that a value has a single reader."""
    for result, value in zip(operation.results, values, strict=True):
        result.replace_all_uses_with(value)
    dead = [operation]
    while dead:
        gone = dead.pop()
        operands = [owner(v) for v in dict.fromkeys(gone.operands)]
        erase(gone)
        dead += [o for o in operands if isinstance(o, level1.TensorOp) and all(r.first_use is None for r in o.results)]


def erase(operation: Operation) -> None:
    block = operation.parent
    assert block is not None, "only operations in a block can be erased"
    block.erase_op(operation)


def walk(block: Block) -> Iterator[level1.TensorOp]:
    """The tensor ops of `block`; the block may change meanwhile, erased ops are skipped."""
    for operation in list(block.ops):
        if operation.parent is block and isinstance(operation, level1.TensorOp):
            yield operation


def until_stable(block: Block, rule: Callable[[level1.TensorOp], bool], limit: int = 1000) -> None:
    """Apply `rule` to every op repeatedly until it changes nothing. Raises RuntimeError for a rule that never stops (a
    bug)."""
    for _ in range(limit):
        changed = False
        for operation in walk(block):
            changed = rule(operation) or changed
        if not changed:
            return
    raise RuntimeError(f"rewrite rule {rule} is not stable after {limit} rounds")

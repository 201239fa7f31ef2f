"""Makes every f32 value of a program an f16 or bf16 one: weights, and what is computed from them.

before: linear %x, %w, %b           after: %y = linear (cast %x {f16}), %w16, %b16; cast %y {f32}
Inputs and outputs stay f32, so that a program is called the same way in any precision. An op that takes no other
float than f32, or gives none (a bitcast, `dequantize`, the weights of `resample`), stays in f32 between two casts.
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from cuvil_hw import dtypes
from cuvil_hw.ir import level1
from cuvil_hw.ir.program import Program
from cuvil_hw.ops import base
from cuvil_hw.ops.cast import Cast
from cuvil_hw.passes import dce
from cuvil_hw.passes.edit import Inserter, const_array, insert, walk

WIDE = "f32"


def run(program: Program, dtype: str) -> tuple[str, ...]:
    """`dtype`: "f16" or "bf16". Returns a warning for each constant that is finite in f32 and infinite in `dtype`."""
    narrowing = _Narrowing(program, dtype)
    for operation in walk(program.block):
        narrowing.op(operation)
    end = program.block.last_op
    assert end is not None, "a program returns"
    end.operands = [narrowing.wide(v, insert(program, end)) for v in end.operands]
    dce.run(program)
    return tuple(narrowing.warnings)


class _Narrowing:
    """`found`: the value in the narrow type that stands for an f32 value."""

    def __init__(self, program: Program, dtype: str) -> None:
        self.program, self.dtype = program, dtype
        self.found: dict[SSAValue, SSAValue] = {}
        self.warnings: list[str] = []

    def op(self, operation: level1.TensorOp) -> None:
        """Put an op on narrow operands before this one, which nobody reads then; or let it stay in f32."""
        put = insert(self.program, operation)
        if all(level1.type_of(v).dtype != WIDE for v in (*operation.operands, *operation.results)):
            return
        narrow = self._narrow_op(operation)
        if narrow is None:
            operation.operands = [self.wide(v, put) for v in operation.operands]
            return
        results = put.ops(narrow, *(self.narrow(v, put) for v in operation.operands))
        for old, new in zip(operation.results, results, strict=True):
            if level1.type_of(old).dtype == WIDE:
                self.found[old] = new
            else:
                old.replace_all_uses_with(new)

    def _narrow_op(self, operation: level1.TensorOp) -> base.Op | None:
        """The op whose f32 operands and results are all narrow ones; None if there is none."""
        op = operation.op
        named: dict[str, Any] = {
            name: self.dtype
            for name, kind in base.attributes(type(op))
            if kind == "str" and getattr(op, name) == WIDE and not name.startswith("acc")
        }
        narrow = with_fields(op, **named)
        try:
            got = base.infer(narrow, [self._kind(v) for v in operation.operands])
        except base.ShapeError:
            return None
        return narrow if list(got) == [self._kind(r) for r in operation.results] else None

    def _kind(self, value: SSAValue) -> Any:
        kind = level1.type_of(value)
        return kind.with_dtype(self.dtype) if kind.dtype == WIDE else kind

    def narrow(self, value: SSAValue, put: Inserter) -> SSAValue:
        """An operand in the narrow type; one that isn't f32 as it is."""
        if level1.type_of(value).dtype != WIDE:
            return value
        if value not in self.found:
            array = const_array(self.program, value)
            if array is None:
                first = _behind(self.program, value) or put
                self.found[value] = first.op(Cast(self.dtype), value)
            else:
                self.found[value] = insert(self.program, _owner(value)).const(self._rounded(array, put), self.dtype)
        return self.found[value]

    def wide(self, value: SSAValue, put: Inserter) -> SSAValue:
        """The f32 value that stands for one that became narrow; any other as it is."""
        return put.op(Cast(WIDE), self.found[value]) if value in self.found and not _given(value) else value

    def _rounded(self, array: base.Array, put: Inserter) -> base.Array:
        with np.errstate(over="ignore"):
            narrow = dtypes.convert(array, self.dtype)
        beyond = np.isfinite(array) & np.isinf(dtypes.numbers(narrow))
        if beyond.any():
            where = level1.loc_of(put.anchor)
            value = float(array[beyond].flat[0])
            self.warnings.append(f"{self.dtype} doesn't hold the constant {value:g} at {where}: it is infinite there")
        return narrow


def _owner(value: SSAValue) -> Operation:
    assert isinstance(value.owner, Operation), "a constant is the result of an operation"
    return value.owner


def _given(value: SSAValue) -> bool:
    """Whether an f32 value is there as it is: an input or a constant."""
    return not isinstance(value.owner, level1.TensorOp)


def _behind(program: Program, value: SSAValue) -> Inserter | None:
    """Where every reader of an f32 value finds its cast: an input's at the start, a computed one's behind its op."""
    after = value.owner.next_op if isinstance(value.owner, Operation) else program.block.first_op
    return None if after is None else insert(program, after)
